//! Engines and the model box in one simulated network and time: the same seed gives the same run.

use crate::model::{JOB, Model, Rng, combine};
use gradbox_client::engine::{Config, Engine, MILLISECOND, Transmit};
use gradbox_client::{Stats, Tensor};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Op};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use zerocopy::IntoBytes;

/// Chances of the simulated network.
pub(crate) trait Chance {
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

pub(crate) const SECOND: u64 = 1000 * MILLISECOND;

/// What the network and the workers do.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) seed: u64,
    pub(crate) loss: f64,
    pub(crate) doubling: f64,
    /// One way, in nanoseconds; each packet takes between this and this plus `jitter`.
    pub(crate) delay: u64,
    pub(crate) jitter: u64,
    /// Longest time that a worker's thread sleeps through, in nanoseconds.
    pub(crate) nap: u64,
    /// Share of packets to the box that a router marks.
    pub(crate) marks: f64,
    /// By rank: when it starts.
    pub(crate) starts: Vec<u64>,
}

impl Weather {
    pub(crate) fn fair(world: usize) -> Self {
        let (seed, delay) = (1, MILLISECOND / 20);
        let starts = vec![0; world];
        Self { seed, loss: 0.0, doubling: 0.0, delay, jitter: 0, nap: 0, marks: 0.0, starts }
    }
}

/// What is reduced.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    pub(crate) sizes: Vec<u64>,
    pub(crate) chunk_bytes: u16,
    pub(crate) shards: u16,
    pub(crate) credit: u16,
    pub(crate) rounds: u32,
    /// All tensors in one call, or each in its own.
    pub(crate) together: bool,
    /// One result for all ranks, which each may lose.
    pub(crate) multicast: bool,
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
pub(crate) struct End {
    pub(crate) stats: Vec<Stats>,
    pub(crate) first_sent: Vec<u64>,
    pub(crate) delivered: Vec<u64>,
    pub(crate) finished: u64,
}

pub(crate) struct Sim {
    job: Job,
    weather: Weather,
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    peers: Vec<Peer>,
    model: Model,
}

pub(crate) fn input(job: &Job, rank: usize, round: u32, tensor: usize) -> Tensor {
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

pub(crate) fn config(job: &Job, rank: usize, model: &Model) -> Config {
    Config {
        job: JOB,
        rank: rank as u8,
        cookie: model.cookies[rank],
        group_cookie: model.group_cookie,
        layout: model.layout.clone(),
        credit: job.credit,
        receive_packets: 3000,
        stamp_base: 1 << 40,
    }
}

impl Sim {
    pub(crate) fn new(job: Job, weather: Weather) -> Self {
        let layout =
            Layout::new(job.dtype, job.sizes.iter().copied(), job.chunk_bytes, job.shards).unwrap();
        let world = weather.starts.len();
        let mut model = Model::new(job.dtype, job.op, world as u8, layout, job.credit);
        model.group_cookie = job.multicast.then_some(0xa11);
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

    pub(crate) fn run(mut self) -> Result<End, String> {
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
        let mut submitted = !self.peers[rank].started;
        if submitted {
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
            submitted = self.peers[rank].round < self.job.rounds;
            if submitted {
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
        // Empty tensors end at once, without a packet, and a turn sends only so much.
        let again = more || submitted;
        let next = if again { Some(now + 1000) } else { peer.engine.next_tick() };
        let next = next.map(|at| at.max(now + 1) + self.rng.below(self.weather.nap));
        peer.run_at = next.unwrap_or(u64::MAX);
        if let Some(next) = next {
            self.at(next, Event::Run(rank));
        }
        Ok(())
    }
}
