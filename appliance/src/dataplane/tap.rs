//! Copies of packets for somebody who reads along: AF_XDP takes packets away before `tcpdump` sees
//! them.
//!
//! A core has a [`Tap`] only while a capture is on. It copies into buffers that were allocated
//! before, and where none is free it counts what it missed: it never waits for the reader.

use super::counters::{Counter, Counters};
use super::frame::Packet;
use super::umem::Umem;
use crossbeam_queue::ArrayQueue;
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::{Header, Kind};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Copies of one core that may wait for the reader.
pub const BUFFERS: usize = 2048;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// It has come to the box.
    In = 0,
    /// It is an answer of the box, about to be handed to the port.
    Out = 1,
}

/// Whose packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Everybody's, also what is not Gradbox.
    All,
    /// The packets with this job id.
    Job(u16),
    /// Nobody's: the job that is wanted is not there now.
    None,
}

impl Wanted {
    const ALL: u32 = u32::MAX;
    const NONE: u32 = u32::MAX - 1;

    fn code(self) -> u32 {
        match self {
            Self::All => Self::ALL,
            Self::Job(id) => id.into(),
            Self::None => Self::NONE,
        }
    }
}

/// A packet's copy.
#[derive(Debug)]
pub struct Copied {
    /// Nanoseconds since 1970, as of the batch that the packet was in.
    pub at_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Frame of the UMEM that it lay in.
    pub frame: u32,
    /// Offset of its Ethernet header in the frame.
    pub start: u16,
    /// Bytes that it had.
    pub len: u16,
    kept: u16,
    buffer: Box<[u8]>,
}

impl Copied {
    /// Its bytes, the first so many where it was longer than asked for.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..usize::from(self.kept)]
    }
}

/// What a core and the reader of its packets share.
#[derive(Debug)]
pub struct Copies {
    full: ArrayQueue<Copied>,
    spare: ArrayQueue<Box<[u8]>>,
    missed: AtomicU64,
    wanted: AtomicU32,
}

impl Copies {
    /// [`BUFFERS`] buffers of `bytes` bytes each.
    #[must_use]
    pub fn new(wanted: Wanted, bytes: usize) -> Self {
        let spare = ArrayQueue::new(BUFFERS);
        // As many as there is room for.
        while spare.push(vec![0; bytes].into_boxed_slice()).is_ok() {}
        Self {
            full: ArrayQueue::new(BUFFERS),
            spare,
            missed: AtomicU64::new(0),
            wanted: AtomicU32::new(wanted.code()),
        }
    }

    /// From the next batch on captures these.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.store(wanted.code(), Ordering::Relaxed);
    }

    /// Shows the oldest copy to `read`, and has its buffer used again. `None` where there is none.
    pub fn take<T>(&self, read: impl FnOnce(&Copied) -> T) -> Option<T> {
        let copied = self.full.pop()?;
        let value = read(&copied);
        // There is room: no more buffers exist than the queue holds.
        let returned = self.spare.push(copied.buffer);
        debug_assert!(returned.is_ok());
        Some(value)
    }

    /// Packets that were to be copied while no buffer was free.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// A core's side of a capture.
#[derive(Debug)]
pub struct Tap {
    copies: Arc<Copies>,
    sample: NonZeroU32,
    /// Packets so far that are not of a chunk.
    others: u32,
    /// Answers at the front of the outbox that were copied already: the port had no room for them.
    seen: usize,
}

impl Tap {
    /// Copies every `sample`-th chunk's packets, and every `sample`-th of those that are of no
    /// chunk.
    #[must_use]
    pub const fn new(copies: Arc<Copies>, sample: NonZeroU32) -> Self {
        Self { copies, sample, others: 0, seen: 0 }
    }

    /// Copies what is wanted of a batch that has come.
    #[cold]
    pub(super) fn received(&mut self, umem: &Umem, inbox: &[Packet], counters: &mut Counters) {
        self.copy(umem, inbox, Direction::In, counters);
    }

    /// Copies what is wanted of the answers that the port is about to be handed.
    #[cold]
    pub(super) fn leaving(&mut self, umem: &Umem, outbox: &[Packet], counters: &mut Counters) {
        let new = outbox.get(self.seen..).unwrap_or_default();
        self.copy(umem, new, Direction::Out, counters);
    }

    /// Notes how many answers the port has left in the outbox.
    pub(super) const fn left(&mut self, outbox: usize) {
        self.seen = outbox;
    }

    fn copy(
        &mut self,
        umem: &Umem,
        packets: &[Packet],
        direction: Direction,
        counters: &mut Counters,
    ) {
        if packets.is_empty() {
            return;
        }
        let wanted = self.copies.wanted.load(Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ns = now.as_nanos() as u64;
        for packet in packets {
            let bytes = umem.packet(packet);
            if !self.wants(wanted, bytes) {
                continue;
            }
            let Some(mut buffer) = self.copies.spare.pop() else {
                counters.bump(Counter::CaptureMissed);
                self.copies.missed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let kept = bytes.len().min(buffer.len());
            buffer[..kept].copy_from_slice(&bytes[..kept]);
            let (frame, start, len) = (packet.frame.index(), packet.start, packet.len);
            let copied = Copied { at_ns, direction, frame, start, len, kept: kept as u16, buffer };
            counters.bump(Counter::Captured);
            // There is room: no more buffers exist than the queue holds.
            let pushed = self.copies.full.push(copied);
            debug_assert!(pushed.is_ok());
        }
    }

    /// Whether a packet is one of the job's and of the sample's.
    fn wants(&mut self, wanted: u32, packet: &[u8]) -> bool {
        let Some(header) = header(packet) else {
            return wanted == Wanted::ALL && self.next_other();
        };
        if wanted != Wanted::ALL && wanted != u32::from(header.job.get()) {
            return false;
        }
        match header.kind() {
            Some(Kind::Push | Kind::Result | Kind::Error) => {
                let (job, tensor) = (header.job.get(), header.tensor.get());
                is_sampled(job, tensor, header.chunk.get(), self.sample)
            }
            _ => self.next_other(),
        }
    }

    fn next_other(&mut self) -> bool {
        let is = self.others.is_multiple_of(self.sample.get());
        self.others = self.others.wrapping_add(1);
        is
    }
}

/// Whether a chunk is one of every `sample`: the same for all its packets, whoever sends them.
#[must_use]
pub fn is_sampled(job: u16, tensor: u16, chunk: u32, sample: NonZeroU32) -> bool {
    let key = u64::from(job) << 48 | u64::from(tensor) << 32 | u64::from(chunk);
    // Chunks of one shard differ by multiples of the number of shards: the product's upper half
    // does not.
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    hash.is_multiple_of(sample.get().into())
}

fn header(packet: &[u8]) -> Option<Header> {
    let envelope = Envelope::parse(packet)?;
    let at = envelope.payload();
    Header::parse(packet.get(at..at + envelope.len())?).map(|(header, _)| *header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::frame::ORIGIN;
    use crate::dataplane::pool::Pool;

    fn sample(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[test]
    fn a_sample_has_about_its_share_of_any_shards_chunks() {
        for (n, shards) in [(2, 2), (10, 1), (16, 16), (64, 4)] {
            let chunks = 64_000 / shards;
            let is = |i: u32| is_sampled(7, 3, i * shards, sample(n));
            let found = (0..chunks).filter(|&i| is(i)).count() as f64;
            let share = f64::from(chunks) / f64::from(n);
            assert!((found / share - 1.0).abs() < 0.2, "1 of {n}, {shards} shards: {found}");
        }
        assert!((0..1000).all(|chunk| is_sampled(1, 0, chunk, sample(1))));
    }

    #[test]
    fn a_slow_reader_misses_packets_and_their_number_is_known() {
        let (umem, frames) = Umem::new(4, 2048).unwrap();
        let mut pool = Pool::new(frames);
        let mut frame = pool.take().unwrap();
        umem.bytes_mut(&mut frame)[ORIGIN..ORIGIN + 4].copy_from_slice(&[1, 2, 3, 4]);
        let packets = [Packet { frame, start: ORIGIN as u16, len: 4 }];
        let copies = Arc::new(Copies::new(Wanted::All, 3));
        let mut tap = Tap::new(copies.clone(), sample(1));
        let mut counters = Counters::default();
        for _ in 0..BUFFERS + 5 {
            tap.received(&umem, &packets, &mut counters);
        }
        assert_eq!(copies.missed(), 5);
        assert_eq!(counters.get(Counter::CaptureMissed), 5);
        assert_eq!(counters.get(Counter::Captured), BUFFERS as u64);
        let read = |c: &Copied| (c.bytes().to_vec(), c.len, c.start, c.direction);
        let wanted = (vec![1, 2, 3], 4, ORIGIN as u16, Direction::In);
        assert_eq!(copies.take(read), Some(wanted));
        tap.received(&umem, &packets, &mut counters);
        assert_eq!(copies.missed(), 5);
    }

    #[test]
    fn an_answer_that_waits_for_the_port_is_copied_once() {
        let (umem, frames) = Umem::new(4, 2048).unwrap();
        let mut pool = Pool::new(frames);
        let mut packet = || Packet { frame: pool.take().unwrap(), start: ORIGIN as u16, len: 60 };
        let mut outbox = vec![packet(), packet()];
        let copies = Arc::new(Copies::new(Wanted::All, 64));
        let mut tap = Tap::new(copies.clone(), sample(1));
        let mut counters = Counters::default();
        tap.leaving(&umem, &outbox, &mut counters);
        tap.left(outbox.len());
        outbox.push(packet());
        tap.leaving(&umem, &outbox, &mut counters);
        let mut frames = Vec::new();
        while let Some(frame) = copies.take(|c| c.frame) {
            frames.push(frame);
        }
        let all: Vec<_> = outbox.iter().map(|p| p.frame.index()).collect();
        assert_eq!(frames, all);
    }

    #[test]
    fn of_a_job_that_is_not_there_nothing_is_copied() {
        let (umem, frames) = Umem::new(1, 2048).unwrap();
        let mut pool = Pool::new(frames);
        let packets = [Packet { frame: pool.take().unwrap(), start: ORIGIN as u16, len: 60 }];
        let copies = Arc::new(Copies::new(Wanted::None, 64));
        let mut tap = Tap::new(copies.clone(), sample(1));
        tap.received(&umem, &packets, &mut Counters::default());
        assert!(copies.take(|_| ()).is_none());
        copies.want(Wanted::All);
        tap.received(&umem, &packets, &mut Counters::default());
        assert!(copies.take(|_| ()).is_some());
    }
}
