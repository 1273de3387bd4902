//! `step()` as it runs in the box: the real core on the `mem` port, with the wire moved by hand.
//!
//! The wire's part is not timed. It puts a burst of packets into the RX ring, then the core steps
//! until it has served them all, which is timed as one; then the wire takes the answers. Payload
//! is what lies in the frames anyway: the wire writes headers alone, but for the chunks of a
//! sample, which get true values and whose every result is compared with the reference.

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
use gradbox_protocol::{DType, HEADER_LEN, Header, Kind, Op};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a packet before the gradient.
const HEAD: usize = SHORTEST + HEADER_LEN;

/// One chunk in so many is a sample that is written and verified.
const SAMPLE: u32 = 61;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Ranks of the job.
    pub world: usize,
    /// Element type.
    pub dtype: DType,
    /// Payload bytes of a packet.
    pub chunk_bytes: u16,
    /// Chunks of the job.
    pub chunks: u32,
    /// Chunks that a rank sends before it is the next one's turn; `chunks` is fully asynchronous.
    pub window: u32,
    /// Entries of the rings, the fill ring's included: packets in a burst are as many over world.
    pub ring: u32,
    /// Rounds that are timed, after two that are not.
    pub rounds: u32,
}

/// A box of one core, and its workers.
struct Bench {
    setup: Setup,
    core: Core,
    port: MemPort,
    wire: MemWire,
    heads: Vec<[u8; HEAD]>,
    sampled: Vec<Vec<u8>>,
    expected: Vec<u8>,
    verified: u64,
}

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

/// Runs the core through all rounds.
///
/// # Panics
/// Where there is no memory, a packet is lost, or a result is wrong.
#[must_use]
pub fn measure(setup: Setup) -> Outcome {
    let mut bench = Bench::new(setup);
    let arrivals: Vec<(u32, u8)> = arrivals(setup).collect();
    let burst = (setup.ring as usize / setup.world).max(1);
    let bursts = arrivals.chunks(burst);
    let mut times = vec![Vec::with_capacity(setup.rounds as usize); bursts.len()];
    for round in 0..setup.rounds + 2 {
        for (burst, times) in bursts.clone().zip(&mut times) {
            let ns = bench.burst(round, burst);
            if round >= 2 {
                times.push(ns);
            }
        }
    }
    bench.finish();
    // The same burst of every round does the same work, so each has a median of its own: one
    // that another process broke into does not spoil its round.
    let mut round = Spread::default();
    for times in &mut times {
        round += Spread::of(times);
    }
    let ns_per_packet = round.scaled(1.0 / arrivals.len() as f64);
    Outcome {
        ns_per_packet,
        gbps: f64::from(setup.chunk_bytes) * 8.0 / ns_per_packet.median,
        verified: bench.verified,
    }
}

/// Chunk and rank of each packet of a round.
fn arrivals(s: Setup) -> impl Iterator<Item = (u32, u8)> {
    (0..s.chunks).step_by(s.window as usize).flat_map(move |first| {
        let last = (first + s.window).min(s.chunks);
        (0..s.world as u8).flat_map(move |rank| (first..last).map(move |chunk| (chunk, rank)))
    })
}

impl Bench {
    fn new(setup: Setup) -> Self {
        let Setup { world, dtype, chunk_bytes, chunks, ring, .. } = setup;
        let elements = u64::from(chunks) * u64::from(chunk_bytes) / dtype.size() as u64;
        let layout = Layout::new(dtype, [elements], chunk_bytes, 1).expect("layout");
        let source = |rank: usize| SocketAddr::from(([10, 0, 0, rank as u8 + 16], 40_000));
        let members = (0..world)
            .map(|r| Member { source: Endpoint::from(source(r)), cookie: 7 + r as u32 })
            .collect();
        let plan = Arc::new(JobPlan { id: 1, dtype, op: Op::Sum, layout, members });
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
        let mut bench = Self { setup, core, port, wire, heads, sampled, expected, verified: 0 };
        // Takes the job in and fills the fill ring.
        bench.core.step(&mut bench.port, 0);
        bench
    }

    /// Sends, serves and takes a burst. Returns the nanoseconds of serving.
    fn burst(&mut self, round: u32, burst: &[(u32, u8)]) -> f64 {
        for &(chunk, rank) in burst {
            let head = &self.heads[usize::from(rank)];
            let body = chunk.is_multiple_of(SAMPLE).then_some(&self.sampled[usize::from(rank)]);
            let len = HEAD + usize::from(self.setup.chunk_bytes);
            let sent = self.wire.send(|room| {
                room[..HEAD].copy_from_slice(head);
                if let Ok((h, payload)) = Header::mut_from_prefix(&mut room[SHORTEST..]) {
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
        let mut served = 0;
        let start = Instant::now();
        while served < burst.len() {
            served += self.core.step(&mut self.port, round);
        }
        let ns = start.elapsed().as_nanos() as f64;
        while self.take(round).is_some() {}
        ns
    }

    /// Takes one answer, and verifies it where it is of the sample.
    fn take(&mut self, round: u32) -> Option<()> {
        let expected = &self.expected;
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
    fn finish(&mut self) {
        let s = &self.setup;
        let rounds = u64::from(s.rounds) + 2;
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
