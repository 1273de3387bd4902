//! `step()` as it runs in the box: the real core on the `mem` port, with the wire moved by hand.
//!
//! The wire's part is not timed. It puts a burst of packets into the RX ring, then the core steps
//! until it has served them all, which is timed as one; then the wire takes the answers. Payload
//! is what lies in the frames anyway: the wire writes headers alone, but for the chunks of a
//! sample, which get true values and whose every result is compared with the reference.

mod setup;

use crate::samples::Spread;
use gradbox::dataplane::core::Core;
use gradbox::dataplane::counters::Counter;
use gradbox::dataplane::handle::{Command, CoreHandle};
use gradbox::dataplane::job::JobTable;
use gradbox::dataplane::mem::{self, MemPort, MemWire};
use gradbox::dataplane::plan::{JobPlan, Member};
use gradbox::dataplane::steer::Steering;
use gradbox::sum;
use gradbox_protocol::envelope::{self, Endpoint, Link, SHORTEST};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{DType, HEADER_LEN, Header, Kind, Op, STATUS_CHUNKS};
pub use setup::{Order, Setup, WorkingSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a packet before the gradient.
const HEAD: usize = SHORTEST + HEADER_LEN;

/// One chunk in so many is a sample that is written and verified.
const SAMPLE: u32 = 61;

/// A box of one core, and its workers.
pub struct Bench {
    setup: Setup,
    arrivals: Arc<[(u32, u8)]>,
    round: u32,
    times: Vec<Duration>,
    core: Core,
    port: MemPort,
    wire: MemWire,
    heads: Vec<[u8; HEAD]>,
    sampled: Vec<Vec<u8>>,
    expected: Vec<u8>,
    verified: u64,
}

/// Packets between two looks of the wire at most.
const MAX_BURST: usize = 8192;

/// QUERYs of one sample.
const QUERIES: u32 = 64;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Nanoseconds for each packet received: its share of the sum and its answer included.
    pub ns_per_packet: Spread,
    /// Gradient bits received per nanosecond.
    pub gbps: f64,
    /// Results whose bits were compared.
    pub verified: u64,
}

/// Runs the core through `rounds` rounds, after two that are not timed.
///
/// # Panics
/// Where there is no memory, a packet is lost, or a result is wrong.
#[must_use]
pub fn measure(setup: Setup, rounds: u32) -> Outcome {
    let mut bench = Bench::new(setup);
    let mut times: Vec<Vec<f64>> = Vec::new();
    for _ in 0..2 {
        bench.round();
    }
    for _ in 0..rounds {
        times.resize_with(bench.round().len(), Vec::new);
        for (times, time) in times.iter_mut().zip(&bench.times) {
            times.push(time.as_nanos() as f64);
        }
    }
    bench.finish();
    // The same burst of every round does the same work, so each has a median of its own: one
    // that another process broke into does not spoil its round.
    let mut round = Spread::default();
    for times in &mut times {
        round += Spread::of(times);
    }
    let ns_per_packet = round.scaled(1.0 / bench.arrivals.len() as f64);
    let gbps = f64::from(setup.chunk_bytes) * 8.0 / ns_per_packet.median;
    Outcome { ns_per_packet, gbps, verified: bench.verified }
}

/// Nanoseconds of one QUERY and its STATUS of 512 slots.
///
/// # Panics
/// Where there is no memory, or a STATUS is wrong.
#[must_use]
pub fn measure_status(samples: usize) -> Spread {
    let setup = Setup::new(4, DType::F32, 1408, WorkingSet::L3, Order::Async);
    let mut bench = Bench::new(setup);
    bench.round();
    let mut times: Vec<f64> =
        (0..samples).map(|_| bench.queries().as_nanos() as f64 / f64::from(QUERIES)).collect();
    Spread::of(&mut times)
}

/// Chunk and rank of each packet of a round.
fn arrivals(s: Setup) -> impl Iterator<Item = (u32, u8)> {
    (0..s.chunks).step_by(s.window as usize).flat_map(move |first| {
        let last = (first + s.window).min(s.chunks);
        (0..s.world as u8).flat_map(move |rank| (first..last).map(move |chunk| (chunk, rank)))
    })
}

impl Bench {
    /// A box with its job.
    ///
    /// # Panics
    /// Where there is no memory.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let Setup { world, dtype, chunk_bytes, chunks, ring, .. } = setup;
        let elements = u64::from(chunks) * u64::from(chunk_bytes) / dtype.size() as u64;
        let layout = Layout::new(dtype, [elements], chunk_bytes, 1).expect("layout");
        let source = |rank: usize| SocketAddr::from(([10, 0, 0, rank as u8 + 16], 40_000));
        let members = (0..world)
            .map(|r| Member { source: Endpoint::from(source(r)), cookie: 7 + r as u32 })
            .collect();
        let plan = Arc::new(JobPlan { id: 1, dtype, op: Op::Sum, layout, members, group: None });
        let frame_bytes = if usize::from(chunk_bytes) + HEAD > 1700 { 4096 } else { 2048 };
        let frames = chunks * (world as u32 + 1) + 2 * ring;
        let (port, wire, pool) = mem::pair(frames, frame_bytes, ring).expect("memory");
        let (handle, link) = CoreHandle::new(0, None, 0, frame_bytes as u64);
        let steering = Steering::new(1).expect("event descriptors").remove(0);
        let core = Core::new(0, pool, steering, link, false);
        let (table, _) = JobTable::new(plan.clone(), 0, 64).expect("a kernel");
        handle.send(Command::Add(table)).expect("room");
        let heads = (0..world).map(|r| head(&plan, r as u8, source(r))).collect();
        let sampled: Vec<Vec<u8>> =
            (0..world).map(|r| values(dtype, r, usize::from(chunk_bytes))).collect();
        let mut expected = vec![0; usize::from(chunk_bytes)];
        let inputs: Vec<&[u8]> = sampled.iter().map(Vec::as_slice).collect();
        sum::reference(dtype, Op::Sum, &inputs, &mut expected);
        let mut bench = Self {
            setup,
            arrivals: arrivals(setup).collect(),
            round: 0,
            times: Vec::new(),
            core,
            port,
            wire,
            heads,
            sampled,
            expected,
            verified: 0,
        };
        // Takes the job in and fills the fill ring.
        bench.core.step(&mut bench.port, 0);
        bench
    }

    /// Packets of a round.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.arrivals.len()
    }

    /// Runs one round, and returns how long each of its bursts took the core.
    ///
    /// # Panics
    /// Where a packet is lost or a result is wrong.
    pub fn round(&mut self) -> &[Duration] {
        let arrivals = self.arrivals.clone();
        let burst = (self.setup.ring as usize / self.setup.world).clamp(1, MAX_BURST);
        self.times.clear();
        for burst in arrivals.chunks(burst) {
            for &(chunk, rank) in burst {
                self.send(Kind::Push, chunk, rank);
            }
            let time = self.serve(burst.len());
            self.times.push(time);
            while self.take().is_some() {}
        }
        self.round += 1;
        &self.times
    }

    /// Puts one packet on the wire.
    fn send(&mut self, kind: Kind, chunk: u32, rank: u8) {
        let head = &self.heads[usize::from(rank)];
        let body = chunk.is_multiple_of(SAMPLE).then_some(&self.sampled[usize::from(rank)]);
        let (round, len) = (self.round, HEAD + usize::from(self.setup.chunk_bytes));
        let sent = self.wire.send(|room| {
            room[..HEAD].copy_from_slice(head);
            if let Ok((h, payload)) = Header::mut_from_prefix(&mut room[SHORTEST..]) {
                h.kind = kind as u8;
                h.round = round.into();
                h.chunk = chunk.into();
                if let Some(body) = body {
                    payload[..body.len()].copy_from_slice(body);
                }
            }
            len
        });
        assert!(sent, "the wire has no frame");
    }

    /// Lets the core serve all packets that are there. Returns how long that took.
    fn serve(&mut self, packets: usize) -> Duration {
        let mut served = 0;
        let start = Instant::now();
        while served < packets {
            served += self.core.step(&mut self.port, self.round);
        }
        start.elapsed()
    }

    /// Asks for the STATUS of the first 512 chunks, [`QUERIES`] times. Returns how long the core
    /// took to answer.
    fn queries(&mut self) -> Duration {
        for _ in 0..QUERIES {
            self.send(Kind::Query, 0, 1);
        }
        let time = self.serve(QUERIES as usize);
        let mut answers = 0;
        while let Some(done) = self.wire.receive(|packet| {
            let (h, body) = Header::ref_from_prefix(&packet[SHORTEST..]).expect("a header");
            assert_eq!(h.kind(), Some(Kind::Status));
            let status = StatusBody::parse(body).expect("a status");
            assert_eq!(usize::from(status.count.get()), STATUS_CHUNKS);
            // All chunks are done by the same number of rounds, and none is held.
            assert_eq!(status.held, [0; STATUS_CHUNKS / 8]);
            status.done
        }) {
            let all = if self.round.is_multiple_of(2) { 0 } else { 0xff };
            assert_eq!(done, [all; STATUS_CHUNKS / 8]);
            answers += 1;
        }
        assert_eq!(answers, QUERIES);
        time
    }

    /// Takes one answer, and verifies it where it is of the sample.
    fn take(&mut self) -> Option<()> {
        let (round, expected) = (self.round, &self.expected);
        let of_sample = self.wire.receive(|packet| {
            let (h, body) = Header::ref_from_prefix(&packet[SHORTEST..]).expect("a header");
            assert_eq!((h.kind(), h.round.get()), (Some(Kind::Result), round));
            let of_sample = h.chunk.get().is_multiple_of(SAMPLE);
            assert!(!of_sample || body == expected, "a result is wrong");
            of_sample
        })?;
        self.verified += u64::from(of_sample);
        Some(())
    }

    /// Checks that nothing was lost or refused.
    ///
    /// # Panics
    /// Where something was.
    pub fn finish(&self) {
        let (s, rounds) = (&self.setup, u64::from(self.round));
        let counters = self.core.counters();
        assert_eq!(counters.get(Counter::Completed), u64::from(s.chunks) * rounds);
        let of_sample = u64::from(s.chunks.div_ceil(SAMPLE)) * s.world as u64;
        assert_eq!(self.verified, of_sample * rounds);
        assert!(self.core.frames(&self.port).balanced());
    }
}

/// The headers of a rank's packets.
fn head(plan: &JobPlan, rank: u8, from: SocketAddr) -> [u8; HEAD] {
    let len = plan.layout.chunk_bytes();
    let mut packet = vec![0; HEAD + usize::from(len)];
    let link = Link { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 1, rank], vlan: None };
    let to = SocketAddr::from(([10, 0, 0, 1], 9100));
    envelope::write(&mut packet, &link, from, to, HEADER_LEN + usize::from(len)).expect("fits");
    let mut h = Header::new(Kind::Push);
    h.job = plan.id.into();
    h.rank = rank;
    h.cookie = plan.members[usize::from(rank)].cookie.into();
    h.length = len.into();
    packet[SHORTEST..HEAD].copy_from_slice(h.as_bytes());
    *packet.first_chunk().expect("longer than its head")
}

/// `len` bytes of small numbers, different for each rank.
fn values(dtype: DType, rank: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for i in 0..len / dtype.size() {
        let value = ((i * 37 + rank * 11) % 251) as f32 / 16.0 - 7.0;
        match dtype {
            DType::F32 => bytes.extend(value.to_le_bytes()),
            DType::I32 => bytes.extend((value as i32).to_le_bytes()),
            // The upper half of binary32 is bfloat16; as binary16 it is a number as well.
            DType::Bf16 | DType::F16 => bytes.extend(&value.to_le_bytes()[2..]),
        }
    }
    bytes
}
