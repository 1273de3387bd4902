//! What a measurement of `step()` is to be.

use gradbox_protocol::DType;

/// Where the memory that packets pass through has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkingSet {
    /// About half a MiB.
    L2,
    /// About 6 MiB.
    L3,
    /// About 500 MiB.
    Dram,
}

impl WorkingSet {
    /// Name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::L3 => "l3",
            Self::Dram => "dram",
        }
    }
}

/// In which order the ranks' packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each rank sends a window of chunks, then the next rank sends the same.
    InStep,
    /// Each rank sends its whole gradient, then the next rank does.
    Async,
}

impl Order {
    /// Name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InStep => "in step",
            Self::Async => "async",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Ranks of the job.
    pub world: usize,
    /// Element type.
    pub dtype: DType,
    /// Payload bytes of a packet.
    pub chunk_bytes: u16,
    /// Chunks of the job.
    pub chunks: u32,
    /// Chunks that a rank sends before it is the next one's turn.
    pub window: u32,
    /// Entries of each ring, all of which are filled with frames.
    pub ring: u32,
}

impl Setup {
    /// Numbers of chunks and ring entries so that frames take up the working set.
    ///
    /// Frames wander: the fill ring hands them out in turn, and each chunk keeps one of them as
    /// its result. So what is touched is fill ring, results and parts, not the window alone.
    #[must_use]
    pub fn new(
        world: usize,
        dtype: DType,
        chunk_bytes: u16,
        working_set: WorkingSet,
        order: Order,
    ) -> Self {
        let ranks = world as u32;
        let wide = if chunk_bytes > 1408 { 2 } else { 1 };
        let (chunks, ring) = match (working_set, order) {
            (WorkingSet::L2, _) => (64 / wide, 256 / wide),
            (WorkingSet::L3, _) => (1024 / wide, 2048 / wide),
            // In step, the fill ring alone makes the CPU go through all memory.
            (WorkingSet::Dram, Order::InStep) => (65_536 / wide, 131_072 / wide),
            (WorkingSet::Dram, Order::Async) => (327_680 / (ranks + 1) / wide, 4096 / wide),
        };
        let window = match order {
            Order::InStep => (chunks / ranks).clamp(1, 64),
            Order::Async => chunks,
        };
        Self { world, dtype, chunk_bytes, chunks, window, ring }
    }
}
