//! The slots of one job on one core.

use super::frame::Held;
use super::plan::{JobPlan, Progress};
use super::pool::{Pool, Retained};
use crate::sum::{Isa, Reduce, SumError};
use gradbox_protocol::status::{NOBODY, StatusBody};
use gradbox_protocol::{MAX_WORLD, STATUS_CHUNKS};
use std::sync::Arc;

/// The state of one (job, tensor, chunk), but for the parts, which lie in an array of their own.
///
/// A slot holds at most two rounds: the parts of the round that it collects, and the result of
/// the round before, which stays until that collection is complete: by then every rank has
/// pushed the next round, so it has the result.
#[derive(Debug, Default)]
struct Slot {
    /// Ranks whose part is here, a bit each.
    held: u32,
    /// The round that is being collected, modulo 2^32: the number of rounds completed.
    round: u32,
    /// When the first part of this round came, in microseconds of the core's clock.
    since_us: u32,
    /// The result of the round before.
    result: Option<Retained>,
}

/// What a PUSH means to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A part that is missing.
    Wanted,
    /// A part that is here already.
    Duplicate,
    /// The round is finished: the worker wants its result again.
    Finished,
    /// A round before that.
    Stale,
    /// A round that cannot have begun.
    Future,
}

/// One job on one core.
#[derive(Debug)]
pub struct JobTable {
    plan: Arc<JobPlan>,
    shard: u16,
    world: usize,
    everyone: u32,
    reduce: Reduce,
    slots: Vec<Slot>,
    /// `world` entries for each slot, in rank order.
    parts: Vec<Option<Held>>,
    progress: Arc<Progress>,
    pushed: [u64; MAX_WORLD],
    last: [u64; MAX_WORLD],
    packets: u64,
    /// Packets each rank may have in flight to this shard.
    pub(super) credit: u16,
    /// Something changed since the progress was stored.
    pub(super) touched: bool,
}

impl JobTable {
    /// Empty slots for `plan` on the core of `shard`, and the progress that it will show.
    /// Allocates all that the job will ever need: nothing is allocated later.
    ///
    /// # Errors
    /// Where no kernel sums this data type for so many ranks.
    pub fn new(
        plan: Arc<JobPlan>,
        shard: u16,
        credit: u16,
    ) -> Result<(Box<Self>, Arc<Progress>), SumError> {
        let world = plan.members.len();
        let reduce = Reduce::select(Isa::detect(), plan.dtype, plan.op, world)?;
        let slots = plan.layout.slots(shard) as usize;
        let progress = Arc::new(Progress::new(world));
        let table = Self {
            everyone: u32::MAX >> (MAX_WORLD - world),
            shard,
            world,
            reduce,
            slots: std::iter::repeat_with(Slot::default).take(slots).collect(),
            parts: std::iter::repeat_with(|| None).take(slots * world).collect(),
            progress: progress.clone(),
            pushed: [0; MAX_WORLD],
            last: [0; MAX_WORLD],
            packets: 0,
            credit,
            touched: false,
            plan,
        };
        Ok((Box::new(table), progress))
    }

    /// The job.
    #[must_use]
    #[inline]
    pub fn plan(&self) -> &JobPlan {
        &self.plan
    }

    /// The sum kernel.
    #[must_use]
    #[inline]
    pub(super) const fn reduce(&self) -> &Reduce {
        &self.reduce
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Notes a packet with the right cookie.
    #[inline]
    pub(super) const fn note_packet(&mut self) {
        self.packets += 1;
        self.touched = true;
    }

    /// What a PUSH of `rank` for `round` means to `slot`.
    ///
    /// # Panics
    /// Where `slot` is not below [`slots`](Self::slots).
    #[must_use]
    #[inline]
    pub(super) fn arrival(&self, slot: usize, rank: u8, round: u32) -> Arrival {
        let s = &self.slots[slot];
        match round.wrapping_sub(s.round) {
            0 if s.held & (1 << rank) == 0 => Arrival::Wanted,
            0 => Arrival::Duplicate,
            u32::MAX if s.result.is_some() => Arrival::Finished,
            ahead if ahead < 1 << 31 => Arrival::Future,
            _ => Arrival::Stale,
        }
    }

    /// Puts a part that is [`Arrival::Wanted`] into its slot. Returns whether it is complete now.
    #[inline]
    pub(super) fn put(&mut self, slot: usize, rank: u8, part: Held, now_us: u32) -> bool {
        let s = &mut self.slots[slot];
        debug_assert!(s.held & (1 << rank) == 0);
        if s.held == 0 {
            s.since_us = now_us;
        }
        s.held |= 1 << rank;
        self.parts[slot * self.world + usize::from(rank)] = Some(part);
        self.pushed[usize::from(rank)] += 1;
        let complete = s.held == self.everyone;
        if complete {
            self.last[usize::from(rank)] += 1;
        }
        complete
    }

    /// The parts of a slot, in rank order.
    #[inline]
    pub(super) fn parts_mut(&mut self, slot: usize) -> &mut [Option<Held>] {
        &mut self.parts[slot * self.world..(slot + 1) * self.world]
    }

    /// Ends the round of a slot whose parts have been taken out, and keeps the claim on its
    /// result. Returns the claim on the result before, and how long this round took.
    #[inline]
    pub(super) fn finish(
        &mut self,
        slot: usize,
        result: Retained,
        now_us: u32,
    ) -> (Option<Retained>, u32) {
        let s = &mut self.slots[slot];
        s.held = 0;
        s.round = s.round.wrapping_add(1);
        (s.result.replace(result), now_us.wrapping_sub(s.since_us))
    }

    /// The retained result of a slot.
    #[must_use]
    #[inline]
    pub(super) fn result(&self, slot: usize) -> Option<&Retained> {
        self.slots[slot].result.as_ref()
    }

    /// What is held of `rank` and what is done, for up to [`STATUS_CHUNKS`] slots from `first`.
    #[must_use]
    pub(super) fn status(&self, rank: u8, first: usize, count: usize) -> StatusBody {
        let range = &self.slots[first..][..count.min(STATUS_CHUNKS).min(self.slots.len() - first)];
        let mut status = StatusBody::new(range.len() as u16, self.credit);
        let (eights, rest) = range.as_chunks::<8>();
        let bytes = eights.iter().map(|eight| bits(eight, rank)).chain([bits(rest, rank)]);
        for ((held, done), bits) in status.held.iter_mut().zip(&mut status.done).zip(bytes) {
            (*held, *done) = bits;
        }
        let first = status.held.iter().position(|&byte| byte != 0);
        let first = first.map(|i| i * 8 + status.held[i].trailing_zeros() as usize);
        let missing = first.map_or(0, |first| self.everyone & !range[first].held);
        status.missing = missing.into();
        status.waiting_for = if missing == 0 { NOBODY } else { missing.trailing_zeros() as u8 };
        status
    }

    /// Gives all frames back to the pool.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for part in self.parts.iter_mut().filter_map(Option::take) {
            let frame = pool.unhold(part);
            pool.give(frame);
        }
        for claim in self.slots.iter_mut().filter_map(|s| s.result.take()) {
            pool.release(claim);
        }
    }

    /// Stores the progress for all to see.
    pub(super) fn store_progress(&mut self) {
        for rank in 0..self.world {
            self.progress.store(rank, self.pushed[rank], self.last[rank]);
        }
        self.progress.store_packets(self.packets);
        self.touched = false;
    }

    /// The job-global chunk of a slot.
    #[must_use]
    #[inline]
    pub(super) fn chunk(&self, slot: usize) -> u32 {
        slot as u32 * u32::from(self.plan.layout.shards()) + u32::from(self.shard)
    }
}

/// Of up to eight slots, a bit each: whether `rank`'s part is held, and whether the number of
/// completed rounds is odd. No branches: the parts that are here are as good as random.
#[inline]
fn bits(slots: &[Slot], rank: u8) -> (u8, u8) {
    slots.iter().enumerate().fold((0, 0), |(held, done), (i, slot)| {
        (held | ((slot.held >> rank & 1) as u8) << i, done | ((slot.round & 1) as u8) << i)
    })
}
