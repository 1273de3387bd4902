//! The rival in the kernel: `xdp-aggregate`, an aggregator of fixed-point numbers that is an XDP
//! program, loaded, fed and timed.
//!
//! # How it is measured
//! BPF_PROG_TEST_RUN runs a program on one packet, again and again. The object's second entry first
//! makes that packet the next one of a job in step (rank, chunk and round in its headers, and a part
//! of the payload that differs by rank), then does what the first entry does. A third entry only
//! stamps. The kernel reports the mean time of a run, in whole nanoseconds, rounded down, and without
//! the time in which something else had the CPU. What is between the two entries is the aggregation: a
//! test run's own cost is in both of them. All three figures are given.
//!
//! This is kind to the rival: its packet is always in the CPU's first cache, and there is no driver,
//! no ring and no reply to be sent. It is one core's figure, for nothing in it is locked.

use std::net::Ipv4Addr;

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, PerCpuArray},
};
use gradbox_protocol::{
    DType, HEADER_LEN, Header, Kind, MAX_WORLD, Op,
    bench::{LEAD, Outcome, SUM_BYTES},
    envelope::{self, Link, SHORTEST},
};
use zerocopy::IntoBytes;

use super::bpf::{self, Error, Ran};
use crate::sum;

/// Built by `xdp-redirect/rebuild.sh`, which CI compares with the source.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!("../../../xdp-redirect/object/xdp-aggregate.bpf.o");

/// Names in the object (`xdp-redirect/src/aggregate/`).
const AGGREGATE: &str = "gradbox_aggregate";
const MEASURE: &str = "gradbox_measure";
const STAMP: &str = "gradbox_stamp";

/// Bytes of a packet, from its Ethernet header on.
pub const PACKET_LEN: usize = SHORTEST + HEADER_LEN + SUM_BYTES;
/// Words that hold one, and bytes of no meaning before it: its payload begins with a word.
const PACKET_WORDS: usize = PACKET_LEN.div_ceil(8);
const BEFORE: usize = PACKET_WORDS * 8 - PACKET_LEN;

/// UDP port that the aggregator answers at.
pub const PORT: u16 = 7000;
/// Id of its job.
pub const JOB: u16 = 1;
/// Rank 0's address; the others follow.
const FIRST_WORKER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const BOX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

/// What is to be aggregated.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Ranks, 1 to 32.
    pub world: u32,
    /// Chunks of [`SUM_BYTES`] bytes, at least 1. The working set is that often the `copies`.
    pub chunks: u32,
    /// Sums kept of each chunk: 2 where a RESULT that gets lost is to be had again until the next
    /// round is complete, as a network needs it; 1 is smaller, and loses it when the next round begins.
    pub copies: u32,
    /// Chunks that a rank sends before the next rank sends the same ones, when measured. A divisor of
    /// `chunks`; 1 has all parts of a chunk come one after another.
    pub burst: u32,
}

/// Nanoseconds per packet, a sample each.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Stamping and aggregation.
    pub total: Vec<f64>,
    /// Stamping alone.
    pub stamping: Vec<f64>,
    /// The one without the other, of runs next to each other in time.
    pub aggregation: Vec<f64>,
}

/// The aggregator, loaded. Dropping it unloads it.
pub struct KernelAggregator {
    settings: Settings,
    ebpf: Ebpf,
    chunks: Array<MapData, u64>,
    sums: Array<MapData, [u64; SUM_BYTES / 8]>,
    counters: PerCpuArray<MapData, u64>,
}

impl KernelAggregator {
    /// Loads the object through the verifier. Nothing is attached.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Refused`], [`Error::Object`] or [`Error::Map`].
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        let Settings { world, chunks, copies, burst } = *settings;
        if world == 0 || world as usize > MAX_WORLD {
            return Err(Error::setting("world", world, "1 to 32"));
        }
        if !matches!(copies, 1 | 2) {
            return Err(Error::setting("copies", copies, "1 or 2"));
        }
        let Some(sums) = chunks.checked_mul(copies).filter(|sums| *sums > 0) else {
            return Err(Error::setting(
                "chunks",
                chunks,
                "at least 1, and their copies below 2^32",
            ));
        };
        if burst == 0 || !chunks.is_multiple_of(burst) {
            return Err(Error::setting("burst", burst, format!("a divisor of {chunks} chunks")));
        }
        let mut loader = EbpfLoader::new();
        loader
            .override_global("WORLD", &world, true)
            .override_global("COPIES", &copies, true)
            .override_global("BURST", &burst, true)
            .override_global("CHUNK_COUNT", &chunks, true)
            .override_global("JOB", &JOB, true)
            .override_global("PORT_BASE", &PORT, true)
            .override_global("PORT_COUNT", &1_u16, true)
            .map_max_entries("CHUNKS", chunks)
            .map_max_entries("SUMS", sums);
        let mut ebpf = bpf::open(&mut loader, OBJECT)?;
        for name in [AGGREGATE, MEASURE, STAMP] {
            bpf::load_xdp(&mut ebpf, name)?;
        }
        let mut members: Array<_, [u32; 2]> = bpf::take(&mut ebpf, "MEMBERS")?;
        let mut packets: Array<_, [u64; PACKET_WORDS]> = bpf::take(&mut ebpf, "PACKETS")?;
        let filling = "telling the aggregator in the kernel about a rank";
        for rank in 0..world {
            let address = u32::from_ne_bytes(address(rank).octets());
            members.set(rank, [address, cookie(rank)], 0).map_err(bpf::map(filling))?;
            let packet = push(rank, 0, 0, &payload(rank));
            let mut words = [0_u64; PACKET_WORDS];
            words.as_mut_bytes()[BEFORE..].copy_from_slice(&packet);
            packets.set(rank, words, 0).map_err(bpf::map(filling))?;
        }
        Ok(Self {
            settings: *settings,
            chunks: bpf::take(&mut ebpf, "CHUNKS")?,
            sums: bpf::take(&mut ebpf, "SUMS")?,
            counters: bpf::take(&mut ebpf, "COUNTERS")?,
            ebpf,
        })
    }

    /// Gives the aggregator one packet, as if it had come from a network.
    ///
    /// # Errors
    /// [`Error::Object`] or [`Error::Run`].
    pub fn run(&self, packet: &[u8]) -> Result<Ran, Error> {
        bpf::run_once(bpf::xdp(&self.ebpf, AGGREGATE)?, packet)
    }

    /// Puts the aggregator on `interface` (of the calling thread's network namespace), in its driver,
    /// until it is dropped.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Refused`] or [`Error::Object`].
    pub fn attach(&mut self, interface: &str) -> Result<(), Error> {
        bpf::attach_xdp(&mut self.ebpf, AGGREGATE, interface)
    }

    /// Packets by outcome since it was loaded, in the order of [`Outcome::ALL`].
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        let read = |outcome: &Outcome| {
            let of_cpus = self
                .counters
                .get(&(*outcome as u32), 0)
                .map_err(bpf::map("reading the counters of the aggregator in the kernel"))?;
            Ok((outcome.name(), of_cpus.iter().sum()))
        };
        Outcome::ALL.iter().map(read).collect()
    }

    /// Packets of one outcome.
    fn count(&self, outcome: Outcome) -> Result<u64, Error> {
        Ok(self.counters()?[outcome as usize].1)
    }

    /// Times `samples` runs of a whole number of rounds each, of at least `packets` packets, after
    /// one that is not counted; then checks that every packet was aggregated, and the sums of up to
    /// 64 chunks, bit for bit, with [`sum::reference`].
    ///
    /// # Errors
    /// [`Error::Wrong`] where it did not aggregate every packet or a sum is wrong; [`Error::Map`],
    /// [`Error::Object`], [`Error::Run`]; [`Error::Setting`] where a round has more packets than one
    /// run can.
    pub fn measure(&mut self, samples: usize, packets: u32) -> Result<Measured, Error> {
        let Settings { world, chunks, .. } = self.settings;
        // Also the kernel's own limit, an int.
        let Some(repeat) = world
            .checked_mul(chunks)
            .and_then(|round| packets.max(1).checked_next_multiple_of(round))
            .filter(|repeat| i32::try_from(*repeat).is_ok())
        else {
            return Err(Error::setting("chunks", chunks, "fewer than 2^31 packets in a run"));
        };
        let packet = push(0, 0, 0, &payload(0));
        let before = (self.count(Outcome::Added)?, self.count(Outcome::Completed)?);
        let mut measured = Measured::default();
        for sample in 0..=samples {
            let total = bpf::run_timed(bpf::xdp(&self.ebpf, MEASURE)?, &packet, repeat)?;
            let stamping = bpf::run_timed(bpf::xdp(&self.ebpf, STAMP)?, &packet, repeat)?;
            // The first one finds caches cold and pages untouched.
            if sample > 0 {
                let [total, stamping] = [total, stamping].map(|time| time.as_nanos() as f64);
                measured.total.push(total);
                measured.stamping.push(stamping);
                measured.aggregation.push(total - stamping);
            }
        }
        let completed = (samples as u64 + 1) * u64::from(repeat / world);
        let added = completed * u64::from(world - 1);
        let after = (before.0 + added, before.1 + completed);
        if (self.count(Outcome::Added)?, self.count(Outcome::Completed)?) != after {
            let what = format!(
                "of {} packets not all were aggregated: {:?}",
                added + completed,
                self.counters()?
            );
            return Err(Error::Wrong { what });
        }
        self.verify()?;
        Ok(measured)
    }

    /// Compares the last complete sums of up to 64 chunks with the reference.
    fn verify(&self) -> Result<(), Error> {
        let payloads: Vec<_> = (0..self.settings.world).map(payload).collect();
        let inputs: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
        let mut wanted = [0; SUM_BYTES];
        sum::reference(DType::I32, Op::Sum, &inputs, &mut wanted);
        let chunks = self.settings.chunks;
        for chunk in (0..chunks).step_by(chunks.div_ceil(64) as usize) {
            if self.sum(chunk)?.is_none_or(|sum| sum != wanted) {
                let what = format!("the sum of chunk {chunk} is not the reference's");
                return Err(Error::Wrong { what });
            }
        }
        Ok(())
    }

    /// The last complete sum of a chunk, or `None` where there is none (any more).
    ///
    /// # Errors
    /// [`Error::Map`], also where there is no such chunk.
    pub fn sum(&self, chunk: u32) -> Result<Option<[u8; SUM_BYTES]>, Error> {
        let reading = "reading a sum of the aggregator in the kernel";
        let copies = self.settings.copies;
        let state = self.chunks.get(&chunk, 0).map_err(bpf::map(reading))?;
        let (completed, held) = (state as u32, (state >> 32) as u32);
        let Some(round) = completed.checked_sub(1).filter(|_| copies > 1 || held == 0) else {
            return Ok(None);
        };
        let words = self
            .sums
            .get(&(chunk * copies + (round & (copies - 1))), 0)
            .map_err(bpf::map(reading))?;
        let mut sum = [0; SUM_BYTES];
        sum.copy_from_slice(words.as_bytes());
        Ok(Some(sum))
    }
}

/// Address of a rank.
#[must_use]
pub fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_WORKER.to_bits().wrapping_add(rank))
}

/// Cookie of a rank: different ones, that is all.
#[must_use]
pub fn cookie(rank: u32) -> u32 {
    (rank + 1).wrapping_mul(0x9e37_79b1)
}

/// The payload of a rank: numbers of all sizes, the first [`LEAD`] bytes by rank.
fn payload(rank: u32) -> Vec<u8> {
    let number = |place: usize| {
        let own = if place < LEAD / 4 { rank << 16 } else { 0 };
        (place as u32 + 1 + own).wrapping_mul(0x85eb_ca6b).rotate_left(13).wrapping_mul(0xc2b2_ae35)
    };
    (0..SUM_BYTES / 4).flat_map(|place| number(place).to_le_bytes()).collect()
}

/// A PUSH of `rank` to the aggregator, from its Ethernet header on. A `payload` of another length
/// than [`SUM_BYTES`] makes a packet that will be refused.
///
/// # Panics
/// Where `payload` has more than 65000 bytes.
#[must_use]
pub fn push(rank: u32, chunk: u32, round: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; SHORTEST + HEADER_LEN + payload.len()];
    let mut link = Link { destination: [2; 6], source: [2; 6], vlan: None };
    link.source[5] = 16 + rank as u8;
    let from = (address(rank), 7100).into();
    let written =
        envelope::write(&mut packet, &link, from, (BOX, PORT).into(), HEADER_LEN + payload.len());
    assert!(written.is_some(), "a payload that fits into UDP");
    let mut header = Header::new(Kind::Push);
    header.job = JOB.into();
    header.rank = rank as u8;
    header.cookie = cookie(rank).into();
    header.round = round.into();
    header.chunk = chunk.into();
    header.length = (payload.len() as u16).into();
    packet[SHORTEST..][..HEADER_LEN].copy_from_slice(header.as_bytes());
    packet[SHORTEST + HEADER_LEN..].copy_from_slice(payload);
    packet
}
