//! Many datagrams received in one system call: `recvmmsg(2)`.
#![expect(unsafe_code, reason = "a system call on many buffers at once, which no crate wraps")]

use crate::dataplane::frame::Frame;
use crate::dataplane::port::BATCH;
use crate::dataplane::umem::Umem;
use socket2::{SockAddr, SockAddrStorage};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Bytes for one control message that carries the ECN field.
const CONTROL: usize = 64;

/// A datagram that was received into a frame.
pub(super) struct Datagram {
    pub(super) frame: Frame,
    pub(super) len: usize,
    pub(super) from: SocketAddr,
    pub(super) congestion: bool,
    /// It was longer than the frame.
    pub(super) truncated: bool,
}

/// Buffers for the system call, reused for every batch.
pub(super) struct Batch {
    messages: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    names: Vec<SockAddrStorage>,
    controls: Vec<[u64; CONTROL / 8]>,
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
