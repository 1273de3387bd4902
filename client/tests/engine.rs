//! The engine against the model box through a network that loses, doubles and reorders, all of it
//! in simulated time: the same seed gives the same run.

mod group;
mod model;
mod sim;

use gradbox_client::engine::{Engine, MILLISECOND};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Flags, Header, Kind, Op};
use model::{JOB, Model, Rng};
use proptest::prelude::*;
use sim::{Chance, Job, SECOND, Sim, Weather, config, input};
use zerocopy::IntoBytes;

fn job(sizes: Vec<u64>) -> Job {
    Job {
        dtype: DType::F32,
        op: Op::Sum,
        sizes,
        chunk_bytes: 64,
        shards: 2,
        credit: 256,
        rounds: 1,
        together: true,
        multicast: false,
    }
}

#[test]
fn in_step_without_loss_nothing_is_sent_twice() {
    for multicast in [false, true] {
        let mut job = job(vec![40_000, 3, 20_000, 0, 16]);
        (job.rounds, job.multicast) = (3, multicast);
        let end = Sim::new(job, Weather::fair(4)).run().unwrap();
        for stats in end.stats {
            assert_eq!((stats.resent, stats.duplicates, stats.losses, stats.stale), (0, 0, 0, 0));
            assert_eq!(stats.results, stats.pushed);
            assert_eq!(stats.multicast, if multicast { stats.results } else { 0 });
        }
    }
}

#[test]
fn a_fast_worker_delivers_its_whole_gradient_before_a_slow_one_begins() {
    // 72,600 chunks: 100 MB at 1408 bytes.
    let mut job = job(vec![16 * 72_600]);
    job.credit = 128;
    let mut weather = Weather::fair(2);
    weather.starts[1] = 3 * SECOND;
    weather.nap = 2 * MILLISECOND;
    let end = Sim::new(job, weather).run().unwrap();
    assert!(end.delivered[0] < end.first_sent[1], "{:?}", (end.delivered, end.first_sent));
    for stats in &end.stats {
        assert_eq!((stats.pushed, stats.resent, stats.losses), (72_600, 0, 0));
    }
    assert!(end.stats[0].queries < 400, "{:?}", end.stats[0]);
}

#[test]
fn a_late_worker_on_a_busy_machine_costs_no_repeats() {
    for seed in 0..20 {
        let mut job = job(vec![16 * 3000, 16 * 3000]);
        job.rounds = 2;
        let mut weather = Weather::fair(4);
        weather.seed = seed;
        weather.starts[2] = 3 * SECOND;
        // Threads that do not run for up to 30 ms.
        weather.nap = 30 * MILLISECOND;
        let end = Sim::new(job, weather).run().unwrap();
        for stats in end.stats {
            assert_eq!(stats.resent, 0, "seed {seed}: {stats:?}");
        }
    }
}

#[test]
fn one_percent_loss_costs_little_more_than_one_percent() {
    for multicast in [false, true] {
        let mut weather = Weather::fair(3);
        weather.loss = 0.01;
        weather.starts[1] = SECOND;
        let job = Job { multicast, ..job(vec![16 * 20_000]) };
        let end = Sim::new(job, weather).run().unwrap();
        for stats in &end.stats {
            assert!(stats.resent > 100 && stats.resent < 1000, "{stats:?}");
            // What got lost came by unicast.
            let repeated = stats.results - stats.multicast;
            assert!(!multicast || (repeated > 50 && repeated < 1000), "{stats:?}");
        }
        assert!(end.finished < 4 * SECOND, "{} ms", end.finished / MILLISECOND);
    }
}

#[test]
fn marks_slow_down_without_repeats() {
    for multicast in [false, true] {
        let mut weather = Weather::fair(2);
        weather.marks = 0.05;
        let job = Job { multicast, ..job(vec![16 * 5000]) };
        let end = Sim::new(job, weather).run().unwrap();
        for stats in &end.stats {
            assert_eq!(stats.resent, 0);
            assert!(stats.congestion > 50);
            assert!(stats.window < 64, "{stats:?}");
        }
    }
}

#[test]
fn a_straggler_and_a_silent_box_are_told_apart() {
    let job = job(vec![160]);
    let layout = Layout::new(job.dtype, [160], 64, 2).unwrap();
    let mut model = Model::new(job.dtype, job.op, 3, layout, 64);
    let mut engine = Engine::new(config(&job, 0, &model));
    engine.submit(1, 9, vec![(0, input(&job, 0, 0, 0))]).unwrap();
    let mut out = Vec::new();
    engine.transmit(1, &mut out);
    let mut answers = Vec::new();
    for t in &out {
        let packet = [t.header.as_bytes(), engine.payload(t).unwrap()].concat();
        answers.extend(model.receive(&packet, false));
    }
    assert!(engine.diagnose(SECOND, 9).unwrap().silent.is_some());
    for (_, packet) in answers {
        engine.receive(SECOND, &packet, false);
    }
    let diagnosis = engine.diagnose(SECOND, 9).unwrap();
    assert_eq!(diagnosis.silent, None);
    assert_eq!(diagnosis.waiting.unwrap().ranks(), [1, 2]);
    assert_eq!((diagnosis.delivered, diagnosis.done, diagnosis.total), (10, 0, 10));
    assert_eq!(engine.diagnose(SECOND, 8), None);
}

#[test]
fn results_are_gathered_for_a_small_part_of_the_round_trip_and_only_while_some_are_due() {
    for (round_trip, gathering) in
        [(MILLISECOND / 2, None), (2 * MILLISECOND, Some(125)), (SECOND, Some(250))]
    {
        let job = job(vec![16 * 200]);
        let layout = Layout::new(job.dtype, [16 * 200], 64, 2).unwrap();
        let mut model = Model::new(job.dtype, job.op, 3, layout, 64);
        let mut engine = Engine::new(config(&job, 0, &model));
        assert_eq!(engine.gathering(), None);
        engine.submit(1, 9, vec![(0, input(&job, 0, 0, 0))]).unwrap();
        let mut out = Vec::new();
        engine.transmit(1, &mut out);
        // Nothing is known of the round trip.
        assert_eq!(engine.gathering(), None);
        let (mut answers, mut last) = (Vec::new(), Vec::new());
        for t in &out {
            let packet = [t.header.as_bytes(), engine.payload(t).unwrap()].concat();
            let shard = usize::from(t.shard);
            last.resize(2, 0);
            for (_, answer) in model.receive(&packet, false) {
                last[shard] = answers.len();
                answers.push(answer);
            }
        }
        // All but the last answer of each shard: some chunks stay in flight.
        let early = (0..answers.len()).filter(|i| !last.contains(i));
        early.for_each(|i| engine.receive(1 + round_trip, &answers[i], false));
        assert_eq!(engine.gathering().map(|ns| ns.div_ceil(1000)), gathering, "us");
        last.iter().for_each(|i| engine.receive(1 + round_trip, &answers[*i], false));
        assert_eq!(engine.gathering(), None);
    }
}

#[test]
fn a_cancelled_call_hands_back_and_its_packets_are_void() {
    let job = job(vec![1600, 16]);
    let layout = Layout::new(job.dtype, [1600, 16], 64, 2).unwrap();
    let model = Model::new(job.dtype, job.op, 3, layout, 64);
    let mut engine = Engine::new(config(&job, 0, &model));
    let data = input(&job, 0, 0, 0);
    engine.submit(1, 9, vec![(0, data.clone())]).unwrap();
    engine.submit(1, 10, vec![(1, input(&job, 0, 0, 1))]).unwrap();
    assert!(engine.submit(1, 11, vec![(1, input(&job, 0, 0, 1))]).is_err());
    let mut out = Vec::new();
    engine.transmit(1, &mut out);
    assert_eq!(engine.cancel(9), Some(vec![(0, data)]));
    assert_eq!(engine.cancel(9), None);
    assert!(out.iter().all(|t| engine.payload(t).is_none()));
    // The other call goes on alone.
    out.clear();
    engine.transmit(2, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].header.tensor.get(), 1);
}

#[test]
fn a_refusal_ends_everything() {
    let job = job(vec![16]);
    let layout = Layout::new(job.dtype, [16], 64, 2).unwrap();
    let mut model = Model::new(job.dtype, job.op, 1, layout, 64);
    let mut engine = Engine::new(config(&job, 0, &model));
    model.cookies[0] += 1;
    engine.submit(1, 9, vec![(0, input(&job, 0, 0, 0))]).unwrap();
    let mut out = Vec::new();
    engine.transmit(1, &mut out);
    let packet = [out[0].header.as_bytes(), engine.payload(&out[0]).unwrap()].concat();
    for (_, packet) in model.receive(&packet, false) {
        engine.receive(2, &packet, false);
    }
    assert_eq!(engine.rejected(), Some(gradbox_protocol::ErrorCode::WrongCookie));
}

/// Sends what `engine` has to send now to `model`; returns the answers to that rank.
fn exchange(engine: &mut Engine, model: &mut Model, now: u64) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    engine.transmit(now, &mut out);
    let mut answers = Vec::new();
    for t in &out {
        let packet = [t.header.as_bytes(), engine.payload(t).unwrap()].concat();
        let to = model.receive(&packet, false).into_iter();
        answers.extend(to.filter(|(rank, _)| *rank == t.header.rank).map(|(_, packet)| packet));
    }
    answers
}

fn is(packet: &[u8], kind: Kind) -> bool {
    Header::parse(packet).unwrap().0.kind() == Some(kind)
}

#[test]
fn a_status_of_an_earlier_round_says_nothing() {
    let job = job(vec![16]);
    let layout = Layout::new(job.dtype, [16], 64, 1).unwrap();
    let mut model = Model::new(job.dtype, job.op, 2, layout, 64);
    let mut engines: Vec<_> = (0..2).map(|r| Engine::new(config(&job, r, &model))).collect();
    let mut old: Vec<Vec<u8>> = Vec::new();
    for round in 0..3u64 {
        let now = 1 + round * SECOND;
        for (rank, engine) in engines.iter_mut().enumerate() {
            let data = input(&job, rank, round as u32, 0);
            engine.submit(now, round, vec![(0, data)]).unwrap();
        }
        let held = exchange(&mut engines[0], &mut model, now);
        // The PUSH is on its way: the STATUS of rounds before must not make it held or done.
        for packet in &old {
            engines[0].receive(now, packet, false);
        }
        assert_eq!(engines[0].diagnose(now, round).unwrap().delivered, 0);
        assert!(is(&held[0], Kind::Status));
        old.extend(held);
        for packet in exchange(&mut engines[1], &mut model, now) {
            engines[1].receive(now, &packet, false);
        }
        // Rank 0 asks again and gets the result that it was not sent.
        let mut time = now;
        while engines[0].completed().is_none() {
            time += 20 * MILLISECOND;
            engines[0].tick(time);
            for packet in exchange(&mut engines[0], &mut model, time) {
                engines[0].receive(time, &packet, false);
            }
        }
    }
}

#[test]
fn a_doubled_status_does_not_repeat_a_repeat() {
    let job = job(vec![16]);
    let layout = Layout::new(job.dtype, [16], 64, 1).unwrap();
    let mut model = Model::new(job.dtype, job.op, 1, layout, 64);
    let mut engine = Engine::new(config(&job, 0, &model));
    engine.submit(1, 0, vec![(0, input(&job, 0, 0, 0))]).unwrap();
    let answers = exchange(&mut engine, &mut model, 1);
    let done = answers.iter().find(|p| is(p, Kind::Status)).unwrap();
    engine.receive(2, done, false);
    engine.tick(20 * MILLISECOND);
    let result = exchange(&mut engine, &mut model, 20 * MILLISECOND);
    assert_eq!(engine.stats().resent, 1);
    for time in [21, 40, 60] {
        engine.receive(time * MILLISECOND, done, false);
        engine.tick(time * MILLISECOND);
        exchange(&mut engine, &mut model, time * MILLISECOND);
    }
    assert_eq!(engine.stats().resent, 1);
    engine.receive(61 * MILLISECOND, &result[0], false);
    assert!(engine.completed().is_some());
}

fn weathers(world: usize) -> impl Strategy<Value = Weather> {
    let ms = MILLISECOND;
    (
        any::<u64>(),
        prop_oneof![Just(0.0), 0.0..0.25],
        prop_oneof![Just(0.0), 0.0..0.2],
        0..2 * ms,
        prop_oneof![Just(0), 0..3 * ms],
        prop_oneof![Just(0), 0..20 * ms],
        prop_oneof![Just(0.0), 0.0..0.2],
        proptest::collection::vec(prop_oneof![Just(0), 0..SECOND], world),
    )
        .prop_map(|(seed, loss, doubling, delay, jitter, nap, marks, starts)| Weather {
            seed,
            loss,
            doubling,
            delay,
            jitter,
            nap,
            marks,
            starts,
        })
}

prop_compose! {
    fn jobs()(
        dtype in proptest::sample::select(&DType::ALL[..]),
        op in proptest::sample::select(&Op::ALL[..]),
        sizes in proptest::collection::vec(prop_oneof![0u64..40, 0u64..6000], 1..6),
        shards in 1u16..4,
        credit in prop_oneof![1u16..5, 5u16..300],
        rounds in 1u32..4,
        together: bool,
        multicast: bool,
    ) -> Job {
        Job { dtype, op, sizes, chunk_bytes: 64, shards, credit, rounds, together, multicast }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn it_always_ends_with_the_exact_sums(
        job in jobs(),
        weather in (1usize..5).prop_flat_map(weathers),
    ) {
        let calm = weather.loss == 0.0 && weather.jitter == 0;
        let end = Sim::new(job, weather).run();
        let end = end.map_err(TestCaseError::fail)?;
        if calm {
            prop_assert!(end.stats.iter().all(|s| s.resent == 0), "{:?}", end.stats);
        }
    }

    #[test]
    fn nothing_from_the_network_panics_or_is_believed(
        packets in proptest::collection::vec(
            (
                0u8..9, any::<u8>(), 0u32..12, 0u16..3, prop_oneof![0u32..3, any::<u32>()],
                prop_oneof![0u64..40, any::<u64>()],
                prop_oneof![Just(64usize), Just(144), Just(4), 0usize..300],
                any::<u64>(), any::<bool>(),
            ),
            0..200,
        ),
    ) {
        let job = job(vec![160, 5]);
        let layout = Layout::new(job.dtype, [160, 5], 64, 2).unwrap();
        let model = Model::new(job.dtype, job.op, 3, layout, 64);
        let mut engine = Engine::new(config(&job, 0, &model));
        engine.submit(1, 9, vec![(0, input(&job, 0, 0, 0)), (1, input(&job, 0, 0, 1))]).unwrap();
        let mut out = Vec::new();
        let mut now = 1;
        engine.transmit(now, &mut out);
        for (kind, flags, chunk, tensor, round, stamp, len, seed, stranger) in packets {
            let mut header = Header::new(Kind::Push);
            header.kind = kind;
            header.flags = flags;
            header.job = JOB.into();
            header.cookie = (model.cookies[0] + u32::from(stranger)).into();
            header.chunk = chunk.into();
            header.tensor = tensor.into();
            header.round = round.into();
            header.stamp = ((1 << 40) + stamp % (1 << 62)).into();
            header.length = (len as u16).into();
            let mut rng = Rng(seed);
            let body: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
            now += rng.below(20 * MILLISECOND);
            engine.receive(now, &[header.as_bytes(), &body].concat(), flags & 1 == 1);
            engine.receive(now, &body, flags & Flags::RESENT != 0);
            engine.tick(now);
            out.clear();
            engine.transmit(now, &mut out);
            for t in &out {
                let _ = engine.payload(t);
            }
            let _ = engine.diagnose(now, 9);
        }
    }
}
