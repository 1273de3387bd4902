//! The system calls that the standard library does not offer; the only file with `unsafe`.

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, sockaddr_storage};
use socket2::SockAddr;
use std::io;
use std::io::IoSlice;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// Messages per system call: `UIO_MAXIOV` allows 1024, 64 amortises the call.
pub(crate) const BATCH: usize = 64;
/// Largest datagram that GRO makes (`include/linux/netdevice.h`, `GRO_LEGACY_MAX_SIZE`).
const GRO_MOST: usize = 65_536;
/// Buffers lie a little more than a power of two apart, so that they do not share cache sets.
const STRIDE: usize = GRO_MOST + 3 * 64;
/// Words of room for control messages: TOS or traffic class, and the GRO size, 24 bytes each.
const CONTROL_WORDS: usize = 16;
/// `IP_TOS` bits of ECN (RFC 3168): congestion experienced.
const CE: u8 = 0b11;

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec that the kernel may write to.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    debug_assert_eq!(rc, 0, "CLOCK_MONOTONIC always exists");
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// `setsockopt` with an integer.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    let at = (&raw const value).cast::<c_void>();
    // SAFETY: `at` points to `len` readable bytes that live until the call returns.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What [`wait`] woke up for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    /// The wake-up pipe has something.
    pub(crate) woken: bool,
}

/// Sleeps until one of `sockets` can be read (or, with `write`, the first written), `wake` can be
/// read, or `timeout` has passed. Any may be left out. A signal ends the sleep early.
pub(crate) fn wait(
    sockets: [Option<BorrowedFd<'_>>; 2],
    write: bool,
    wake: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> io::Result<Ready> {
    // A negative descriptor is passed over.
    let number = |fd: Option<BorrowedFd<'_>>| fd.map_or(-1, |fd| fd.as_raw_fd());
    let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
    let mut fds = [
        libc::pollfd { fd: number(sockets[0]), events, revents: 0 },
        libc::pollfd { fd: number(sockets[1]), events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: number(wake), events: libc::POLLIN, revents: 0 },
    ];
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: `fds` and `timeout` outlive the call; a null mask leaves signals as they are.
    let rc = unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const timeout, ptr::null())
    };
    if rc < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok(Ready::default());
    }
    Ok(Ready { woken: fds[2].revents != 0 })
}

/// One message to send: a datagram, or several of equal size (the last may be shorter) that the
/// kernel cuts apart.
pub(crate) struct Outgoing<'a> {
    /// Where to.
    pub(crate) to: &'a SockAddr,
    /// The bytes.
    pub(crate) parts: &'a [IoSlice<'a>],
    /// Size of each datagram, or 0 where there is only one.
    pub(crate) segment: u16,
}

/// Sends up to [`BATCH`] messages without blocking; returns how many were taken.
pub(crate) fn send(fd: BorrowedFd<'_>, messages: &[Outgoing<'_>]) -> io::Result<usize> {
    // SAFETY: the bound of the control message's size, computed without touching memory.
    let room = unsafe { libc::CMSG_SPACE(size_of::<u16>() as c_uint) } as usize;
    let mut control = [[0u64; 4]; BATCH];
    debug_assert!(room <= size_of_val(&control[0]));
    let mut headers = Vec::with_capacity(messages.len().min(BATCH));
    for (message, control) in messages.iter().zip(&mut control) {
        // SAFETY: an all-zero msghdr is a valid one: null pointers with zero lengths.
        let mut header: msghdr = unsafe { mem::zeroed() };
        header.msg_name = message.to.as_ptr().cast::<c_void>().cast_mut();
        header.msg_namelen = message.to.len();
        // An IoSlice has the layout of an iovec (documented); sendmmsg only reads.
        header.msg_iov = message.parts.as_ptr().cast::<iovec>().cast_mut();
        header.msg_iovlen = message.parts.len() as _;
        if message.segment != 0 {
            header.msg_control = control.as_mut_ptr().cast::<c_void>();
            header.msg_controllen = room as _;
            // SAFETY: msg_control points to `room` writable bytes, aligned to 8, which is what one
            // control message with a u16 needs; so the first header and its data lie within.
            unsafe {
                let cmsg = libc::CMSG_FIRSTHDR(&raw const header);
                (*cmsg).cmsg_level = libc::SOL_UDP;
                (*cmsg).cmsg_type = libc::UDP_SEGMENT;
                (*cmsg).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as c_uint) as _;
                ptr::write_unaligned(libc::CMSG_DATA(cmsg).cast::<u16>(), message.segment);
            }
        }
        headers.push(mmsghdr { msg_hdr: header, msg_len: 0 });
    }
    let (at, len) = (headers.as_mut_ptr(), headers.len() as c_uint);
    // SAFETY: `at` points to `len` headers; everything that they point to (addresses and parts
    // borrowed by `messages`, `control`) outlives the call.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), at, len, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// What is known of one received message.
#[derive(Clone, Copy, Debug)]
struct Meta {
    len: usize,
    source: Option<(IpAddr, u16)>,
    marked: bool,
    /// Size of each datagram in the message.
    segment: usize,
}

/// One received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    /// Its bytes.
    pub(crate) bytes: &'a [u8],
    /// Sender's address and port, where the kernel told one.
    pub(crate) source: Option<(IpAddr, u16)>,
    /// A router marked it "congestion experienced".
    pub(crate) marked: bool,
}

/// Buffers for [`BATCH`] messages.
pub(crate) struct Receiver {
    storage: Vec<u8>,
    metas: Vec<Meta>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        // Zeroed memory is mapped when it is touched: without GRO a few hundred KB ever are.
        Self { storage: vec![0; BATCH * STRIDE], metas: Vec::with_capacity(BATCH) }
    }

    /// Takes what has arrived, at most [`BATCH`] messages, without blocking.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.metas.clear();
        // SAFETY: all-zero addresses are valid ones, of no family.
        let mut names: [sockaddr_storage; BATCH] = unsafe { mem::zeroed() };
        let mut control = [[0u64; CONTROL_WORDS]; BATCH];
        let mut parts = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: all-zero headers are valid ones: null pointers with zero lengths.
        let mut headers: [mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for (i, buffer) in self.storage.chunks_exact_mut(STRIDE).enumerate() {
            parts[i] = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: GRO_MOST };
            let header = &mut headers[i].msg_hdr;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_namelen = size_of::<sockaddr_storage>() as _;
            header.msg_iov = &raw mut parts[i];
            header.msg_iovlen = 1;
            header.msg_control = control[i].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control[i]) as _;
        }
        let at = headers.as_mut_ptr();
        // SAFETY: `at` points to BATCH headers whose names, parts, buffers and control room are
        // distinct, writable, of the lengths given, and outlive the call.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT as _;
            libc::recvmmsg(fd.as_raw_fd(), at, BATCH as c_uint, flags, ptr::null_mut())
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for (header, name) in headers.iter().zip(&names).take(count as usize) {
            let len = (header.msg_len as usize).min(GRO_MOST);
            let (marked, segment) = notes(&header.msg_hdr);
            let segment = if segment == 0 { len } else { segment };
            self.metas.push(Meta { len, source: source(name), marked, segment });
        }
        Ok(count as usize)
    }

    /// The datagrams of the last [`Self::receive`], in order of arrival.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.metas.iter().zip(self.storage.chunks_exact(STRIDE)).flat_map(|(meta, buffer)| {
            let (source, marked) = (meta.source, meta.marked);
            let datagrams = buffer[..meta.len].chunks(meta.segment.max(1));
            datagrams.map(move |bytes| Datagram { bytes, source, marked })
        })
    }
}

/// ECN mark and GRO size of a received message.
fn notes(header: &msghdr) -> (bool, usize) {
    let (mut marked, mut segment) = (false, 0);
    // SAFETY: the kernel has written `msg_controllen` bytes of whole control messages to
    // `msg_control`; the macros stay within. Data is read only as far as each type has it: TOS is a
    // byte or an int (its first byte on little-endian), traffic class and GRO size are ints.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(header);
        while !cmsg.is_null() {
            let data = libc::CMSG_DATA(cmsg);
            match ((*cmsg).cmsg_level, (*cmsg).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    marked = *data & CE == CE;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = ptr::read_unaligned(data.cast::<c_int>());
                    segment = usize::try_from(size).unwrap_or(0);
                }
                _ => {}
            }
            cmsg = libc::CMSG_NXTHDR(header, cmsg);
        }
    }
    (marked, segment)
}

/// Address and port of a sender.
fn source(name: &sockaddr_storage) -> Option<(IpAddr, u16)> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: a sockaddr_storage is large enough and aligned for every family, and the
            // family says that it is this one.
            let a = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some((ip.into(), u16::from_be(a.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some((ip.to_canonical(), u16::from_be(a.sin6_port)))
        }
        _ => None,
    }
}
