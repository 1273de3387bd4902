//! What a core must know of a job, and what it tells of the job's progress.

use gradbox_protocol::envelope::Endpoint;
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Op};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Jobs that a box serves at once; job ids lie below it.
pub const MAX_JOBS: usize = 256;

/// One rank of a generation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where its packets come from.
    pub source: Endpoint,
    /// The secret that its packets carry.
    pub cookie: u32,
}

/// The multicast group that a job's results go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Multicast address and UDP port.
    pub to: SocketAddr,
    /// The secret that they carry, which is no rank's.
    pub cookie: u32,
}

/// One generation of a job: immutable, shared by all cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// Id in packets, below [`MAX_JOBS`].
    pub id: u16,
    /// Element type on the wire.
    pub dtype: DType,
    /// Operation.
    pub op: Op,
    /// Chunks and shards.
    pub layout: Layout,
    /// The ranks, in order; at most [`gradbox_protocol::MAX_WORLD`].
    pub members: Vec<Member>,
    /// Where one RESULT for all ranks goes, of the address family of every member; `None` where
    /// each rank gets its own.
    pub group: Option<Group>,
}

impl JobPlan {
    /// Frames that `shard` needs for this job at its fullest: for each slot one per rank, and
    /// one for the result of the round before.
    #[must_use]
    pub fn frames_needed(&self, shard: u16) -> u64 {
        frames_needed(&self.layout, shard, self.members.len())
    }
}

/// Frames that `shard` needs at its fullest for a job of `world` ranks laid out as `layout`.
#[must_use]
pub fn frames_needed(layout: &Layout, shard: u16, world: usize) -> u64 {
    u64::from(layout.slots(shard)) * (world as u64 + 1)
}

/// Progress of one rank on one core.
#[derive(Debug, Default)]
pub struct RankProgress {
    pushed: AtomicU64,
    last: AtomicU64,
}

/// Progress of a job on one core, stored by the core after each step, read by anyone.
#[derive(Debug)]
pub struct Progress {
    ranks: Vec<RankProgress>,
    packets: AtomicU64,
}

impl Progress {
    /// Nothing yet, for `world` ranks.
    #[must_use]
    pub fn new(world: usize) -> Self {
        Self {
            ranks: (0..world).map(|_| RankProgress::default()).collect(),
            packets: AtomicU64::new(0),
        }
    }

    /// Chunks taken from `rank`; 0 for a rank that is not in the job.
    #[must_use]
    pub fn pushed(&self, rank: usize) -> u64 {
        self.ranks.get(rank).map_or(0, |r| r.pushed.load(Ordering::Relaxed))
    }

    /// Slots that were complete only when this rank's part came.
    #[must_use]
    pub fn last(&self, rank: usize) -> u64 {
        self.ranks.get(rank).map_or(0, |r| r.last.load(Ordering::Relaxed))
    }

    /// Packets of this job with the right cookie, of any kind: it stands still when the job does.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Stores one rank's numbers. Called by the owning core alone.
    pub(super) fn store(&self, rank: usize, pushed: u64, last: u64) {
        if let Some(r) = self.ranks.get(rank) {
            r.pushed.store(pushed, Ordering::Relaxed);
            r.last.store(last, Ordering::Relaxed);
        }
    }

    /// Stores the number of packets. Called by the owning core alone.
    pub(super) fn store_packets(&self, packets: u64) {
        self.packets.store(packets, Ordering::Relaxed);
    }
}
