//! Packets that came to the wrong queue: copied to the core that owns their chunk, never lost.
//!
//! That costs a copy and two queue operations, and it means that the NIC's rules do not send
//! port to queue as they should; so every such packet is counted as a steering fault.

use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Buffers that a core has on the way to others at most.
const PARCELS: usize = 256;

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

/// One core's part in the exchange of parcels.
#[derive(Clone, Debug)]
pub struct Steering {
    shard: u16,
    /// Parcels for each shard.
    inboxes: Vec<Arc<ArrayQueue<Parcel>>>,
    /// Empty buffers of each shard, allocated once.
    spares: Vec<Arc<ArrayQueue<Box<[u8; LONGEST]>>>>,
}

impl Steering {
    /// The parts of `shards` cores, in order of shard.
    #[must_use]
    pub fn new(shards: u16) -> Vec<Self> {
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
        (0..shards)
            .map(|shard| Self { shard, inboxes: inboxes.clone(), spares: spares.clone() })
            .collect()
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
            Ok(()) => true,
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

    /// Sends the buffer of a parcel home.
    pub(super) fn recycle(&self, parcel: Parcel) {
        if let Some(spare) = self.spares.get(usize::from(parcel.from)) {
            // It came from there, so there is room.
            let _ = spare.push(parcel.bytes);
        }
    }
}
