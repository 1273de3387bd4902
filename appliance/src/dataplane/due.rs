//! Slots that are complete, in the short time between their last part and their sum.
//!
//! The parts of a slot lie anywhere in memory. By making each sum one completion late, the core
//! has the parts of the next one on their way from memory while it works.

use super::frame::Held;
use crate::sum::{Isa, Reduce, SumError};
use gradbox_protocol::{DType, MAX_WORLD, Op};

/// A sum to be made, and the parts that it is made of; none where there is nothing to do.
#[derive(Debug)]
pub(super) struct Due {
    /// The kernel.
    pub(super) reduce: Reduce,
    /// Bytes of each part.
    pub(super) len: u16,
    /// The job whose group gets one RESULT for all, if it is not one to each.
    pub(super) for_all: Option<u16>,
    world: u8,
    parts: [Option<Held>; MAX_WORLD],
}

impl Due {
    /// The parts, in rank order.
    #[inline]
    pub(super) fn parts(&self) -> &[Option<Held>] {
        &self.parts[..usize::from(self.world)]
    }

    /// Whether there is nothing to do.
    #[inline]
    pub(super) const fn is_none(&self) -> bool {
        self.world == 0
    }

    /// The sum is made, and the parts have been taken.
    #[inline]
    pub(super) const fn done(&mut self) {
        self.world = 0;
    }

    /// The parts, in rank order, to be taken.
    #[inline]
    pub(super) fn parts_mut(&mut self) -> &mut [Option<Held>] {
        &mut self.parts[..usize::from(self.world)]
    }
}

/// The sum that waits, and the one that is being made.
#[derive(Debug)]
pub(super) struct DueSums {
    sums: [Due; 2],
    waiting: usize,
}

impl DueSums {
    /// Nothing is due.
    pub(super) fn new() -> Result<Self, SumError> {
        let reduce = Reduce::select(Isa::Portable, DType::F32, Op::Sum, 1)?;
        let parts = || [const { None }; MAX_WORLD];
        let none = || Due { reduce, len: 0, for_all: None, world: 0, parts: parts() };
        Ok(Self { sums: [none(), none()], waiting: 0 })
    }

    /// Takes the parts out of a slot. Their sum waits now; the one that did is to be made.
    #[inline]
    pub(super) fn add(
        &mut self,
        reduce: Reduce,
        for_all: Option<u16>,
        len: u16,
        parts: &mut [Option<Held>],
    ) -> &Due {
        self.waiting ^= 1;
        let due = &mut self.sums[self.waiting];
        debug_assert!(due.world == 0);
        due.reduce = reduce;
        due.len = len;
        due.for_all = for_all;
        due.world = parts.len() as u8;
        for (to, from) in due.parts.iter_mut().zip(parts) {
            *to = from.take();
        }
        due
    }

    /// The sum that waits is to be made now.
    #[inline]
    pub(super) const fn hurry(&mut self) {
        self.waiting ^= 1;
    }

    /// The sum to be made, and the one that waits.
    #[inline]
    pub(super) const fn both(&mut self) -> (&mut Due, &Due) {
        let [a, b] = &mut self.sums;
        if self.waiting == 0 { (b, a) } else { (a, b) }
    }
}
