//! The `mem` port: AF_XDP's rings in ordinary memory, and the wire at their other end as a value
//! that a test, a benchmark or a simulation moves by hand.
#![expect(unsafe_code, reason = "plays the kernel: frames come out of its rings as numbers")]

use super::counters::Counters;
use super::frame::{Frame, ORIGIN, Packet};
use super::pool::Pool;
use super::port::{Lent, Port};
use super::ring::{Consumer, Producer, on_heap};
use super::ring_set::{Desc, RingSet};
use super::umem::{Umem, UmemError};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The box's side.
pub struct MemPort {
    umem: Arc<Umem>,
    rings: RingSet,
}

/// The wire's side: what the kernel and the NIC are for a real socket.
pub struct MemWire {
    umem: Arc<Umem>,
    rx: Producer<Desc>,
    tx: Consumer<Desc>,
    fill: Consumer<u64>,
    completion: Producer<u64>,
}

/// A port and its wire over a new UMEM of `frames` frames of `frame_bytes`, with rings of `ring`
/// entries (a power of two) and a fill ring that is kept full; and the pool of all frames.
///
/// # Errors
/// Where the UMEM cannot be had.
///
/// # Panics
/// Where `ring` is not a power of two.
pub fn pair(
    frames: u32,
    frame_bytes: usize,
    ring: u32,
) -> Result<(MemPort, MemWire, Pool), UmemError> {
    let (umem, all) = Umem::new(frames, frame_bytes)?;
    let umem = Arc::new(umem);
    let (rx_in, rx) = on_heap(ring);
    let (tx, tx_out) = on_heap(ring);
    let (fill, fill_out) = on_heap(ring);
    let (completion_in, completion) = on_heap(ring);
    let rings = RingSet::new(rx, tx, fill, completion, ring);
    let port = MemPort { umem: umem.clone(), rings };
    let wire = MemWire { umem, rx: rx_in, tx: tx_out, fill: fill_out, completion: completion_in };
    Ok((port, wire, Pool::new(all)))
}

impl Port for MemPort {
    fn umem(&self) -> &Umem {
        &self.umem
    }

    #[inline]
    fn receive(&mut self, pool: &mut Pool, inbox: &mut Vec<Packet>, counters: &mut Counters) {
        self.rings.receive(&self.umem, pool, inbox, counters);
    }

    #[inline]
    fn transmit(&mut self, _pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        self.rings.transmit(&self.umem, outbox, counters);
    }

    #[inline]
    fn settle(&mut self, pool: &mut Pool, counters: &mut Counters) {
        self.rings.reclaim(&self.umem, pool);
        self.rings.refill(&self.umem, pool, counters);
    }

    fn lent(&self) -> Lent {
        self.rings.lent()
    }

    fn wait(&mut self, _timeout: Duration, _wake: BorrowedFd<'_>) {}
}

impl MemWire {
    /// Puts one packet on the wire towards the box: `write` fills in the packet's bytes, which
    /// start at the usual place of the frame, and returns how many it wrote. Returns whether
    /// there was a frame and room for it; if not, the wire has dropped it.
    pub fn send(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        self.send_at(ORIGIN, write)
    }

    /// As [`send`](Self::send), with the packet at offset `start` of its frame.
    ///
    /// # Panics
    /// Where `start` is not in the frame, or `write` returns more than it was given.
    pub fn send_at(&mut self, start: usize, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if self.rx.room(1) == 0 {
            return false;
        }
        let Some(addr) = self.fill.pop() else { return false };
        self.fill.release();
        let index = (addr / self.umem.frame_bytes() as u64) as u32;
        // SAFETY: the box has lent us this frame through the fill ring.
        let mut frame = unsafe { Frame::mint(index) };
        let room = &mut self.umem.bytes_mut(&mut frame)[start..];
        let longest = room.len();
        let len = write(room);
        assert!(len <= longest, "wrote out of the frame");
        let desc = Desc { addr: addr + start as u64, len: len as u32, options: 0 };
        let pushed = self.rx.push(desc);
        debug_assert!(pushed.is_ok(), "there was room");
        self.rx.commit();
        true
    }

    /// Takes the next packet that the box transmits, shows it to `read`, and gives its frame
    /// back. `None` where there is none.
    pub fn receive<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if self.completion.room(1) == 0 {
            return None;
        }
        let desc = self.tx.pop()?;
        self.tx.release();
        let size = self.umem.frame_bytes() as u64;
        let (index, start) = ((desc.addr / size) as u32, (desc.addr % size) as usize);
        // SAFETY: the box has lent us this frame through the TX ring.
        let frame = unsafe { Frame::mint(index) };
        let value = read(&self.umem.bytes(&frame)[start..start + desc.len as usize]);
        let pushed = self.completion.push(desc.addr);
        debug_assert!(pushed.is_ok(), "there was room");
        self.completion.commit();
        Some(value)
    }
}
