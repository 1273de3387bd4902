//! Many datagrams in one system call: `recvmmsg(2)` and `sendmmsg(2)`.
#![expect(unsafe_code, reason = "system calls on many buffers at once, which no crate wraps")]

use crate::dataplane::frame::Frame;
use crate::dataplane::port::{self, BATCH};
use crate::dataplane::umem::Umem;
use nix::poll::{PollFd, PollFlags};
use socket2::{SockAddr, SockAddrStorage, Socket};
use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// Bytes for one control message that carries the ECN field or a segment's length.
const CONTROL: usize = 64;

/// Segments of one message (`UDP_MAX_SEGMENTS` of every kernel since 4.18, include/linux/udp.h).
const SEGMENTS: usize = 64;

/// Bytes of one message, so that IP's length field holds it.
const LONGEST_MESSAGE: usize = 0xffff - 48;

/// A datagram that was received into a frame.
pub(super) struct Datagram {
    pub(super) frame: Frame,
    pub(super) len: usize,
    pub(super) from: SocketAddr,
    pub(super) congestion: bool,
    /// It was longer than the frame.
    pub(super) truncated: bool,
}

/// How far a batch got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// All of it was taken.
    All,
    /// So many datagrams found no room in time, and are lost like any packet on the way.
    Late(usize),
}

/// Buffers for the system calls, reused for every batch.
pub(super) struct Batch {
    messages: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    names: Vec<SockAddrStorage>,
    controls: Vec<[u64; CONTROL / 8]>,
    /// Receiver and datagram length of each message.
    targets: Vec<(SocketAddr, usize)>,
    /// Datagrams of each message.
    counts: Vec<usize>,
    /// The kernel cuts messages into segments.
    segments: bool,
}

// SAFETY: the pointers inside are set anew before each system call and not used after it.
unsafe impl Send for Batch {}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            // SAFETY: all zero is a valid mmsghdr: no name, no vectors, no control.
            messages: (0..BATCH).map(|_| unsafe { zeroed() }).collect(),
            vectors: Vec::with_capacity(BATCH),
            names: (0..BATCH).map(|_| SockAddrStorage::zeroed()).collect(),
            controls: vec![[0; CONTROL / 8]; BATCH],
            targets: Vec::with_capacity(BATCH),
            counts: Vec::with_capacity(BATCH),
            segments: true,
        }
    }

    /// Receives up to `room` datagrams into frames of `fill`, at offset `at`. Frames that were
    /// not needed go back to `fill`.
    pub(super) fn receive(
        &mut self,
        socket: RawFd,
        umem: &Umem,
        fill: &mut Vec<Frame>,
        at: usize,
        room: usize,
    ) -> Vec<Datagram> {
        let room = room.min(BATCH).min(fill.len());
        if room == 0 {
            return Vec::new();
        }
        let mut frames = fill.split_off(fill.len() - room);
        self.vectors.clear();
        for frame in &mut frames {
            let bytes = &mut umem.bytes_mut(frame)[at..];
            self.vectors
                .push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
        }
        for i in 0..room {
            let header = &mut self.messages[i].msg_hdr;
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_namelen = size_of::<SockAddrStorage>() as u32;
            header.msg_iov = &raw mut self.vectors[i];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[i].as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
        // SAFETY: `room` headers were filled in; their names, vectors and controls are buffers of
        // ours that live beyond the call, and the vectors are frames that we own.
        let got = unsafe {
            libc::recvmmsg(
                socket,
                self.messages.as_mut_ptr(),
                room as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        // Nothing there, or an ICMP error for an earlier send: neither is ours to handle.
        let got = usize::try_from(got).unwrap_or(0);
        fill.extend(frames.drain(got..));
        let mut datagrams = Vec::with_capacity(got);
        for (i, frame) in frames.into_iter().enumerate() {
            let message = &self.messages[i];
            // SAFETY: the kernel has written an address of that length into the storage.
            let from = unsafe {
                SockAddr::new(
                    std::mem::replace(&mut self.names[i], SockAddrStorage::zeroed()),
                    message.msg_hdr.msg_namelen,
                )
            };
            let Some(from) = from.as_socket() else {
                fill.push(frame);
                continue;
            };
            datagrams.push(Datagram {
                frame,
                len: message.msg_len as usize,
                from,
                congestion: congestion(&message.msg_hdr),
                truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            });
        }
        datagrams
    }

    /// Sends all `datagrams`, those of one length to one receiver as segments of one message, and
    /// waits `longest` altogether where the socket's buffer is full. Changes their order.
    pub(super) fn send<'a>(
        &mut self,
        socket: RawFd,
        datagrams: impl Iterator<Item = (&'a [u8], SocketAddr)>,
        longest: Duration,
    ) -> Sent {
        let mut all: Vec<_> = datagrams.filter(|(bytes, _)| !bytes.is_empty()).collect();
        // Stable: what one receiver gets stays in order of chunks.
        all.sort_by_key(|(bytes, to)| (*to, bytes.len()));
        let mut late = 0;
        let mut rest = &all[..];
        while !rest.is_empty() {
            let count = self.prepare(rest);
            let outcome = self.send_prepared(socket, longest);
            if outcome == Outcome::NoSegments {
                // Said once; the same datagrams go again, each as a message of its own.
                tracing::warn!("the kernel refuses UDP_SEGMENT: datagrams are sent one by one");
                self.segments = false;
                continue;
            }
            if let Outcome::Late(datagrams) = outcome {
                late += datagrams;
            }
            rest = &rest[count..];
        }
        if late == 0 { Sent::All } else { Sent::Late(late) }
    }

    /// Makes messages of the first of `datagrams`, which are sorted by receiver and length, and
    /// returns of how many.
    fn prepare(&mut self, datagrams: &[(&[u8], SocketAddr)]) -> usize {
        self.vectors.clear();
        self.targets.clear();
        self.counts.clear();
        for (bytes, to) in datagrams {
            let fits = |n: usize| n < SEGMENTS && (n + 1) * bytes.len() <= LONGEST_MESSAGE;
            let joins = self.segments
                && self.counts.last().is_some_and(|&n| fits(n))
                && self.targets.last().is_some_and(|t| t == &(*to, bytes.len()));
            if joins {
                if let Some(n) = self.counts.last_mut() {
                    *n += 1;
                }
            } else if self.targets.len() == BATCH {
                break;
            } else {
                self.targets.push((*to, bytes.len()));
                self.counts.push(1);
            }
            let iov_base = bytes.as_ptr().cast_mut().cast();
            self.vectors.push(libc::iovec { iov_base, iov_len: bytes.len() });
        }
        let mut first = 0;
        for (i, (&(to, len), &count)) in self.targets.iter().zip(&self.counts).enumerate() {
            let header = &mut self.messages[i].msg_hdr;
            let name = SockAddr::from(to);
            header.msg_namelen = name.len();
            self.names[i] = name.as_storage();
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_iov = &raw mut self.vectors[first];
            header.msg_iovlen = count as _;
            header.msg_control = std::ptr::null_mut();
            header.msg_controllen = 0;
            if count > 1 {
                header.msg_control = self.controls[i].as_mut_ptr().cast();
                set_segment(header, len as u16);
            }
            first += count;
        }
        first
    }

    /// Sends the messages that were prepared.
    fn send_prepared(&mut self, socket: RawFd, longest: Duration) -> Outcome {
        let count = self.targets.len();
        let (mut sent, mut lost) = (0, 0);
        let mut deadline = None;
        while sent < count {
            // SAFETY: headers, names, vectors and controls of `sent..count` are set and live, and
            // the vectors are borrowed by the caller; the kernel only reads them.
            let n = unsafe {
                libc::sendmmsg(
                    socket,
                    self.messages[sent..].as_mut_ptr(),
                    (count - sent) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if n > 0 {
                sent += n as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    let end = *deadline.get_or_insert_with(|| Instant::now() + longest);
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Outcome::Late(lost + self.counts[sent..].iter().sum::<usize>());
                    }
                    wait_for_room(socket, left);
                }
                // What a device without checksum offload says to segments (net/ipv4/udp.c).
                Some(libc::EIO | libc::EINVAL)
                    if self.segments && sent == 0 && self.counts[0] > 1 =>
                {
                    return Outcome::NoSegments;
                }
                // This one cannot be sent (no route, refused, too long): the next one may.
                _ => {
                    lost += self.counts[sent];
                    sent += 1;
                }
            }
        }
        if lost == 0 { Outcome::All } else { Outcome::Late(lost) }
    }
}

/// How sending what was prepared ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    All,
    Late(usize),
    /// Nothing was sent: the kernel does not cut messages into segments here.
    NoSegments,
}

/// Puts the control message that asks for segments of `len` bytes into the header's buffer.
fn set_segment(header: &mut libc::msghdr, len: u16) {
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute; the header's control buffer has CONTROL bytes,
    // which is more than one message with two bytes takes, and is aligned for it.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
        if let Some(message) = libc::CMSG_FIRSTHDR(header).as_mut() {
            message.cmsg_level = libc::SOL_UDP;
            message.cmsg_type = libc::UDP_SEGMENT;
            message.cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(message).cast::<u16>().write_unaligned(len);
        }
    }
}

/// Whether a received message's ECN field says "congestion experienced".
fn congestion(header: &libc::msghdr) -> bool {
    // SAFETY: the header and its control buffer are as the kernel filled them in.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a header within the buffer.
    while let Some(m) = unsafe { message.as_ref() } {
        let tos = (m.cmsg_level == libc::IPPROTO_IP && m.cmsg_type == libc::IP_TOS)
            || (m.cmsg_level == libc::IPPROTO_IPV6 && m.cmsg_type == libc::IPV6_TCLASS);
        if tos {
            // SAFETY: both messages carry at least one byte; IPV6_TCLASS is a little-endian int.
            return unsafe { *libc::CMSG_DATA(m) } & 3 == 3;
        }
        // SAFETY: as above.
        message = unsafe { libc::CMSG_NXTHDR(header, m) };
    }
    false
}

/// Sets one integer option. Returns whether the kernel took it.
fn set_option(socket: RawFd, level: i32, name: i32, value: i32) -> bool {
    // SAFETY: the option's value is an int that lives beyond the call.
    let refused = unsafe {
        libc::setsockopt(
            socket,
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    refused == 0
}

/// Asks for buffers of `bytes`, beyond the system's limit where we may.
pub(super) fn set_buffers(socket: &Socket, bytes: usize) {
    let fd = socket.as_raw_fd();
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        // A smaller buffer than wished means more loss, which the protocol repairs.
        let _ = set_option(fd, libc::SOL_SOCKET, force, bytes as i32)
            || set_option(fd, libc::SOL_SOCKET, plain, bytes as i32);
    }
}

/// Sends as ECN-capable, reports the ECN field of what comes, and takes IPv6 datagrams without
/// a checksum.
pub(super) fn set_ecn(socket: &Socket, v6: bool) -> io::Result<()> {
    /// `UDP_NO_CHECK6_RX` (`include/uapi/linux/udp.h`).
    const UDP_NO_CHECK6_RX: i32 = 102;
    let fd = socket.as_raw_fd();
    let taken = if v6 {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 2)
            && set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
            && set_option(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
    } else {
        set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, 2)
            && set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
    };
    if taken { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until `socket` takes datagrams again, `longest` at most.
fn wait_for_room(socket: RawFd, longest: Duration) {
    // SAFETY: the port keeps the socket open for longer than this call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    port::poll(&mut [PollFd::new(socket, PollFlags::POLLOUT)], longest);
}
