//! The fault injector: a port round a port that loses, duplicates and reorders packets in both
//! directions, by a seed. For demonstrations and tests; never on by itself.

use super::counters::{Counter, Counters};
use super::frame::Packet;
use super::pool::Pool;
use super::port::{Lent, Port};
use super::umem::Umem;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Steps that a delayed packet is held back at the longest.
const LONGEST_DELAY: u32 = 8;

/// How often packets suffer what: probabilities from 0 to 1, each for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The packet vanishes.
    pub loss: f64,
    /// The packet comes twice.
    pub duplicate: f64,
    /// The packet comes after packets that were sent later.
    pub reorder: f64,
    /// Makes the same sequence of faults again.
    pub seed: u64,
}

impl Faults {
    /// Whether there is anything to inject.
    #[must_use]
    pub fn any(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, good enough to throw dice.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with the probability `p`.
    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// From 1 to `n`.
    fn up_to(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32 + 1
    }
}

/// A packet that waits for later ones to pass.
struct Delayed {
    packet: Packet,
    steps: u32,
}

/// A port whose packets suffer.
pub struct FaultyPort<P> {
    inner: P,
    faults: Faults,
    dice: Dice,
    delayed_in: VecDeque<Delayed>,
    delayed_out: VecDeque<Delayed>,
    /// What goes on to the inner port.
    going: Vec<Packet>,
    /// What has come from the inner port.
    come: Vec<Packet>,
}

impl<P: Port> FaultyPort<P> {
    /// Injects `faults` into what goes through `inner`. `shard` makes each core's faults its own.
    #[must_use]
    pub fn new(inner: P, faults: Faults, shard: u16) -> Self {
        Self {
            inner,
            faults,
            dice: Dice(faults.seed ^ u64::from(shard) << 48),
            delayed_in: VecDeque::new(),
            delayed_out: VecDeque::new(),
            going: Vec::new(),
            come: Vec::new(),
        }
    }
}

/// A copy of `packet` in a frame of its own, where there is one.
fn copy(umem: &Umem, pool: &mut Pool, packet: &Packet) -> Option<Packet> {
    let mut frame = pool.take()?;
    let start = usize::from(packet.start);
    let bytes = umem.packet(packet);
    umem.bytes_mut(&mut frame)[start..start + bytes.len()].copy_from_slice(bytes);
    Some(Packet { frame, start: packet.start, len: packet.len })
}

/// Lets every packet of `from` meet its fate on the way to `to`.
fn suffer(
    (faults, dice): (&Faults, &mut Dice),
    (umem, pool, counters): (&Umem, &mut Pool, &mut Counters),
    delayed: &mut VecDeque<Delayed>,
    from: &mut Vec<Packet>,
    to: &mut Vec<Packet>,
) {
    for d in &mut *delayed {
        d.steps -= 1;
    }
    for packet in from.drain(..) {
        if dice.chance(faults.loss) {
            counters.bump(Counter::FaultDropped);
            pool.transmitted(packet.frame);
            continue;
        }
        if dice.chance(faults.duplicate)
            && let Some(twin) = copy(umem, pool, &packet)
        {
            counters.bump(Counter::FaultDuplicated);
            to.push(twin);
        }
        if dice.chance(faults.reorder) {
            counters.bump(Counter::FaultReordered);
            delayed.push_back(Delayed { packet, steps: dice.up_to(LONGEST_DELAY) });
        } else {
            to.push(packet);
        }
    }
    for _ in 0..delayed.len() {
        match delayed.pop_front() {
            Some(d) if d.steps == 0 => to.push(d.packet),
            Some(d) => delayed.push_back(d),
            None => break,
        }
    }
}

impl<P: Port> Port for FaultyPort<P> {
    fn umem(&self) -> &Umem {
        self.inner.umem()
    }

    fn receive(&mut self, pool: &mut Pool, inbox: &mut Vec<Packet>, counters: &mut Counters) {
        self.inner.receive(pool, &mut self.come, counters);
        suffer(
            (&self.faults, &mut self.dice),
            (self.inner.umem(), pool, counters),
            &mut self.delayed_in,
            &mut self.come,
            inbox,
        );
    }

    fn transmit(&mut self, pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        suffer(
            (&self.faults, &mut self.dice),
            (self.inner.umem(), pool, counters),
            &mut self.delayed_out,
            outbox,
            &mut self.going,
        );
        self.inner.transmit(pool, &mut self.going, counters);
    }

    fn settle(&mut self, pool: &mut Pool, counters: &mut Counters) {
        self.inner.settle(pool, counters);
    }

    fn lent(&self) -> Lent {
        let mut lent = self.inner.lent();
        lent.rx += (self.delayed_in.len() + self.come.len()) as u64;
        lent.tx += (self.delayed_out.len() + self.going.len()) as u64;
        lent
    }

    fn note_losses(&self, counters: &mut Counters) {
        self.inner.note_losses(counters);
    }

    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) {
        // A packet that is held back is work to come.
        if self.delayed_in.is_empty() && self.delayed_out.is_empty() && self.going.is_empty() {
            self.inner.wait(timeout, wake);
        }
    }
}
