//! What is asked of an ordinary socket by setsockopt(2), where no crate does.
#![expect(unsafe_code, reason = "socket options that no crate wraps")]

use socket2::Socket;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

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
