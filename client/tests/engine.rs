//! The engine against the model box through a network that loses, doubles and reorders, all of it
//! in simulated time: the same seed gives the same run.

mod model;

use gradbox_client::engine::{Config, Engine, MILLISECOND, Transmit};
use gradbox_client::{Stats, Tensor};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Flags, Header, Kind, Op};
use model::{JOB, Model, Rng, combine};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use zerocopy::IntoBytes;

/// Chances of the simulated network.
trait Chance {
    /// Below `n`; 0 for 0.
    fn below(&mut self, n: u64) -> u64;
    fn chance(&mut self, p: f64) -> bool;
}

impl Chance for Rng {
    fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    fn chance(&mut self, p: f64) -> bool {
        (self.next() >> 11) as f64 / ((1u64 << 53) as f64) < p
    }
}

const SECOND: u64 = 1000 * MILLISECOND;

/// What the network and the workers do.
#[derive(Clone, Debug)]
struct Weather {
    seed: u64,
    loss: f64,
    doubling: f64,
    /// One way, in nanoseconds; each packet takes between this and this plus `jitter`.
    delay: u64,
    jitter: u64,
    /// Longest time that a worker's thread sleeps through, in nanoseconds.
    nap: u64,
    /// Share of packets to the box that a router marks.
    marks: f64,
    /// By rank: when it starts.
    starts: Vec<u64>,
}

impl Weather {
    fn fair(world: usize) -> Self {
        let (seed, delay) = (1, MILLISECOND / 20);
        let starts = vec![0; world];
        Self { seed, loss: 0.0, doubling: 0.0, delay, jitter: 0, nap: 0, marks: 0.0, starts }
    }
}

/// What is reduced.
#[derive(Clone, Debug)]
struct Job {
    dtype: DType,
    op: Op,
    sizes: Vec<u64>,
    chunk_bytes: u16,
    shards: u16,
    credit: u16,
    rounds: u32,
    /// All tensors in one call, or each in its own.
    together: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ToBox(Vec<u8>, bool),
    ToWorker(usize, Vec<u8>),
    Run(usize),
}

struct Peer {
    engine: Engine,
    inbox: Vec<Vec<u8>>,
    run_at: u64,
    /// Tensors of the round that are back.
    back: Vec<(u16, Tensor)>,
    round: u32,
    started: bool,
    first_sent: Option<u64>,
    delivered: u64,
}

/// What came out, by rank.
struct End {
    stats: Vec<Stats>,
    first_sent: Vec<u64>,
    delivered: Vec<u64>,
    finished: u64,
}

struct Sim {
    job: Job,
    weather: Weather,
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    peers: Vec<Peer>,
    model: Model,
}

fn input(job: &Job, rank: usize, round: u32, tensor: usize) -> Tensor {
    let mut rng = Rng((rank as u64) << 40 | u64::from(round) << 20 | tensor as u64);
    let mut t = Tensor::zeros(job.dtype, job.sizes[tensor] as usize);
    match &mut t {
        Tensor::F32(v) => v.fill_with(|| (rng.next() as i32 as f32) * 1e-3),
        Tensor::F16(v) => v.fill_with(|| half::f16::from_f32(rng.next() as i16 as f32 * 1e-2)),
        Tensor::Bf16(v) => v.fill_with(|| half::bf16::from_f32(rng.next() as i32 as f32)),
        Tensor::I32(v) => v.fill_with(|| rng.next() as i32),
    }
    t
}

fn expected(job: &Job, world: usize, round: u32, tensor: usize) -> Vec<u8> {
    let inputs: Vec<Tensor> = (0..world).map(|r| input(job, r, round, tensor)).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
    combine(job.dtype, job.op, &inputs)
}

fn config(job: &Job, rank: usize, model: &Model) -> Config {
    Config {
        job: JOB,
        rank: rank as u8,
        cookie: model.cookies[rank],
        layout: model.layout.clone(),
        credit: job.credit,
        receive_packets: 3000,
        stamp_base: 1 << 40,
    }
}

impl Sim {
    fn new(job: Job, weather: Weather) -> Self {
        let layout =
            Layout::new(job.dtype, job.sizes.iter().copied(), job.chunk_bytes, job.shards).unwrap();
        let world = weather.starts.len();
        let model = Model::new(job.dtype, job.op, world as u8, layout, job.credit);
        let peers = (0..world).map(|rank| Peer {
            engine: Engine::new(config(&job, rank, &model)),
            inbox: Vec::new(),
            run_at: weather.starts[rank],
            back: Vec::new(),
            round: 0,
            started: false,
            first_sent: None,
            delivered: 0,
        });
        let peers = peers.collect();
        let rng = Rng(weather.seed);
        let mut sim = Self { job, rng, events: BinaryHeap::new(), order: 0, peers, model, weather };
        for rank in 0..world {
            sim.at(sim.weather.starts[rank], Event::Run(rank));
        }
        sim
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    fn travel(&mut self, now: u64, event: impl Fn(&mut Rng) -> Event) {
        if self.rng.chance(self.weather.loss) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.weather.doubling));
        for _ in 0..copies {
            let time = now + self.weather.delay + self.rng.below(self.weather.jitter);
            let event = event(&mut self.rng);
            self.at(time, event);
        }
    }

    fn run(mut self) -> Result<End, String> {
        let world = self.peers.len();
        let mut finished = 0;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now > 3600 * SECOND {
                return Err("an hour has passed".into());
            }
            match event {
                Event::ToBox(packet, marked) => {
                    for (rank, packet) in self.model.receive(&packet, marked) {
                        let rank = usize::from(rank);
                        self.travel(now, |_| Event::ToWorker(rank, packet.clone()));
                    }
                }
                Event::ToWorker(rank, packet) => {
                    self.peers[rank].inbox.push(packet);
                    let time = now + self.rng.below(self.weather.nap);
                    if time < self.peers[rank].run_at {
                        self.peers[rank].run_at = time;
                        self.at(time, Event::Run(rank));
                    }
                }
                Event::Run(rank) if self.peers[rank].run_at == now => self.turn(now, rank)?,
                Event::Run(_) => {}
            }
            if self.peers.iter().all(|p| p.started && p.round == self.job.rounds) {
                finished = now;
                break;
            }
        }
        if !self.peers.iter().all(|p| p.round == self.job.rounds) {
            return Err(format!("{world} workers have nothing to wait for and are not done"));
        }
        Ok(End {
            stats: self.peers.iter().map(|p| p.engine.stats()).collect(),
            first_sent: self.peers.iter().map(|p| p.first_sent.unwrap_or(0)).collect(),
            delivered: self.peers.iter().map(|p| p.delivered).collect(),
            finished,
        })
    }

    fn submit(&mut self, now: u64, rank: usize) {
        let round = self.peers[rank].round;
        let mut tensors: Vec<(u16, Tensor)> = (0..self.job.sizes.len())
            .map(|t| (t as u16, input(&self.job, rank, round, t)))
            .collect();
        // Not in order of the table, and not the same on every rank.
        if self.weather.seed.wrapping_add(rank as u64).is_multiple_of(2) {
            tensors.reverse();
        }
        let engine = &mut self.peers[rank].engine;
        let base = u64::from(round) << 32;
        if self.job.together {
            engine.submit(now, base, tensors).unwrap();
        } else {
            for (i, tensor) in tensors.into_iter().enumerate() {
                engine.submit(now, base + i as u64, vec![tensor]).unwrap();
            }
        }
    }

    fn turn(&mut self, now: u64, rank: usize) -> Result<(), String> {
        if !self.peers[rank].started {
            self.peers[rank].started = true;
            self.submit(now, rank);
        }
        let peer = &mut self.peers[rank];
        for packet in std::mem::take(&mut peer.inbox) {
            peer.engine.receive(now, &packet, false);
        }
        while let Some(done) = peer.engine.completed() {
            peer.first_sent.get_or_insert(done.report.first_sent_ns);
            peer.delivered = done.report.delivered_ns;
            peer.back.extend(done.tensors);
        }
        if peer.back.len() == self.job.sizes.len() && peer.round < self.job.rounds {
            let round = peer.round;
            peer.round += 1;
            for (tensor, data) in std::mem::take(&mut peer.back) {
                let tensor = usize::from(tensor);
                let world = self.weather.starts.len();
                if data.bytes() != expected(&self.job, world, round, tensor) {
                    return Err(format!("rank {rank} round {round} tensor {tensor} differs"));
                }
            }
            if self.peers[rank].round < self.job.rounds {
                self.submit(now, rank);
            }
        }
        let peer = &mut self.peers[rank];
        peer.engine.tick(now);
        let mut out = Vec::new();
        peer.engine.transmit(now, &mut out);
        let bytes = |e: &Engine, t: &Transmit| {
            e.payload(t).map(|payload| [t.header.as_bytes(), payload].concat())
        };
        let packets: Vec<_> = out.iter().filter_map(|t| bytes(&peer.engine, t)).collect();
        let more = !packets.is_empty();
        for packet in packets {
            let marks = self.weather.marks;
            self.travel(now, |rng| Event::ToBox(packet.clone(), rng.chance(marks)));
        }
        let peer = &mut self.peers[rank];
        // Empty tensors end at once, and a turn sends only so much.
        let again =
            more || (peer.round < self.job.rounds && peer.back.len() == self.job.sizes.len());
        let next = if again { Some(now + 1000) } else { peer.engine.next_tick() };
        let next = next.map(|at| at.max(now + 1) + self.rng.below(self.weather.nap));
        peer.run_at = next.unwrap_or(u64::MAX);
        if let Some(next) = next {
            self.at(next, Event::Run(rank));
        }
        Ok(())
    }
}

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
    }
}

#[test]
fn in_step_without_loss_nothing_is_sent_twice() {
    let mut job = job(vec![40_000, 3, 20_000, 0, 16]);
    job.rounds = 3;
    let end = Sim::new(job, Weather::fair(4)).run().unwrap();
    for stats in end.stats {
        assert_eq!((stats.resent, stats.duplicates, stats.losses, stats.stale), (0, 0, 0, 0));
        assert_eq!(stats.results, stats.pushed);
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
    let mut weather = Weather::fair(3);
    weather.loss = 0.01;
    weather.starts[1] = SECOND;
    let end = Sim::new(job(vec![16 * 20_000]), weather).run().unwrap();
    for stats in &end.stats {
        assert!(stats.resent > 100 && stats.resent < 1000, "{stats:?}");
    }
    assert!(end.finished < 4 * SECOND, "{} ms", end.finished / MILLISECOND);
}

#[test]
fn marks_slow_down_without_repeats() {
    let mut weather = Weather::fair(2);
    weather.marks = 0.05;
    let end = Sim::new(job(vec![16 * 5000]), weather).run().unwrap();
    for stats in &end.stats {
        assert_eq!(stats.resent, 0);
        assert!(stats.congestion > 50);
        assert!(stats.window < 64, "{stats:?}");
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
    ) -> Job {
        Job { dtype, op, sizes, chunk_bytes: 64, shards, credit, rounds, together }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

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
