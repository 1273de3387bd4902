//! `step()` as it runs in the box: the real core on the `mem` port, with the wire moved by hand.
//!
//! The wire's part is not timed. It puts a burst of packets into the RX ring, then the core steps
//! until it has served them all, which is timed as one; then the wire takes the answers. Payload
//! is what lies in the frames anyway: the wire writes headers alone, but for the chunks of a
//! sample, which get true values and whose every result is compared with the reference.
//!
//! * [`Setup`]: what is measured
//! * [`cores`]: one core or several at the same time, and the figures
//! * [`split`]: what of a packet's time goes where

pub mod cores;
mod setup;
pub mod split;

use super::spread::Spread;
use crate::dataplane::core::Core;
use crate::dataplane::counters::Counter;
use crate::dataplane::handle::{Command, CoreHandle};
use crate::dataplane::job::JobTable;
use crate::dataplane::mem::{self, MemPort, MemWire};
use crate::dataplane::plan::{Group, JobPlan, Member};
use crate::dataplane::steer::Steering;
use crate::dataplane::umem::UmemError;
use crate::sum::{self, SumError};
use gradbox_protocol::envelope::{self, Endpoint, Link, SHORTEST};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{DType, HEADER_LEN, Header, Kind, Op, Reply, STATUS_CHUNKS};
pub use setup::Setup;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a packet before the gradient.
pub(super) const HEAD: usize = SHORTEST + HEADER_LEN;

/// One chunk in so many is a sample that is written and verified.
const SAMPLE: u32 = 61;

/// Packets between two looks of the wire at most.
const MAX_BURST: usize = 8192;

/// QUERYs of one sample.
const QUERIES: u32 = 64;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// No memory for frames.
    #[error(transparent)]
    Memory(#[from] UmemError),
    /// No kernel for the sum.
    #[error(transparent)]
    Kernel(#[from] SumError),
    /// No event descriptor.
    #[error("no event descriptor for the core: {0}")]
    Steering(#[from] io::Error),
    /// The setup has no layout.
    #[error("{chunks} chunks of {bytes} bytes of {dtype} cannot be laid out")]
    Layout {
        /// Chunks.
        chunks: u32,
        /// Bytes of each.
        bytes: u16,
        /// Element type.
        dtype: DType,
    },
    /// The core lost, refused or invented something, or gave a wrong result.
    #[error("the data plane is wrong: {0}")]
    Wrong(String),
    /// Another core's thread has ended.
    #[error("another core has ended, or took longer than {0:?} for a burst")]
    Alone(Duration),
}

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

/// Nanoseconds of one QUERY and its STATUS of 512 slots.
///
/// # Errors
/// Where there is no memory, or a STATUS is wrong.
pub fn measure_status(setup: Setup, samples: usize) -> Result<Spread, PathError> {
    let mut bench = Bench::new(setup)?;
    bench.round(&mut || Ok(()))?;
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        times.push(bench.queries()?.as_nanos() as f64 / f64::from(QUERIES));
    }
    Ok(Spread::of(&mut times))
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
    /// # Errors
    /// Where there is no memory for it.
    pub fn new(setup: Setup) -> Result<Self, PathError> {
        let Setup { world, dtype, chunk_bytes, chunks, ring, frame_bytes, .. } = setup;
        let elements = u64::from(chunks) * u64::from(chunk_bytes) / dtype.size() as u64;
        let layout = Layout::new(dtype, [elements], chunk_bytes, 1)
            .map_err(|_| PathError::Layout { chunks, bytes: chunk_bytes, dtype })?;
        let source = |rank: usize| SocketAddr::from(([10, 0, 0, rank as u8 + 16], 40_000));
        let members = (0..world)
            .map(|r| Member { source: Endpoint::from(source(r)), cookie: 7 + r as u32 })
            .collect();
        let plan = Arc::new(JobPlan {
            id: 1,
            dtype,
            op: Op::Sum,
            layout,
            members,
            group: group(setup.reply),
        });
        let (port, wire, pool) = mem::pair(setup.frames(), frame_bytes, ring)?;
        let (handle, link) = CoreHandle::new(0, None, 0, frame_bytes as u64);
        let steering = Steering::new(1)?.remove(0);
        let core = Core::new(0, pool, steering, link, false);
        let (table, _) = JobTable::new(plan.clone(), 0, 64)?;
        handle.send(Command::Add(table)).map_err(wrong)?;
        let heads =
            (0..world).map(|r| head(&plan, r as u8, source(r))).collect::<Result<_, _>>()?;
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
        Ok(bench)
    }

    /// Packets of a round.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.arrivals.len()
    }

    /// Runs one round, and returns how long each of its bursts took the core. `ready` is called
    /// before each.
    ///
    /// # Errors
    /// Where a packet is lost or a result is wrong, and those of `ready`.
    pub fn round(
        &mut self,
        ready: &mut impl FnMut() -> Result<(), PathError>,
    ) -> Result<&[Duration], PathError> {
        let arrivals = self.arrivals.clone();
        let burst = (self.setup.ring as usize / self.setup.world).clamp(1, MAX_BURST);
        self.times.clear();
        for burst in arrivals.chunks(burst) {
            for &(chunk, rank) in burst {
                self.send(Kind::Push, chunk, rank)?;
            }
            ready()?;
            let time = self.serve(burst.len());
            self.times.push(time);
            while self.take()? {}
        }
        self.round += 1;
        Ok(&self.times)
    }

    /// Puts one packet on the wire.
    fn send(&mut self, kind: Kind, chunk: u32, rank: u8) -> Result<(), PathError> {
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
        if sent { Ok(()) } else { Err(wrong("the fill ring is short of frames")) }
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
    fn queries(&mut self) -> Result<Duration, PathError> {
        for _ in 0..QUERIES {
            self.send(Kind::Query, 0, 1)?;
        }
        let time = self.serve(QUERIES as usize);
        // All chunks are done by the same number of rounds, and none is held.
        let all = if self.round.is_multiple_of(2) { 0 } else { 0xff };
        let right = |packet: &[u8]| {
            let (header, body) = Header::ref_from_prefix(&packet[SHORTEST..]).ok()?;
            let status = StatusBody::parse(body)?;
            let right = header.kind() == Some(Kind::Status)
                && usize::from(status.count.get()) == STATUS_CHUNKS
                && status.held == [0; STATUS_CHUNKS / 8]
                && status.done == [all; STATUS_CHUNKS / 8];
            right.then_some(())
        };
        for _ in 0..QUERIES {
            match self.wire.receive(right) {
                Some(Some(())) => {}
                Some(None) => return Err(wrong("a STATUS")),
                None => return Err(wrong("a QUERY was not answered")),
            }
        }
        Ok(time)
    }

    /// Takes one answer, and verifies it where it is of the sample. Returns whether there was one.
    fn take(&mut self) -> Result<bool, PathError> {
        let (round, expected) = (self.round, &self.expected);
        // Whether the answer is right, and of the sample.
        let check = |packet: &[u8]| {
            let Ok((h, body)) = Header::ref_from_prefix(&packet[SHORTEST..]) else {
                return (false, false);
            };
            let of_sample = h.chunk.get().is_multiple_of(SAMPLE);
            let result = (h.kind(), h.round.get()) == (Some(Kind::Result), round);
            (result && (!of_sample || body == expected), of_sample)
        };
        match self.wire.receive(check) {
            None => Ok(false),
            Some((false, _)) => Err(wrong("a RESULT")),
            Some((true, of_sample)) => {
                self.verified += u64::from(of_sample);
                Ok(true)
            }
        }
    }

    /// Results whose bits were compared.
    #[must_use]
    pub const fn verified(&self) -> u64 {
        self.verified
    }

    /// Checks that nothing was lost or refused.
    ///
    /// # Errors
    /// Where something was.
    pub fn finish(&self) -> Result<(), PathError> {
        let (s, rounds) = (&self.setup, u64::from(self.round));
        let completed = self.core.counters().get(Counter::Completed);
        let answers = match s.reply {
            Reply::Unicast => s.world as u64,
            Reply::Multicast => 1,
        };
        let of_sample = u64::from(s.chunks.div_ceil(SAMPLE)) * answers;
        if completed != u64::from(s.chunks) * rounds {
            return Err(wrong(format!("{completed} chunks completed in {rounds} rounds")));
        }
        if self.verified != of_sample * rounds {
            return Err(wrong(format!("{} results of a sample came", self.verified)));
        }
        if !self.core.frames(&self.port).balanced() {
            return Err(wrong("frames are missing"));
        }
        Ok(())
    }
}

fn wrong(what: impl ToString) -> PathError {
    PathError::Wrong(what.to_string())
}

/// The group that results go to, where there is one.
fn group(reply: Reply) -> Option<Group> {
    match reply {
        Reply::Unicast => None,
        Reply::Multicast => {
            let to = SocketAddr::from(([239, 71, 66, 1], 9100));
            Some(Group { to, cookie: 5 })
        }
    }
}

/// The headers of a rank's packets.
fn head(plan: &JobPlan, rank: u8, from: SocketAddr) -> Result<[u8; HEAD], PathError> {
    let len = plan.layout.chunk_bytes();
    let mut packet = vec![0; HEAD + usize::from(len)];
    let link = Link { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 1, rank], vlan: None };
    let to = SocketAddr::from(([10, 0, 0, 1], 9100));
    envelope::write(&mut packet, &link, from, to, HEADER_LEN + usize::from(len))
        .ok_or_else(|| wrong("an envelope"))?;
    let mut h = Header::new(Kind::Push);
    h.job = plan.id.into();
    h.rank = rank;
    h.cookie = plan.members[usize::from(rank)].cookie.into();
    h.length = len.into();
    packet[SHORTEST..HEAD].copy_from_slice(h.as_bytes());
    packet.first_chunk().copied().ok_or_else(|| wrong("a packet"))
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
