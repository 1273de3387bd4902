//! The ledger of frames: the free list, and the results that slots keep.
//!
//! A retained result is in flight to its worker at first. The slot then owns a [`Retained`]
//! claim on it while the frame itself is with the port; when the port gives it back, it comes to
//! rest in the ledger instead of the free list. If the slot lets go before that, the claim is
//! struck out and the frame becomes free when it comes back.

use super::counters::FrameCounts;
use super::frame::{Frame, Held, Place};
use super::port::Lent;

/// A slot's claim on the frame of a finished round's result.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a claim that is dropped keeps its frame for ever"]
pub struct Retained(Place);

impl Retained {
    /// Where the result is.
    #[must_use]
    #[inline]
    pub const fn place(&self) -> Place {
        self.0
    }
}

/// What the ledger notes of a frame.
#[derive(Debug, PartialEq, Eq)]
enum Mark {
    /// Nobody has a claim on it.
    Unclaimed,
    /// Claimed, and being transmitted.
    Leaving,
    /// Claimed, and at rest here.
    Home(Frame),
}

/// The frames of one core that are neither lent to its port nor held as parts.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Frame>,
    marks: Vec<Mark>,
    in_slots: u64,
}

impl Pool {
    /// All `frames` of a UMEM, free.
    #[must_use]
    pub fn new(frames: Vec<Frame>) -> Self {
        let marks = frames.iter().map(|_| Mark::Unclaimed).collect();
        Self { free: frames, marks, in_slots: 0 }
    }

    /// A free frame, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Gives a frame back.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        debug_assert!(self.free.len() < self.marks.len());
        self.free.push(frame);
    }

    /// Puts a packet's frame into a slot; gives it back where its place cannot be noted.
    #[inline]
    pub(super) fn hold(&mut self, frame: Frame, start: u16, shape: u8) -> Result<Held, Frame> {
        let held = Held::pack(frame, start, shape)?;
        self.in_slots += 1;
        Ok(held)
    }

    /// Takes a part out of a slot.
    #[inline]
    pub(super) fn unhold(&mut self, held: Held) -> Frame {
        self.in_slots -= 1;
        held.unpack()
    }

    /// Claims for a slot the frame of a part, which is about to be transmitted.
    #[inline]
    pub(super) fn retain(&mut self, held: &Held) -> Retained {
        let place = held.place();
        self.marks[place.index() as usize] = Mark::Leaving;
        Retained(place)
    }

    /// Takes back a frame that was transmitted.
    #[inline]
    pub fn transmitted(&mut self, frame: Frame) {
        let mark = &mut self.marks[frame.index() as usize];
        if *mark == Mark::Leaving {
            *mark = Mark::Home(frame);
            self.in_slots += 1;
        } else {
            self.give(frame);
        }
    }

    /// Ends a slot's claim.
    #[inline]
    pub(super) fn release(&mut self, claim: Retained) {
        let mark = &mut self.marks[claim.place().index() as usize];
        if let Mark::Home(frame) = std::mem::replace(mark, Mark::Unclaimed) {
            self.in_slots -= 1;
            self.give(frame);
        }
    }

    /// Number of free frames.
    #[must_use]
    #[inline]
    pub const fn free(&self) -> usize {
        self.free.len()
    }

    /// The ledger's counts together with the port's.
    #[must_use]
    pub fn counts(&self, lent: Lent) -> FrameCounts {
        FrameCounts {
            free: self.free.len() as u64,
            fill: lent.fill,
            rx: lent.rx,
            slot: self.in_slots,
            tx: lent.tx,
            total: self.marks.len() as u64,
        }
    }
}
