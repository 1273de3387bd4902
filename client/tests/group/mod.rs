//! What an engine believes of a RESULT that is for all ranks.

use crate::model::{JOB, Model, Rng};
use crate::sim::{Chance, Job, SECOND, Sim, Weather, config, input};
use gradbox_client::engine::{Engine, MILLISECOND};
use gradbox_protocol::header::GROUP_RANK;
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Flags, Header, Kind, Op};
use zerocopy::{FromBytes, IntoBytes};

fn job() -> Job {
    Job {
        dtype: DType::F32,
        op: Op::Sum,
        sizes: vec![16],
        chunk_bytes: 64,
        shards: 1,
        credit: 64,
        rounds: 1,
        together: true,
        multicast: true,
    }
}

/// A job of one rank that has pushed its only chunk, and the RESULT that the box has for it.
fn pushed(group_cookie: Option<u32>) -> (Engine, Vec<u8>) {
    let job = job();
    let layout = Layout::new(job.dtype, [16], 64, 1).unwrap();
    let mut model = Model::new(job.dtype, job.op, 1, layout, 64);
    model.group_cookie = group_cookie;
    let mut engine = Engine::new(config(&job, 0, &model));
    engine.submit(1, 0, vec![(0, input(&job, 0, 0, 0))]).unwrap();
    let mut out = Vec::new();
    engine.transmit(1, &mut out);
    model.group_cookie = Some(7);
    let push = [out[0].header.as_bytes(), engine.payload(&out[0]).unwrap()].concat();
    let (_, result) = model.receive(&push, false).remove(0);
    (engine, result)
}

fn header(packet: &mut [u8]) -> &mut Header {
    Header::mut_from_prefix(packet).unwrap().0
}

#[test]
fn it_ends_the_round() {
    let (mut engine, result) = pushed(Some(7));
    engine.receive(2, &result, false);
    assert!(engine.completed().is_some());
    assert_eq!((engine.stats().results, engine.stats().multicast), (1, 1));
    // There is no sample of the round trip in it.
    assert_eq!(engine.stats().rtt_ns, 0);
    engine.receive(3, &result, false);
    assert_eq!(engine.stats().duplicates, 1);
}

#[test]
fn only_with_the_groups_cookie_and_no_stamp() {
    let wrong: [fn(&mut Header); 6] = [
        |h| h.cookie = 8.into(),
        |h| h.stamp = (1 << 40).into(),
        |h| h.job = (JOB + 1).into(),
        |h| h.kind = Kind::Status as u8,
        |h| h.rank = GROUP_RANK - 1,
        |h| h.round = 1.into(),
    ];
    for (i, change) in wrong.into_iter().enumerate() {
        let (mut engine, mut result) = pushed(Some(7));
        change(header(&mut result));
        engine.receive(2, &result, false);
        assert!(engine.completed().is_none(), "change {i}");
        assert_eq!(engine.stats().stale, 1, "change {i}");
    }
}

#[test]
fn only_in_a_job_that_has_a_group() {
    let (mut engine, result) = pushed(None);
    engine.receive(2, &result, false);
    assert!(engine.completed().is_none());
    assert_eq!((engine.stats().stale, engine.stats().multicast), (1, 0));
}

#[test]
fn it_may_come_by_unicast_as_well() {
    let (mut engine, mut result) = pushed(Some(7));
    let stamp = (1 << 40) + 1;
    let h = header(&mut result);
    (h.rank, h.cookie, h.stamp) = (0, 0xc00c_1e00.into(), stamp.into());
    engine.receive(2, &result, false);
    assert!(engine.completed().is_some());
    assert_eq!((engine.stats().results, engine.stats().multicast), (1, 0));
}

#[test]
fn congestion_halves_the_window_though_there_is_no_stamp() {
    for (flags, marked) in [(Flags::CONGESTION, false), (0, true)] {
        let (mut engine, mut result) = pushed(Some(7));
        header(&mut result).flags = flags;
        let before = engine.stats().window;
        engine.receive(2, &result, marked);
        assert_eq!((engine.stats().window, engine.stats().congestion), (before / 2, 1));
    }
}

#[test]
fn a_worker_that_none_of_them_reaches_gets_all_sums() {
    let sizes = vec![16 * 500];
    let layout = Layout::new(DType::F32, sizes.iter().copied(), 64, 1).unwrap();
    let job = Job { sizes, ..job() };
    let mut model = Model::new(job.dtype, job.op, 1, layout, 64);
    model.group_cookie = Some(7);
    let mut engine = Engine::new(config(&job, 0, &model));
    engine.submit(1, 0, vec![(0, input(&job, 0, 0, 0))]).unwrap();
    let (mut now, mut out) = (1, Vec::new());
    while engine.completed().is_none() {
        assert!(now < 600 * SECOND, "{:?}", engine.stats());
        now += MILLISECOND;
        engine.tick(now);
        out.clear();
        engine.transmit(now, &mut out);
        for t in &out {
            let Some(payload) = engine.payload(t) else { continue };
            let packet = [t.header.as_bytes(), payload].concat();
            for (_, answer) in model.receive(&packet, false) {
                if Header::parse(&answer).unwrap().0.rank != GROUP_RANK {
                    engine.receive(now, &answer, false);
                }
            }
        }
    }
    assert_eq!((engine.stats().results, engine.stats().multicast), (500, 0));
}

/// Every rank loses its own copy of a result; nothing else is worse than with unicast.
#[test]
fn any_weather_ends_with_exact_sums() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let weather = Weather {
            seed,
            loss: rng.below(25) as f64 / 100.0,
            doubling: rng.below(20) as f64 / 100.0,
            jitter: rng.below(3 * MILLISECOND),
            ..Weather::fair(1 + rng.below(4) as usize)
        };
        let sizes = vec![rng.below(6000), rng.below(40)];
        let job = Job { sizes, shards: 1 + rng.below(3) as u16, rounds: 2, ..job() };
        if let Err(error) = Sim::new(job, weather).run() {
            panic!("seed {seed}: {error}");
        }
    }
}
