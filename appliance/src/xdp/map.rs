//! The rings of an AF_XDP socket, mapped a second time and read inline: xsk-rs keeps set-up and
//! lifetime, its accessors are calls across FFI (3-4 ns per descriptor against less than 1).
#![expect(unsafe_code, reason = "maps memory that the kernel shares with us")]

use crate::dataplane::ring::{Consumer, Memory, Producer};
use crate::dataplane::ring_set::Desc;
use std::any::Any;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Entries of each ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) rx: u32,
    pub(super) tx: u32,
    pub(super) fill: u32,
    pub(super) completion: u32,
}

/// All four rings, from the side of user space.
pub(super) struct Mapped {
    pub(super) rx: Consumer<Desc>,
    pub(super) tx: Producer<Desc>,
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
}

/// One mapping, unmapped when the last ring in it goes.
struct Mapping {
    start: NonNull<libc::c_void>,
    len: usize,
    /// The socket stays open as long as its rings are mapped.
    _socket: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the mapping is only unmapped here; what lies in it is shared by the rings' protocol.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no ring refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}

/// Where the kernel put the parts of the rings (`XDP_MMAP_OFFSETS`).
fn offsets(fd: RawFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all zero is a valid value of this struct of integers.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&offsets) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the struct.
    let refused = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut len,
        )
    };
    if refused != 0 {
        return Err(io::Error::last_os_error());
    }
    // Kernels before 5.4 have no flags; the box needs 6.6.
    if len as usize != size_of_val(&offsets) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's rings have no flags"));
    }
    Ok(offsets)
}

/// Maps one ring of `size` entries of `T` at page offset `page` of the socket.
fn ring<T>(
    fd: RawFd,
    page: libc::off_t,
    at: &libc::xdp_ring_offset,
    size: u32,
    socket: &Arc<dyn Any + Send + Sync>,
) -> io::Result<Memory<T>> {
    let len = at.desc as usize + size as usize * size_of::<T>();
    // SAFETY: a new shared mapping of the socket's ring touches no memory of ours.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd,
            page,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start).ok_or_else(io::Error::last_os_error)?;
    let owner = Arc::new(Mapping { start, len, _socket: socket.clone() });
    let base = start.cast::<u8>();
    // SAFETY: the kernel's offsets lie inside the mapping, which is as long as it says.
    let (producer, consumer, flags, entries) = unsafe {
        (
            base.add(at.producer as usize).cast(),
            base.add(at.consumer as usize).cast(),
            base.add(at.flags as usize).cast(),
            base.add(at.desc as usize).cast(),
        )
    };
    Ok(Memory { producer, consumer, flags, entries, size, owner })
}

/// Maps all rings of the socket `fd`, which `socket` keeps open.
///
/// # Safety
/// The rings have these sizes, and nobody else uses them: not xsk-rs's queues either.
pub(super) unsafe fn rings(
    fd: RawFd,
    sizes: Sizes,
    socket: &Arc<dyn Any + Send + Sync>,
) -> io::Result<Mapped> {
    let at = offsets(fd)?;
    let rx = ring(fd, libc::XDP_PGOFF_RX_RING, &at.rx, sizes.rx, socket)?;
    let tx = ring(fd, libc::XDP_PGOFF_TX_RING, &at.tx, sizes.tx, socket)?;
    let fill_page = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
    let fill = ring(fd, fill_page, &at.fr, sizes.fill, socket)?;
    let completion_page = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
    let completion = ring(fd, completion_page, &at.cr, sizes.completion, socket)?;
    // SAFETY: each ring is mapped with its size and has no other user on our side, by contract.
    Ok(unsafe {
        Mapped {
            rx: Consumer::new(rx),
            tx: Producer::new(tx),
            fill: Producer::new(fill),
            completion: Consumer::new(completion),
        }
    })
}
