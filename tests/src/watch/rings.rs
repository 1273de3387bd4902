//! Finding the AF_XDP sockets of a process and mapping their rings a second time, to read only.
#![expect(unsafe_code, reason = "system calls, and memory that the kernel shares with us")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// `AF_XDP` (include/linux/socket.h).
const AF_XDP: libc::c_int = 44;

/// Why a process cannot be watched.
#[derive(Debug)]
pub enum WatchError {
    /// The system refuses something.
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The process has no AF_XDP socket.
    NoSocket(libc::pid_t),
    /// So many entries went by unseen that the log has a hole.
    Missed {
        /// Which ring.
        ring: &'static str,
        /// Entries that came since the last look.
        new: u32,
        /// Entries that the ring has.
        size: u32,
    },
}

impl std::fmt::Display for WatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System { what, source } => write!(f, "{what}: {source}"),
            Self::NoSocket(pid) => write!(f, "process {pid} has no AF_XDP socket"),
            Self::Missed { ring, new, size } => {
                write!(f, "{new} entries of the {ring} ring since the last look, it has {size}")
            }
        }
    }
}

impl std::error::Error for WatchError {}

/// The call's answer, or why it refused.
fn system(what: &'static str, answer: libc::c_long) -> Result<libc::c_long, WatchError> {
    if answer >= 0 {
        return Ok(answer);
    }
    Err(WatchError::System { what, source: io::Error::last_os_error() })
}

/// Entries of each ring, powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Fill ring.
    pub fill: u32,
    /// RX ring.
    pub rx: u32,
    /// TX ring.
    pub tx: u32,
    /// Completion ring.
    pub completion: u32,
}

/// `struct xdp_desc` (include/uapi/linux/if_xdp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Desc {
    /// Offset in the UMEM.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Flags.
    pub options: u32,
}

/// A ring, read from outside.
struct Ring<T> {
    name: &'static str,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Position up to which entries have been read.
    read: u32,
}

impl<T: Copy> Ring<T> {
    fn produced(&self) -> u32 {
        // SAFETY: the mapping lives as long as the process and holds this counter.
        unsafe { self.producer.as_ref() }.load(Ordering::Acquire)
    }

    fn consumed(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }.load(Ordering::Acquire)
    }

    /// What has been put into the ring since the last call.
    fn news(&mut self) -> Result<Vec<T>, WatchError> {
        let produced = self.produced();
        let new = produced.wrapping_sub(self.read);
        if new > self.size {
            return Err(WatchError::Missed { ring: self.name, new, size: self.size });
        }
        let entry = |n: u32| {
            let at = (self.read.wrapping_add(n) & (self.size - 1)) as usize;
            // SAFETY: the index is within the ring; the producer has published the entry, and
            // writes it again only a whole ring later.
            unsafe { self.entries.as_ptr().add(at).read_volatile() }
        };
        let news = (0..new).map(entry).collect();
        self.read = produced;
        Ok(news)
    }
}

/// One AF_XDP socket of another process.
pub struct Socket {
    fd: OwnedFd,
    rx: Ring<Desc>,
    tx: Ring<Desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
}

/// What has happened since the last look. In this order it may be taken for the order of events,
/// as long as looks are much closer together than a frame's ways round.
pub struct News {
    /// Packets received.
    pub rx: Vec<Desc>,
    /// Packets to be sent.
    pub tx: Vec<Desc>,
    /// Addresses given back.
    pub completion: Vec<u64>,
    /// Addresses lent for packets to come.
    pub fill: Vec<u64>,
}

impl Socket {
    /// All AF_XDP sockets of process `pid`, in order of their descriptors. Needs the right to
    /// trace it.
    ///
    /// # Errors
    /// Where the system refuses, or there is none.
    pub fn all_of(pid: libc::pid_t, sizes: Sizes) -> Result<(OwnedFd, Vec<Self>), WatchError> {
        // SAFETY: no memory is passed.
        let process = system("pidfd_open", unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
        // SAFETY: the kernel has just given us this descriptor.
        let process = unsafe { OwnedFd::from_raw_fd(process as RawFd) };
        let failed = |source| WatchError::System { what: "listing its descriptors", source };
        let mut numbers = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A descriptor may be gone meanwhile.
            let is_socket = fs::read_link(entry.path())
                .is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
            if let (true, Ok(number)) = (is_socket, entry.file_name().to_string_lossy().parse()) {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        let mut sockets = Vec::new();
        for number in numbers {
            let fd = taken(&process, number)?;
            if number_option(&fd, libc::SOL_SOCKET, libc::SO_DOMAIN)? == AF_XDP {
                sockets.push(Self::map(fd, sizes)?);
            }
        }
        if sockets.is_empty() {
            return Err(WatchError::NoSocket(pid));
        }
        Ok((process, sockets))
    }

    fn map(fd: OwnedFd, sizes: Sizes) -> Result<Self, WatchError> {
        // SAFETY: all zero is a value of this struct of integers.
        let mut at: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        option(&fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut at)?;
        let raw = fd.as_raw_fd();
        let fill = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
        let completion = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        Ok(Self {
            rx: ring("RX", raw, libc::XDP_PGOFF_RX_RING, &at.rx, sizes.rx)?,
            tx: ring("TX", raw, libc::XDP_PGOFF_TX_RING, &at.tx, sizes.tx)?,
            fill: ring("fill", raw, fill, &at.fr, sizes.fill)?,
            completion: ring("completion", raw, completion, &at.cr, sizes.completion)?,
            fd,
        })
    }

    /// Whether the kernel says that it is zero-copy (`XDP_OPTIONS`).
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn is_zero_copy(&self) -> Result<bool, WatchError> {
        let flags = number_option(&self.fd, libc::SOL_XDP, libc::XDP_OPTIONS)?;
        Ok(flags as u32 & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Frames that the driver has taken from the fill ring and not yet given back with a packet.
    /// Copy mode takes each when its packet is there.
    #[must_use]
    pub fn taken_ahead(&self) -> u32 {
        // In this order, so that what comes in between makes it too small rather than too large.
        let taken = self.fill.consumed();
        taken.saturating_sub(self.rx.produced())
    }

    /// Frames in the fill ring that the driver may still take.
    #[must_use]
    pub fn left_to_take(&self) -> u32 {
        let taken = self.fill.consumed();
        self.fill.produced().wrapping_sub(taken)
    }

    /// What has happened since the last call.
    ///
    /// # Errors
    /// [`WatchError::Missed`].
    pub fn news(&mut self) -> Result<News, WatchError> {
        // Effects before causes: whatever is seen, its cause is seen in the same look.
        let fill = self.fill.news()?;
        let completion = self.completion.news()?;
        let tx = self.tx.news()?;
        let rx = self.rx.news()?;
        Ok(News { rx, tx, completion, fill })
    }
}

/// A copy of descriptor `number` of another process.
fn taken(process: &OwnedFd, number: RawFd) -> Result<OwnedFd, WatchError> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    let fd = system("pidfd_getfd", fd)?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn number_option(fd: &OwnedFd, level: i32, name: i32) -> Result<libc::c_int, WatchError> {
    let mut value = 0;
    option(fd, level, name, &mut value).map(|()| value)
}

/// Reads a socket option into `value`, a struct of integers of the option's size.
fn option<T>(fd: &OwnedFd, level: i32, name: i32, value: &mut T) -> Result<(), WatchError> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value = ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes.
    let answer = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value, &raw mut len) };
    system("getsockopt", answer.into()).map(|_| ())
}

/// Maps one ring. It stays mapped: a watcher lives as long as it watches.
fn ring<T: Copy>(
    name: &'static str,
    fd: RawFd,
    page: libc::off_t,
    at: &libc::xdp_ring_offset,
    size: u32,
) -> Result<Ring<T>, WatchError> {
    let len = at.desc as usize + size as usize * size_of::<T>();
    // SAFETY: a new mapping touches no memory of ours.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, page) };
    let refused =
        || WatchError::System { what: "mapping a ring", source: io::Error::last_os_error() };
    if start == libc::MAP_FAILED {
        return Err(refused());
    }
    let base = NonNull::new(start).ok_or_else(refused)?.cast::<u8>();
    // SAFETY: the kernel's offsets lie inside the mapping.
    let (producer, consumer, entries) = unsafe {
        (
            base.add(at.producer as usize).cast(),
            base.add(at.consumer as usize).cast(),
            base.add(at.desc as usize).cast(),
        )
    };
    let mut ring = Ring { name, producer, consumer, entries, size, read: 0 };
    // What went by before the watch began is not there any more.
    ring.read = ring.produced().saturating_sub(size);
    Ok(ring)
}

/// Has the calling thread go before all others as soon as it wakes: on a single CPU a busy box
/// would keep a watcher waiting while its rings go round.
///
/// # Errors
/// Where the system refuses: root may.
pub fn go_first() -> Result<(), WatchError> {
    let least = libc::sched_param { sched_priority: 1 };
    // By its number: musl's own function of that name only says that there is none.
    let number = libc::SYS_sched_setscheduler;
    // SAFETY: the struct outlives the call, which only reads it.
    let answer = unsafe { libc::syscall(number, 0, libc::SCHED_FIFO, &raw const least) };
    system("sched_setscheduler", answer).map(|_| ())
}

/// Waits until the process has ended, `timeout` at the longest.
///
/// # Errors
/// Where the system refuses.
pub fn ended(process: &OwnedFd, timeout: Duration) -> Result<bool, WatchError> {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    let answer = unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as libc::c_int) };
    system("poll", answer.into()).map(|ready| ready > 0)
}
