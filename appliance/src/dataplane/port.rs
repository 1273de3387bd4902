//! The seam between the data plane and the world: batches of packets in, batches out.

use super::counters::Counters;
use super::frame::Packet;
use super::pool::Pool;
use super::umem::Umem;
use nix::poll::{PollFd, PollTimeout};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Packets that one step takes at most.
pub const BATCH: usize = 64;

/// Frames that a port has of the core's, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// For packets to come.
    pub fill: u64,
    /// Packets that have come and are held back inside the port.
    pub rx: u64,
    /// Being transmitted.
    pub tx: u64,
}

/// A way for packets to come and go. Statically dispatched; one per core.
///
/// Packets are whole Ethernet frames, whatever the port is made of.
pub trait Port {
    /// The memory that all of this port's packets lie in.
    fn umem(&self) -> &Umem;

    /// Appends up to [`BATCH`] received packets to `inbox`.
    fn receive(&mut self, pool: &mut Pool, inbox: &mut Vec<Packet>, counters: &mut Counters);

    /// Takes packets from the front of `outbox` for transmission, as many as there is room for.
    fn transmit(&mut self, pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters);

    /// Gives transmitted frames back to the pool, and takes new ones for packets to come.
    fn settle(&mut self, pool: &mut Pool, counters: &mut Counters);

    /// Frames that the port has.
    fn lent(&self) -> Lent;

    /// Counts what was lost before it came to the port's rings, where the kernel tells. Takes a
    /// system call: not for every step.
    fn note_losses(&self, _counters: &mut Counters) {}

    /// Waits until there may be work or `wake` is readable, `timeout` at the longest.
    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>);
}

/// Waits until one of `descriptors` is ready, `timeout` at the longest. Timed out, interrupted or
/// ready: the caller looks for itself.
pub fn poll(descriptors: &mut [PollFd<'_>], timeout: Duration) {
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
    let _ = nix::poll::poll(descriptors, timeout);
}
