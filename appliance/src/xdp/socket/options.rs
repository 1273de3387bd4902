//! What is asked of an AF_XDP socket by getsockopt(2) and setsockopt(2).

use super::Mode;
use std::io;
use std::os::fd::RawFd;

/// What the kernel charges for packets in flight in copy mode.
const SEND_BUFFER: i32 = 64 << 20;

/// Asks the kernel which mode the socket is in.
pub(super) fn mode(fd: RawFd) -> io::Result<Mode> {
    // SAFETY: a struct of integers.
    let options: libc::xdp_options = unsafe { get(fd, libc::XDP_OPTIONS) }?;
    let zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
    Ok(if zero_copy { Mode::ZeroCopy } else { Mode::Copy })
}

/// Asks the kernel what it has dropped instead of putting it into the rings.
pub(super) fn losses(fd: RawFd) -> io::Result<libc::xdp_statistics> {
    // SAFETY: a struct of integers.
    unsafe { get(fd, libc::XDP_STATISTICS) }
}

/// An option of an AF_XDP socket.
///
/// # Safety
/// All bit patterns are valid values of `T`.
unsafe fn get<T>(fd: RawFd, option: libc::c_int) -> io::Result<T> {
    // SAFETY: all zero is valid, says the caller.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the value.
    let refused = unsafe {
        libc::getsockopt(fd, libc::SOL_XDP, option, (&raw mut value).cast(), &raw mut len)
    };
    if refused == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Raises the limit on what may be in flight in copy mode; a lower one costs speed only.
pub(super) fn set_send_buffer(fd: RawFd) {
    let bytes = SEND_BUFFER;
    for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        // SAFETY: the option's value is an int that lives beyond the call.
        let refused = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                (&raw const bytes).cast(),
                size_of_val(&bytes) as libc::socklen_t,
            )
        };
        if refused == 0 {
            return;
        }
    }
}
