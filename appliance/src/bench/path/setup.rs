//! What a measurement of `step()` is to be.

use crate::bench::figure::{Arrival, WorkingSet};
use crate::bench::machine::Caches;
use gradbox_protocol::{DType, Reply};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Ranks of the job.
    pub world: usize,
    /// Element type.
    pub dtype: DType,
    /// Payload bytes of a packet.
    pub chunk_bytes: u16,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Chunks of the job.
    pub chunks: u32,
    /// Chunks that a rank sends before it is the next one's turn.
    pub window: u32,
    /// Entries of each ring, all of which are filled with frames.
    pub ring: u32,
    /// Where the memory has room.
    pub working_set: WorkingSet,
    /// Order of the packets.
    pub arrival: Arrival,
    /// Replies to each rank, or one to all.
    pub reply: Reply,
}

/// Frames of [`WorkingSet::Dram`] at least, and for a CPU whose last-level cache holds more of their
/// 1408 bytes each, so many times as many as it holds.
const FRAMES: u32 = 131_072;
const TIMES: u64 = 2;

impl Setup {
    /// Numbers of chunks and ring entries so that frames take up the working set.
    ///
    /// Frames wander: the fill ring hands them out in turn, and each chunk keeps one of them as
    /// its result. So what is touched is fill ring, results and parts, not the window alone: half
    /// a MiB of [`WorkingSet::L2`], 6 MiB of [`WorkingSet::L3`], and of [`WorkingSet::Dram`] more
    /// than the last-level cache has.
    #[must_use]
    pub fn new(
        world: usize,
        dtype: DType,
        chunk_bytes: u16,
        working_set: WorkingSet,
        arrival: Arrival,
        reply: Reply,
    ) -> Self {
        let ranks = world as u32;
        let wide = if chunk_bytes > 1500 { 2 } else { 1 };
        let cached = Caches::read().l3 / 1408;
        let most = FRAMES * 8;
        let beyond = u32::try_from(TIMES * cached).unwrap_or(most).clamp(FRAMES, most);
        let (chunks, ring) = match (working_set, arrival) {
            (WorkingSet::L1 | WorkingSet::L2, _) => (64 / wide, 256 / wide),
            (WorkingSet::L3, _) => (1024 / wide, 2048 / wide),
            // In step, the fill ring alone makes the CPU go through all memory.
            (WorkingSet::Dram, Arrival::InStep) => {
                (65_536 / wide, beyond.next_power_of_two() / wide)
            }
            (WorkingSet::Dram, Arrival::Async) => {
                (beyond.max(2 * FRAMES) / ranks / wide, 4096 / wide)
            }
        };
        let window = match arrival {
            Arrival::InStep => (chunks / ranks).clamp(1, 64),
            Arrival::Async => chunks,
        };
        let frame_bytes = 2048 * wide as usize;
        Self {
            world,
            dtype,
            chunk_bytes,
            frame_bytes,
            chunks,
            window,
            ring,
            working_set,
            arrival,
            reply,
        }
    }

    /// The same code over a corner of the memory, for a smoke run.
    #[must_use]
    pub fn tiny(mut self) -> Self {
        self.chunks = self.chunks.min(512);
        self.window = self.window.min(512);
        self.ring = self.ring.min(1024);
        self
    }

    /// Packets of a round.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.chunks as u64 * self.world as u64
    }

    /// Frames that the rings and the job take at their fullest.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.chunks * (self.world as u32 + 1) + 2 * self.ring
    }
}
