//! One AF_XDP socket on one queue, as a port. Zero-copy where the driver can, copy where it is
//! allowed to fall back; which one it got is read back from the kernel.
#![expect(unsafe_code, reason = "socket options and kicks of AF_XDP")]

mod error;
mod options;

pub use error::Error;

use super::map::{self, Sizes};
use crate::dataplane::counters::{Counter, Counters};
use crate::dataplane::frame::{HEADROOM, Packet};
use crate::dataplane::pool::Pool;
use crate::dataplane::port::{self, BATCH, Lent, Port};
use crate::dataplane::ring_set::RingSet;
use crate::dataplane::udp::{CAPACITY, Sender};
use crate::dataplane::umem::Umem;
use error::{chain, source_of};
use nix::poll::{PollFd, PollFlags};
use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xsk_rs::config::{
    BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig,
};
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue};

/// How long a queue that a dying process still holds is waited for (15-22 ms were seen).
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// A kick at the latest after this long while packets wait: a lost wake-up costs that much.
const KICK_EVERY: Duration = Duration::from_micros(150);

/// Send calls in a row for one batch: 32 packets go with each in copy mode
/// (`TX_BATCH_SIZE`, net/xdp/xsk.c).
const KICKS: u32 = 256;

/// Which modes may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Zero-copy, and copy where the driver refuses it.
    Auto,
    /// Zero-copy or nothing.
    ZeroCopy,
    /// Copy.
    Copy,
}

/// Which mode the kernel says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The NIC reads and writes the frames.
    ZeroCopy,
    /// The kernel copies between the NIC's memory and the frames.
    Copy,
}

impl Mode {
    /// Name used in status, metrics and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zerocopy",
            Self::Copy => "copy",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a socket is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Interface in this thread's network namespace.
    pub interface: String,
    /// Queue of the interface.
    pub queue: u32,
    /// Allowed modes.
    pub wanted: Wanted,
    /// Frames of the UMEM.
    pub frames: u32,
    /// Bytes of a frame: 2048 or 4096.
    pub frame_bytes: u32,
    /// Entries of the RX ring, a power of two.
    pub rx: u32,
    /// Entries of the TX ring, a power of two.
    pub tx: u32,
    /// Entries of the fill ring, a power of two.
    pub fill: u32,
    /// Entries of the completion ring, a power of two.
    pub completion: u32,
    /// Reserved 2 MiB pages for the UMEM.
    pub huge_pages: bool,
}

/// xsk-rs's halves of the socket. Dropping them closes it.
struct Queues {
    tx: TxQueue,
    _rx: RxQueue,
    _fill_and_completion: Option<(FillQueue, CompQueue)>,
}

/// Holds the queues so that rings and UMEM can share them. Nobody calls anything on them.
struct Keeper {
    _queues: Queues,
}

// SAFETY: the queues are only kept and dropped, by one thread, after all their users.
unsafe impl Send for Keeper {}
// SAFETY: no method is ever called on them through a shared reference.
unsafe impl Sync for Keeper {}

/// One AF_XDP socket.
pub struct XdpPort {
    // Before the UMEM: the rings go first.
    rings: RingSet,
    umem: Umem,
    fd: RawFd,
    mode: Mode,
    /// Why zero-copy was refused, where it was asked for.
    refused: Option<String>,
    kicked: Instant,
    /// Sends answers instead of the TX ring.
    sender: Option<Sender>,
    /// Answers that the sender refused, for the TX ring.
    by_ring: Vec<Packet>,
    /// The RX ring had as many packets as were wanted, so there may be more.
    more: bool,
}

impl XdpPort {
    /// Makes a UMEM and binds a socket over it. The pool has all frames that the fill ring does
    /// not. Packets come once the socket is in the program's map.
    ///
    /// # Errors
    /// Where the kernel refuses memory, queue or mode.
    pub fn bind(settings: &Settings) -> Result<(Self, Pool), Error> {
        let s = settings;
        let (interface, queue) = (s.interface.clone(), s.queue);
        let umem_config = umem_config(s).map_err(|reason| Error::Setting {
            interface: interface.clone(),
            queue,
            reason,
        })?;
        let name: Interface = s.interface.parse().map_err(|e| Error::Setting {
            interface: interface.clone(),
            queue,
            reason: format!("not a name of an interface: {e}"),
        })?;
        let count = NonZeroU32::new(s.frames).unwrap_or(NonZeroU32::MIN);
        let bytes = u64::from(s.frames) * u64::from(s.frame_bytes);
        let (memory, descs) =
            xsk_rs::Umem::new(umem_config, count, s.huge_pages).map_err(|e| Error::Umem {
                interface: interface.clone(),
                queue,
                bytes,
                pages: bytes.div_ceil(2 << 20),
                reason: chain(&e),
            })?;
        let (queues, refused) = bind_as_wanted(s, &memory, &name)?;
        let fd = queues.tx.fd().as_raw_fd();
        // SAFETY: nobody else has a descriptor of this memory in use.
        let first = unsafe { memory.data(&descs[0]) };
        // The first descriptor points behind both headrooms of frame 0.
        let origin = umem_config.xdp_headroom() as usize + HEADROOM;
        // SAFETY: that many bytes before it lies the start of the mapping.
        let base = unsafe { first.contents().as_ptr().cast_mut().sub(origin) };
        let base = NonNull::new(base).ok_or_else(|| Error::Setting {
            interface: interface.clone(),
            queue,
            reason: "the UMEM lies at address 0".to_owned(),
        })?;
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(Keeper { _queues: queues });
        // SAFETY: `memory` owns the mapping of `frames` frames and nothing else uses it: the
        // descriptors that came with it are dropped here unused.
        let (umem, frames) = unsafe {
            Umem::lent(base, s.frames, s.frame_bytes as usize, Box::new((memory, keeper.clone())))
        }?;
        let failed = |what| {
            move |source| Error::Socket { interface: s.interface.clone(), queue, what, source }
        };
        let sizes = Sizes { rx: s.rx, tx: s.tx, fill: s.fill, completion: s.completion };
        // SAFETY: these are the sizes that the rings were made with, and xsk-rs's queues are
        // locked away in the keeper.
        let mapped =
            unsafe { map::rings(fd, sizes, &keeper) }.map_err(failed("mapping its rings"))?;
        let mode = options::mode(fd).map_err(failed("reading its mode (XDP_OPTIONS)"))?;
        options::set_send_buffer(fd);
        let rings = RingSet::new(mapped.rx, mapped.tx, mapped.fill, mapped.completion, s.fill);
        let mut port = Self {
            rings,
            umem,
            fd,
            mode,
            refused,
            kicked: Instant::now(),
            sender: None,
            by_ring: Vec::new(),
            more: false,
        };
        let mut pool = Pool::new(frames);
        port.settle(&mut pool, &mut Counters::default());
        if mode == Mode::ZeroCopy {
            options::poll_queue(fd).map_err(failed("polling its queue (SO_BUSY_POLL)"))?;
        }
        Ok((port, pool))
    }

    /// The mode that the kernel reports.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Why zero-copy was refused, where it was asked for and copy was allowed instead.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Sends answers by ordinary sockets from now on, and by the TX ring only what these refuse.
    #[must_use]
    pub fn with_sender(mut self, sender: Sender) -> Self {
        self.sender = Some(sender);
        self.by_ring.reserve(CAPACITY);
        self
    }

    /// The socket, to be put into the program's map.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as this port lives.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Tells the kernel to transmit, until it has taken everything or says that it cannot.
    fn kick(&mut self) {
        self.kicked = Instant::now();
        for _ in 0..KICKS {
            let pending = self.rings.tx_pending();
            if pending == 0 {
                return;
            }
            // SAFETY: no buffer is passed.
            let sent = unsafe {
                libc::sendto(self.fd, ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0)
            };
            // EAGAIN after a full batch of 32 is normal: as long as the ring drains, go on. All
            // other refusals (no buffers, queue busy, link down) are tried again at the next step.
            if sent < 0 && self.rings.tx_pending() == pending {
                return;
            }
            if self.mode == Mode::ZeroCopy {
                // The driver is awake and goes on by itself.
                return;
            }
        }
    }

    /// Sends packets from the front of `outbox` by the TX ring, as many as it has room for.
    #[inline]
    fn send_by_ring(&mut self, pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        if !outbox.is_empty() {
            self.rings.transmit(&self.umem, outbox, counters);
            if self.rings.tx_needs_wakeup() || self.mode == Mode::Copy {
                self.kick();
            }
            self.rings.reclaim(&self.umem, pool);
        } else if self.rings.lent().tx > 0
            && self.rings.tx_pending() > 0
            && self.kicked.elapsed() >= KICK_EVERY
        {
            self.kick();
        }
    }
}

impl Port for XdpPort {
    fn umem(&self) -> &Umem {
        &self.umem
    }

    #[inline]
    fn receive(&mut self, pool: &mut Pool, inbox: &mut Vec<Packet>, counters: &mut Counters) {
        self.rings.receive(&self.umem, pool, inbox, counters);
        self.more = inbox.len() >= BATCH;
        if inbox.is_empty() && self.rings.rx_needs_wakeup() {
            // SAFETY: no buffer is passed; this only wakes the driver.
            unsafe {
                libc::recvfrom(
                    self.fd,
                    ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            };
        }
    }

    #[inline]
    fn transmit(&mut self, pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        let Some(sender) = &mut self.sender else {
            return self.send_by_ring(pool, outbox, counters);
        };
        let mut by_ring = std::mem::take(&mut self.by_ring);
        sender.transmit((&self.umem, pool), outbox, &mut by_ring, self.more, counters);
        self.send_by_ring(pool, &mut by_ring, counters);
        // What found no room is tried again with what is new.
        outbox.append(&mut by_ring);
        self.by_ring = by_ring;
    }

    #[inline]
    fn settle(&mut self, pool: &mut Pool, counters: &mut Counters) {
        self.rings.reclaim(&self.umem, pool);
        self.rings.refill(&self.umem, pool, counters);
    }

    fn lent(&self) -> Lent {
        let mut lent = self.rings.lent();
        lent.tx += self.sender.as_ref().map_or(0, |s| s.waiting() as u64);
        lent
    }

    fn note_losses(&self, counters: &mut Counters) {
        // Without an answer the counters stay as they were.
        if let Ok(lost) = options::losses(self.fd) {
            counters.set(Counter::DropRxRingFull, lost.rx_ring_full);
            counters.set(Counter::DropSocket, lost.rx_dropped);
            counters.set(Counter::FillEmpty, lost.rx_fill_ring_empty_descs);
        }
    }

    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) {
        // What waits for a full socket is work to come.
        if self.sender.as_ref().is_some_and(|s| s.waiting() > 0) {
            return;
        }
        if self.rings.tx_pending() > 0 {
            self.kick();
        }
        let mut polls =
            [PollFd::new(self.socket(), PollFlags::POLLIN), PollFd::new(wake, PollFlags::POLLIN)];
        port::poll(&mut polls, timeout);
    }
}

/// The UMEM's numbers in xsk-rs's types.
fn umem_config(s: &Settings) -> Result<UmemConfig, String> {
    let size = |name: &str, n| QueueSize::new(n).map_err(|e| format!("{name}: {e}"));
    UmemConfig::builder()
        .frame_size(FrameSize::new(s.frame_bytes).map_err(|e| e.to_string())?)
        .frame_headroom(HEADROOM as u32)
        .fill_queue_size(size("fill ring", s.fill)?)
        .comp_queue_size(size("completion ring", s.completion)?)
        .build()
        .map_err(|e| e.to_string())
}

/// Binds with zero-copy first where it is wanted, and with copy where it is allowed; never leaves
/// the choice to the kernel, which would fall back in silence.
fn bind_as_wanted(
    s: &Settings,
    memory: &xsk_rs::Umem,
    name: &Interface,
) -> Result<(Queues, Option<String>), Error> {
    let mut refused = None;
    if s.wanted != Wanted::Copy {
        match bind_once(s, memory, name, BindFlags::XDP_ZEROCOPY) {
            Err(Error::NoZeroCopy { source, .. }) if s.wanted == Wanted::Auto => {
                refused = Some(source.to_string());
            }
            other => return other.map(|queues| (queues, None)),
        }
    }
    bind_once(s, memory, name, BindFlags::XDP_COPY).map(|queues| (queues, refused))
}

/// Binds with one mode, and waits a while for a queue that is busy.
fn bind_once(
    s: &Settings,
    memory: &xsk_rs::Umem,
    name: &Interface,
    mode: BindFlags,
) -> Result<Queues, Error> {
    let size = |n| {
        QueueSize::new(n).map_err(|e| Error::Setting {
            interface: s.interface.clone(),
            queue: s.queue,
            reason: e.to_string(),
        })
    };
    let config = SocketConfig::builder()
        .rx_queue_size(size(s.rx)?)
        .tx_queue_size(size(s.tx)?)
        .bind_flags(mode | BindFlags::XDP_USE_NEED_WAKEUP)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .build();
    let started = Instant::now();
    loop {
        // SAFETY: the UMEM is not shared: this is its only socket.
        let error = match unsafe { Socket::new(config, memory, name, s.queue) } {
            Ok((tx, rx, fill_and_completion)) => {
                return Ok(Queues { tx, _rx: rx, _fill_and_completion: fill_and_completion });
            }
            Err(error) => error,
        };
        let source = source_of(&error);
        let (interface, queue) = (s.interface.clone(), s.queue);
        match source.raw_os_error() {
            Some(libc::EBUSY) if started.elapsed() < BUSY_WAIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Some(libc::EBUSY) => {
                let waited_ms = started.elapsed().as_millis();
                return Err(Error::Busy { interface, queue, waited_ms });
            }
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT)
                if mode.contains(BindFlags::XDP_ZEROCOPY) =>
            {
                return Err(Error::NoZeroCopy { interface, queue, source });
            }
            _ => return Err(Error::Bind { interface, queue, source }),
        }
    }
}
