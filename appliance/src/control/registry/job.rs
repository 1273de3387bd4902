//! One job: the generation that works, and the one that forms.

use super::super::refused::Refused;
use crate::dataplane::plan::{Group, JobPlan, Member, frames_needed};
use gradbox_protocol::control::{JoinRequest, TensorEntry};
use gradbox_protocol::layout::{Layout, LayoutError};
use gradbox_protocol::{DType, Op, Reply};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// What all ranks of a generation must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) world: u8,
    pub(super) dtype: DType,
    pub(super) op: Op,
    pub(super) reply: Reply,
    pub(super) tensors: Vec<TensorEntry>,
}

impl Spec {
    pub(super) fn of(r: &JoinRequest) -> Self {
        let (world, dtype, op, reply) = (r.world, r.dtype, r.op, r.reply);
        Self { world, dtype, op, reply, tensors: r.tensors.clone() }
    }

    pub(super) fn layout(&self, chunk_bytes: u16, shards: u16) -> Result<Layout, LayoutError> {
        let elements = self.tensors.iter().map(|t| t.elements);
        Layout::new(self.dtype, elements, chunk_bytes, shards)
    }

    /// Refuses a join of `job` that brings anything else, naming the first difference.
    pub(super) fn must_match(&self, job: &str, r: &JoinRequest) -> Result<(), Refused> {
        let (theirs, yours) = if self.world != r.world {
            (format!("world = {}", self.world), r.world.to_string())
        } else if self.dtype != r.dtype {
            (format!("dtype = {}", self.dtype), r.dtype.to_string())
        } else if self.op != r.op {
            (format!("op = {}", self.op), r.op.to_string())
        } else if self.reply != r.reply {
            (format!("reply = {}", self.reply), r.reply.to_string())
        } else if self.tensors.len() != r.tensors.len() {
            (format!("{} tensors", self.tensors.len()), r.tensors.len().to_string())
        } else if let Some((i, (a, b))) =
            self.tensors.iter().zip(&r.tensors).enumerate().find(|(_, (a, b))| a != b)
        {
            let show = |t: &TensorEntry| {
                let name: String = t.name.chars().take(80).collect();
                format!("{name:?} of {} elements", t.elements)
            };
            (format!("as tensor {i} {}", show(a)), show(b))
        } else {
            return Ok(());
        };
        Err(Refused::Mismatch { job: job.to_owned(), theirs, yours })
    }
}

/// A rank of a generation that is forming.
#[derive(Clone, Debug)]
pub(super) struct Joiner {
    pub(super) instance: u64,
    pub(super) address: SocketAddr,
    pub(super) cookie: u32,
    /// When it last repeated its join.
    pub(super) seen: Duration,
}

/// A generation that waits for its ranks or, complete, for the cores to let go of the one before.
#[derive(Clone, Debug)]
pub(super) struct Forming {
    pub(super) spec: Spec,
    pub(super) layout: Layout,
    /// Frames that it needs, by core.
    pub(super) frames: Vec<u64>,
    pub(super) members: Vec<Option<Joiner>>,
    /// Cookie of the group, where it will have one.
    pub(super) group_cookie: u32,
    /// When its first rank joined.
    pub(super) since: Duration,
}

impl Forming {
    pub(super) fn new(spec: Spec, layout: Layout, group_cookie: u32, since: Duration) -> Self {
        let world = usize::from(spec.world);
        let frames = (0..layout.shards()).map(|s| frames_needed(&layout, s, world)).collect();
        Self { spec, layout, frames, members: vec![None; world], group_cookie, since }
    }

    /// Refuses `rank` of a generation with a group where another rank's address is of another
    /// family than `ip`: one packet cannot reach both.
    pub(super) fn must_share_family(&self, job: &str, rank: u8, ip: IpAddr) -> Result<(), Refused> {
        let others = (0..).zip(&self.members).filter(|(r, _)| *r != rank);
        let mut others = others.filter_map(|(r, m)| Some((r, m.as_ref()?.address)));
        match others.find(|(_, a)| a.is_ipv4() != ip.is_ipv4()) {
            Some((other, theirs)) if self.spec.reply == Reply::Multicast => {
                Err(Refused::MixedFamilies { job: job.to_owned(), rank, ip, other, theirs })
            }
            _ => Ok(()),
        }
    }

    /// Ranks that have not joined, ascending.
    pub(super) fn missing(&self) -> Vec<u8> {
        (0..self.spec.world).filter(|r| self.members[usize::from(*r)].is_none()).collect()
    }

    pub(super) fn complete(&self) -> bool {
        self.members.iter().all(Option::is_some)
    }

    pub(super) fn deserted(&self) -> bool {
        self.members.iter().all(Option::is_none)
    }
}

/// A rank of a generation that is on the cores.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) instance: u64,
    pub(super) address: SocketAddr,
    pub(super) left: bool,
}

/// A generation that is on the cores.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) plan: Arc<JobPlan>,
    pub(super) spec: Spec,
    pub(super) frames: Vec<u64>,
    pub(super) seats: Vec<Seat>,
    pub(super) generation: u32,
    /// Packets that each rank may have in flight to each shard.
    pub(super) credit: u16,
    /// Packets so far, and when that last changed.
    pub(super) packets: u64,
    pub(super) active: Duration,
    /// Cores that have not handed the table back, once they were told to.
    pub(super) removing: Option<BTreeSet<u16>>,
}

impl Running {
    /// The generation that `forming` becomes, all of whose ranks are there, with its id and, where
    /// it wants one, its group.
    pub(super) fn of(
        forming: Forming,
        (id, group): (u16, Option<SocketAddr>),
        generation: u32,
        now: Duration,
    ) -> Self {
        let joiners: Vec<_> = forming.members.into_iter().flatten().collect();
        debug_assert_eq!(joiners.len(), usize::from(forming.spec.world));
        let member = |j: &Joiner| Member { source: j.address.into(), cookie: j.cookie };
        let plan = JobPlan {
            id,
            dtype: forming.spec.dtype,
            op: forming.spec.op,
            layout: forming.layout,
            members: joiners.iter().map(member).collect(),
            group: group.map(|to| Group { to, cookie: forming.group_cookie }),
        };
        let seat = |j: Joiner| Seat { instance: j.instance, address: j.address, left: false };
        Self {
            plan: Arc::new(plan),
            spec: forming.spec,
            frames: forming.frames,
            seats: joiners.into_iter().map(seat).collect(),
            generation,
            credit: 0,
            packets: 0,
            active: now,
            removing: None,
        }
    }
}

/// One job. At least one of the two is there, but while it changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) next: Option<Forming>,
    pub(super) current: Option<Running>,
    /// Generations that were complete so far.
    pub(super) generations: u32,
}

impl Job {
    /// Frames of `core` that the job keeps from others. The old generation is gone before the
    /// new one is put on the cores, so it is the larger of the two, never both.
    pub(super) fn reserved(&self, core: usize) -> u64 {
        let next = self.next.as_ref().map_or(0, |n| n.frames[core]);
        let current = self.current.as_ref().map_or(0, |c| c.frames[core]);
        next.max(current)
    }

    /// The same without what is being freed.
    pub(super) fn reserved_for_long(&self, core: usize) -> u64 {
        let next = self.next.as_ref().map_or(0, |n| n.frames[core]);
        let stays = |c: &&Running| c.removing.is_none();
        let current = self.current.as_ref().filter(stays).map_or(0, |c| c.frames[core]);
        next.max(current)
    }
}
