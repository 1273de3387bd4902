//! The four rings of an AF_XDP socket, and the frames that travel in them: the part that the
//! `xdp` and the `mem` port have in common.
#![expect(unsafe_code, reason = "frames come back from the kernel as numbers")]

use super::counters::{Counter, Counters};
use super::frame::{Frame, Packet};
use super::pool::Pool;
use super::port::{BATCH, Lent};
use super::ring::{Consumer, Producer};
use super::umem::Umem;

/// `struct xdp_desc` (`include/uapi/linux/if_xdp.h`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Desc {
    /// Offset of the packet in the UMEM.
    pub addr: u64,
    /// Bytes of the packet.
    pub len: u32,
    /// Flags; 0 for a packet in one piece.
    pub options: u32,
}

/// The rings, from the side of user space.
pub struct RingSet {
    rx: Consumer<Desc>,
    tx: Producer<Desc>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    /// Frames to keep in the fill ring.
    reserve: u32,
    lent: Lent,
}

impl RingSet {
    /// The four rings, empty; the fill ring is to hold `reserve` frames.
    #[must_use]
    pub fn new(
        rx: Consumer<Desc>,
        tx: Producer<Desc>,
        fill: Producer<u64>,
        completion: Consumer<u64>,
        reserve: u32,
    ) -> Self {
        Self { rx, tx, fill, completion, reserve, lent: Lent::default() }
    }

    /// Frames in the rings.
    #[must_use]
    pub const fn lent(&self) -> Lent {
        self.lent
    }

    /// Whether the kernel waits for a system call to receive.
    #[must_use]
    pub fn rx_needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Whether the kernel waits for a system call to transmit.
    #[must_use]
    pub fn tx_needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Descriptors that the kernel has not taken from the TX ring yet.
    #[must_use]
    pub fn tx_pending(&self) -> u32 {
        self.tx.pending()
    }

    /// Appends up to [`BATCH`] received packets to `inbox`.
    #[inline]
    pub fn receive(
        &mut self,
        umem: &Umem,
        pool: &mut Pool,
        inbox: &mut Vec<Packet>,
        counters: &mut Counters,
    ) {
        let size = umem.frame_bytes() as u64;
        let shift = size.trailing_zeros();
        let mut taken = 0;
        while taken < BATCH {
            let Some(desc) = self.rx.pop() else { break };
            taken += 1;
            let (index, start) = (desc.addr >> shift, desc.addr & (size - 1));
            if index >= u64::from(umem.count()) {
                // Not a frame at all: nothing can be given back.
                counters.bump(Counter::DropMisplaced);
                continue;
            }
            // SAFETY: the kernel has handed this frame of the fill ring over to us.
            let frame = unsafe { Frame::mint(index as u32) };
            if start + u64::from(desc.len) > size {
                counters.bump(Counter::DropMisplaced);
                pool.give(frame);
            } else {
                inbox.push(Packet { frame, start: start as u16, len: desc.len as u16 });
            }
        }
        if taken > 0 {
            self.rx.release();
            self.lent.fill -= taken as u64;
        }
    }

    /// Takes packets from the front of `outbox`, as many as the TX ring has room for.
    #[inline]
    pub fn transmit(&mut self, umem: &Umem, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        if outbox.is_empty() {
            return;
        }
        let room = self.tx.room(outbox.len() as u32).min(outbox.len() as u32) as usize;
        if room < outbox.len() {
            counters.bump(Counter::TxRingFull);
        }
        for packet in outbox.drain(..room) {
            let base = u64::from(packet.frame.index()) * umem.frame_bytes() as u64;
            let len = u32::from(packet.len);
            let desc = Desc { addr: base + u64::from(packet.start), len, options: 0 };
            // The frame is the kernel's from here on; it comes back by the completion ring.
            let pushed = self.tx.push(desc);
            debug_assert!(pushed.is_ok(), "there was room");
        }
        self.tx.commit();
        self.lent.tx += room as u64;
    }

    /// Takes back all transmitted frames.
    #[inline]
    pub fn reclaim(&mut self, umem: &Umem, pool: &mut Pool) {
        let shift = umem.frame_bytes().trailing_zeros();
        let mut taken = 0;
        while let Some(addr) = self.completion.pop() {
            taken += 1;
            // SAFETY: we put this frame into the TX ring, and the kernel has given it back.
            pool.transmitted(unsafe { Frame::mint((addr >> shift) as u32) });
        }
        if taken > 0 {
            self.completion.release();
            self.lent.tx -= taken;
        }
    }

    /// Brings the fill ring back to its reserve.
    #[inline]
    pub fn refill(&mut self, umem: &Umem, pool: &mut Pool, counters: &mut Counters) {
        let want = u64::from(self.reserve).saturating_sub(self.lent.fill);
        // Small top-ups would cost a cache line of the kernel's each time.
        if want < (BATCH as u64 / 2).min(u64::from(self.reserve)) {
            return;
        }
        let mut given = 0;
        while given < want && self.fill.room(1) > 0 {
            let Some(frame) = pool.take() else {
                counters.bump(Counter::FillShort);
                break;
            };
            let pushed = self.fill.push(u64::from(frame.index()) * umem.frame_bytes() as u64);
            debug_assert!(pushed.is_ok(), "there was room");
            given += 1;
        }
        if given > 0 {
            self.fill.commit();
            self.lent.fill += given;
        }
    }
}
