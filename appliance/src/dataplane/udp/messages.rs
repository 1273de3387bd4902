//! Many datagrams sent in one system call: `sendmmsg(2)`, with `UDP_SEGMENT` for those that go to
//! one receiver.
#![expect(unsafe_code, reason = "a system call on many buffers at once, which no crate wraps")]

use crate::dataplane::port::BATCH;
use gradbox_protocol::envelope::Endpoint;
use socket2::{SockAddr, SockAddrStorage};
use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Bytes for one control message that carries a segment's length.
const CONTROL: usize = 64;

/// Segments of one message (`UDP_MAX_SEGMENTS` of every kernel since 4.18, include/linux/udp.h).
const SEGMENTS: usize = 64;

/// Bytes of one message, so that IP's length field holds it.
const LONGEST_MESSAGE: usize = 0xffff - 48;

/// How a call of [`Messages::send`] ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Datagrams that the kernel took, or that are lost; the others are still to be sent.
    pub(super) taken: usize,
    /// Of these, so many cannot be sent at all (no route, too long) and are lost.
    pub(super) lost: usize,
    /// The socket has no room for more.
    pub(super) full: bool,
}

/// A message: datagrams of one length to one receiver, of which the last may be shorter.
#[derive(Clone, Copy)]
struct Message {
    to: Endpoint,
    /// Bytes of each datagram but the last.
    segment: usize,
    /// Bytes of all of them.
    bytes: usize,
    count: usize,
    /// The last one was shorter: no more can follow.
    closed: bool,
}

impl Message {
    /// Whether a datagram of `len` bytes to `to` can be its next one.
    fn takes(&self, to: Endpoint, len: usize) -> bool {
        self.to == to
            && !self.closed
            && len <= self.segment
            && self.count < SEGMENTS
            && self.bytes + len <= LONGEST_MESSAGE
    }
}

/// Buffers for the system call, reused for every batch.
pub(super) struct Messages {
    headers: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    names: Vec<SockAddrStorage>,
    controls: Vec<[u64; CONTROL / 8]>,
    messages: Vec<Message>,
    /// The kernel cuts messages into segments.
    segments: bool,
}

// SAFETY: the pointers inside are set anew before each system call and not used after it.
unsafe impl Send for Messages {}

impl Messages {
    /// Buffers for up to `datagrams` in one call; more are allowed, and allocate.
    pub(super) fn new(datagrams: usize) -> Self {
        Self {
            // SAFETY: all zero is a valid mmsghdr: no name, no vectors, no control.
            headers: (0..BATCH).map(|_| unsafe { zeroed() }).collect(),
            vectors: Vec::with_capacity(datagrams),
            names: (0..BATCH).map(|_| SockAddrStorage::zeroed()).collect(),
            controls: vec![[0; CONTROL / 8]; BATCH],
            messages: Vec::with_capacity(BATCH),
            segments: true,
        }
    }

    /// Sends the first of `datagrams`, as many as one system call takes. Those in a row to one
    /// receiver go as segments of one message. Does not wait.
    pub(super) fn send<'a>(
        &mut self,
        socket: RawFd,
        datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>,
    ) -> Sent {
        self.prepare(datagrams);
        let (mut sent, mut lost) = (0, 0);
        let mut full = false;
        while sent < self.messages.len() && !full {
            // SAFETY: headers, names, vectors and controls of all messages are set and live, and
            // the vectors are of slices that outlive this call; the kernel only reads them.
            let n = unsafe {
                libc::sendmmsg(
                    socket,
                    self.headers[sent..].as_mut_ptr(),
                    (self.messages.len() - sent) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if n > 0 {
                sent += n as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) => full = true,
                // What a device without checksum offload says to segments (net/ipv4/udp.c).
                Some(libc::EIO | libc::EINVAL)
                    if self.segments && self.messages[sent].count > 1 =>
                {
                    // Said once; the same datagrams go again, each as a message of its own.
                    tracing::warn!("the kernel refuses UDP_SEGMENT: datagrams are sent one by one");
                    self.segments = false;
                    break;
                }
                // This one cannot be sent (no route, refused, too long): the next one may.
                _ => {
                    lost += self.messages[sent].count;
                    sent += 1;
                }
            }
        }
        let taken = self.messages[..sent].iter().map(|m| m.count).sum();
        Sent { taken, lost, full }
    }

    /// Makes messages of the first of `datagrams`.
    fn prepare<'a>(&mut self, datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>) {
        self.vectors.clear();
        self.messages.clear();
        for (bytes, to) in datagrams {
            let (len, all) = (bytes.len(), self.messages.len() == BATCH);
            match self.messages.last_mut() {
                Some(m) if self.segments && m.takes(to, len) => {
                    m.count += 1;
                    m.bytes += len;
                    m.closed = len < m.segment;
                }
                _ if all => break,
                _ => {
                    let m = Message { to, segment: len, bytes: len, count: 1, closed: false };
                    self.messages.push(m);
                }
            }
            let iov_base = bytes.as_ptr().cast_mut().cast();
            self.vectors.push(libc::iovec { iov_base, iov_len: len });
        }
        let mut first = 0;
        for (i, m) in self.messages.iter().enumerate() {
            let header = &mut self.headers[i].msg_hdr;
            let name = SockAddr::from(SocketAddr::from(m.to));
            header.msg_namelen = name.len();
            self.names[i] = name.as_storage();
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_iov = &raw mut self.vectors[first];
            header.msg_iovlen = m.count as _;
            header.msg_control = std::ptr::null_mut();
            header.msg_controllen = 0;
            if m.count > 1 {
                header.msg_control = self.controls[i].as_mut_ptr().cast();
                set_segment(header, m.segment as u16);
            }
            first += m.count;
        }
    }
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
