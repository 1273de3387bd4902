//! What is asked of an AF_XDP socket by getsockopt(2) and setsockopt(2).

use super::Mode;
use std::io;
use std::os::fd::RawFd;
use std::ptr;

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
    for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        if set(fd, option, SEND_BUFFER).is_ok() {
            return;
        }
    }
}

/// Runs the driver's receive function for the socket's queue once, so that it takes frames from the
/// fill ring. A bind looks into that ring, too, but xsk-rs binds in the call that makes the ring,
/// so it is empty then, and a driver that found nothing may wait for a packet that cannot come
/// without a frame (igb). Polling as busy sockets do (`sk_busy_loop`, net/xdp/xsk.c since Linux
/// 5.11) is the only way to reach it that no flag of the driver bars.
pub(super) fn poll_queue(fd: RawFd) -> io::Result<()> {
    // Any number of microseconds: one look is made whatever it says.
    set(fd, libc::SO_BUSY_POLL, 1)?;
    // SAFETY: no buffer is passed. The answer says nothing of the look.
    unsafe {
        libc::recvfrom(fd, ptr::null_mut(), 0, libc::MSG_DONTWAIT, ptr::null_mut(), ptr::null_mut())
    };
    set(fd, libc::SO_BUSY_POLL, 0)
}

/// Sets an option of the socket layer.
fn set(fd: RawFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option's value is an int that lives beyond the call.
    let refused =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), len) };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
