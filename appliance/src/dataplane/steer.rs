//! Packets that came to the wrong queue: copied to the core that owns their chunk, never lost.
//!
//! That costs a copy and two queue operations, and it means that the NIC's rules do not send
//! port to queue as they should; so every such packet is counted as a steering fault.

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Buffers that a core has on the way to others at most: what comes in while the owner, woken
/// from its sleep, gets to work.
const PARCELS: usize = 1024;

/// Bytes of the longest packet.
const LONGEST: usize = 4096;

/// A copied packet on its way to the owner.
#[derive(Debug)]
pub struct Parcel {
    bytes: Box<[u8; LONGEST]>,
    len: usize,
    /// Where the empty buffer goes back to.
    from: u16,
}

impl Parcel {
    /// The packet.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Wakes a core that sleeps. A core that spins is never asleep, and costs the sender one load.
#[derive(Debug)]
struct Waker {
    event: EventFd,
    asleep: AtomicBool,
}

impl Waker {
    fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { event, asleep: AtomicBool::new(false) })
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // It can only be full of wake-ups.
            let _ = self.event.write(1);
        }
    }
}

/// One core's part in the exchange of parcels.
#[derive(Clone, Debug)]
pub struct Steering {
    shard: u16,
    /// Parcels for each shard.
    inboxes: Vec<Arc<ArrayQueue<Parcel>>>,
    /// Empty buffers of each shard, allocated once.
    spares: Vec<Arc<ArrayQueue<Box<[u8; LONGEST]>>>>,
    wakers: Vec<Arc<Waker>>,
}

impl Steering {
    /// The parts of `shards` cores, in order of shard.
    ///
    /// # Errors
    /// Where the system has no event descriptors left.
    pub fn new(shards: u16) -> io::Result<Vec<Self>> {
        let wakers =
            (0..shards).map(|_| Waker::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let inboxes: Vec<_> = (0..shards)
            .map(|_| Arc::new(ArrayQueue::new((PARCELS * usize::from(shards)).max(1))))
            .collect();
        let spares: Vec<_> = (0..shards)
            .map(|_| {
                let spare = ArrayQueue::new(PARCELS);
                // A box with one core has nobody to steer to.
                for _ in 0..if shards > 1 { PARCELS } else { 0 } {
                    // The queue is as long as the loop.
                    let _ = spare.push(Box::new([0; LONGEST]));
                }
                Arc::new(spare)
            })
            .collect();
        let part = |shard| Self {
            shard,
            inboxes: inboxes.clone(),
            spares: spares.clone(),
            wakers: wakers.clone(),
        };
        Ok((0..shards).map(part).collect())
    }

    /// Copies `packet` to the core of `shard`. Returns whether there was a buffer for it.
    pub(super) fn send(&self, shard: u16, packet: &[u8]) -> bool {
        let (Some(inbox), Some(spare)) =
            (self.inboxes.get(usize::from(shard)), self.spares.get(usize::from(self.shard)))
        else {
            return false;
        };
        if packet.len() > LONGEST {
            return false;
        }
        let Some(mut bytes) = spare.pop() else { return false };
        bytes[..packet.len()].copy_from_slice(packet);
        match inbox.push(Parcel { bytes, len: packet.len(), from: self.shard }) {
            Ok(()) => {
                self.wakers[usize::from(shard)].wake();
                true
            }
            Err(parcel) => {
                self.recycle(parcel);
                false
            }
        }
    }

    /// The next parcel for this core.
    #[inline]
    pub(super) fn receive(&self) -> Option<Parcel> {
        if self.inboxes.len() < 2 {
            return None;
        }
        self.inboxes[usize::from(self.shard)].pop()
    }

    /// Calls `wait` with a descriptor that becomes readable when a parcel comes; not at all where
    /// one is here already.
    pub(super) fn sleep(&self, wait: impl FnOnce(BorrowedFd<'_>)) {
        let own = usize::from(self.shard);
        let waker = &self.wakers[own];
        // Before the look at the inbox: who sends after it sees the flag.
        waker.asleep.store(true, Ordering::SeqCst);
        if self.inboxes[own].is_empty() {
            wait(waker.event.as_fd());
        }
        waker.asleep.store(false, Ordering::SeqCst);
        // Nothing to read is as good.
        let _ = waker.event.read();
    }

    /// Sends the buffer of a parcel home.
    pub(super) fn recycle(&self, parcel: Parcel) {
        if let Some(spare) = self.spares.get(usize::from(parcel.from)) {
            // It came from there, so there is room.
            let _ = spare.push(parcel.bytes);
        }
    }
}
