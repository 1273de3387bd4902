//! The memory of the frames. The only place that turns frames into bytes.
#![expect(unsafe_code, reason = "frames become bytes here")]

use super::frame::{Frame, Held, MAX_FRAMES, Packet};
use super::pool::Retained;
use crate::sum::{self, Reduce};
use gradbox_protocol::MAX_WORLD;
use std::any::Any;
use std::io;
use std::ptr::{self, NonNull};

/// Size of a huge page, and the alignment of memory of our own.
const HUGE_PAGE: usize = 2 << 20;

/// Who unmaps the memory.
enum Backing {
    /// We do; `start` and `len` of the whole mapping.
    Own { start: NonNull<libc::c_void>, len: usize },
    /// Somebody else, when this is dropped.
    Lent { _owner: Box<dyn Any + Send> },
}

/// One contiguous piece of memory, cut into frames of equal size.
pub struct Umem {
    base: NonNull<u8>,
    frame_bytes: usize,
    count: u32,
    backing: Backing,
}

// SAFETY: the memory belongs to this value alone, and frames say who may touch which part of it.
unsafe impl Send for Umem {}
// SAFETY: as above: a shared Umem gives nobody access to bytes, only a frame does.
unsafe impl Sync for Umem {}

/// Why a UMEM cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UmemError {
    /// Count or size out of range.
    #[error(
        "{count} frames of {frame_bytes} bytes: needs 1 to {MAX_FRAMES} frames of 2048 or 4096 bytes"
    )]
    Geometry {
        /// Frames asked for.
        count: u32,
        /// Bytes of each.
        frame_bytes: usize,
    },
    /// The kernel has no memory.
    #[error(
        "cannot map {bytes} bytes for frames: {source}; \
         lower data.frames or data.memory_mib, or free memory"
    )]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// What mmap(2) said.
        source: io::Error,
    },
}

impl Umem {
    /// Maps memory for `count` frames of `frame_bytes` (2048 or 4096), in huge pages where the
    /// kernel has them to give, and returns it with all its frames.
    ///
    /// # Errors
    /// Where the numbers are out of range or there is no memory.
    pub fn new(count: u32, frame_bytes: usize) -> Result<(Self, Vec<Frame>), UmemError> {
        check(count, frame_bytes)?;
        let bytes = count as usize * frame_bytes;
        let len = bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        // SAFETY: a new anonymous mapping touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let failed = || UmemError::Map { bytes: len, source: io::Error::last_os_error() };
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        let start = NonNull::new(start).ok_or_else(failed)?;
        let skip = start.as_ptr().cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: the mapping is one huge page longer than the frames, so `skip` stays inside.
        let base = unsafe { start.cast::<u8>().add(skip) };
        // SAFETY: advice about a range inside the mapping; a refusal costs speed, nothing else.
        unsafe { libc::madvise(base.as_ptr().cast(), len - HUGE_PAGE, libc::MADV_HUGEPAGE) };
        let umem = Self { base, frame_bytes, count, backing: Backing::Own { start, len } };
        // SAFETY: the UMEM is new, so no frame of it exists yet.
        let frames = unsafe { umem.mint_all() };
        Ok((umem, frames))
    }

    /// Takes over memory that `owner` keeps mapped, and returns it with all its frames.
    ///
    /// # Errors
    /// Where the numbers are out of range.
    ///
    /// # Safety
    /// `base` points to `count * frame_bytes` bytes that stay mapped, readable and writable until
    /// `owner` is dropped, and that nobody touches but through the frames returned here and the
    /// rings of the AF_XDP socket that they belong to.
    pub unsafe fn lent(
        base: NonNull<u8>,
        count: u32,
        frame_bytes: usize,
        owner: Box<dyn Any + Send>,
    ) -> Result<(Self, Vec<Frame>), UmemError> {
        check(count, frame_bytes)?;
        let umem = Self { base, frame_bytes, count, backing: Backing::Lent { _owner: owner } };
        // SAFETY: by contract nobody else has frames of this memory.
        let frames = unsafe { umem.mint_all() };
        Ok((umem, frames))
    }

    /// All frames, the lowest last, so that a free list starts with it.
    ///
    /// # Safety
    /// No frame of this UMEM exists yet.
    unsafe fn mint_all(&self) -> Vec<Frame> {
        // SAFETY: each index once, and by contract for the first time.
        (0..self.count).rev().map(|i| unsafe { Frame::mint(i) }).collect()
    }

    /// Number of frames.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of one frame.
    #[must_use]
    #[inline]
    pub const fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Where a frame starts.
    ///
    /// # Panics
    /// Where the index is not of this UMEM: frames of two UMEMs were mixed up.
    #[inline]
    fn at(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.count, "frame of another UMEM");
        // SAFETY: the index was checked, so the address lies in the mapping.
        unsafe { self.base.add(index as usize * self.frame_bytes) }
    }

    /// The bytes of a frame.
    #[must_use]
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        // SAFETY: the memory is mapped, and the frame's only value is borrowed, so nobody writes.
        unsafe { std::slice::from_raw_parts(self.at(frame.index()).as_ptr(), self.frame_bytes) }
    }

    /// The bytes of a frame, to write.
    #[must_use]
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        // SAFETY: the memory is mapped, and the frame's only value is borrowed for us alone.
        unsafe { std::slice::from_raw_parts_mut(self.at(frame.index()).as_ptr(), self.frame_bytes) }
    }

    /// The bytes of a packet.
    ///
    /// # Panics
    /// Where the packet does not lie in its frame.
    #[must_use]
    #[inline]
    pub fn packet<'a>(&'a self, packet: &'a Packet) -> &'a [u8] {
        let start = usize::from(packet.start);
        &self.bytes(&packet.frame)[start..start + usize::from(packet.len)]
    }

    /// The bytes of a packet, to write.
    ///
    /// # Panics
    /// Where the packet does not lie in its frame.
    #[must_use]
    #[inline]
    pub fn packet_mut<'a>(&'a self, packet: &'a mut Packet) -> &'a mut [u8] {
        let start = usize::from(packet.start);
        let end = start + usize::from(packet.len);
        &mut self.bytes_mut(&mut packet.frame)[start..end]
    }

    /// The bytes of a retained result. Its frame may be on its way out, so it is only read.
    #[must_use]
    #[inline]
    pub fn retained<'a>(&'a self, claim: &'a Retained) -> &'a [u8] {
        let start = self.at(claim.place().index());
        // SAFETY: the memory is mapped; while the claim exists its frame is either at rest in the
        // ledger or with the kernel, which only reads it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.frame_bytes) }
    }

    /// Asks the CPU to fetch the cache lines of a frame from `start` on, `len` bytes.
    #[inline]
    pub fn prefetch(&self, index: u32, start: usize, len: usize) {
        // A hint: it does not matter where in memory this is.
        sum::fetch(self.base.as_ptr().wrapping_add(index as usize * self.frame_bytes + start), len);
    }

    /// Where the payloads of `parts` start, `len` bytes each, and how many they are.
    ///
    /// # Panics
    /// Where there are more than [`MAX_WORLD`] parts or a payload reaches out of its frame.
    #[inline]
    fn payloads(&self, parts: &[Option<Held>], len: usize) -> ([*mut u8; MAX_WORLD], usize) {
        let mut payloads = [ptr::null_mut(); MAX_WORLD];
        let mut count = 0;
        for part in parts.iter().flatten() {
            let place = part.place();
            assert!(place.payload() + len <= self.frame_bytes, "payload reaches out of its frame");
            // SAFETY: just checked to lie in the frame.
            payloads[count] = unsafe { self.at(place.index()).add(place.payload()) }.as_ptr();
            count += 1;
        }
        (payloads, count)
    }

    /// Sums the payloads (`len` bytes each) of all `parts`, in their order, into all of them, and
    /// meanwhile fetches as much of the `next` ones.
    ///
    /// # Panics
    /// Where there are more than [`MAX_WORLD`] parts or a payload reaches out of its frame.
    #[inline]
    pub(super) fn reduce_into_all(
        &self,
        reduce: &Reduce,
        parts: &mut [Option<Held>],
        len: usize,
        next: &[Option<Held>],
    ) {
        self.reduce::<true>(reduce, parts, len, next);
    }

    /// As [`Umem::reduce_into_all`], but into the first payload only.
    ///
    /// # Panics
    /// As [`Umem::reduce_into_all`].
    #[inline]
    pub(super) fn reduce_into_first(
        &self,
        reduce: &Reduce,
        parts: &mut [Option<Held>],
        len: usize,
        next: &[Option<Held>],
    ) {
        self.reduce::<false>(reduce, parts, len, next);
    }

    #[inline]
    fn reduce<const TO_ALL: bool>(
        &self,
        reduce: &Reduce,
        parts: &mut [Option<Held>],
        len: usize,
        next: &[Option<Held>],
    ) {
        let (payloads, count) = self.payloads(parts, len);
        let (upcoming, others) = self.payloads(next, 0);
        let (payloads, upcoming) = (&payloads[..count], &upcoming[..others]);
        // SAFETY: each part is the only value of its frame and is borrowed for us alone, so the
        // payloads are valid, ours to write, and do not overlap.
        unsafe {
            if TO_ALL {
                reduce.into_all(payloads, upcoming, len);
            } else {
                reduce.into_first(payloads, upcoming, len);
            }
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        if let Backing::Own { start, len } = self.backing {
            // SAFETY: our own mapping, and nothing can refer to it any more.
            unsafe { libc::munmap(start.as_ptr(), len) };
        }
    }
}

impl std::fmt::Debug for Umem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Umem({} x {} bytes)", self.count, self.frame_bytes)
    }
}

/// Refuses numbers out of range.
fn check(count: u32, frame_bytes: usize) -> Result<(), UmemError> {
    if count == 0 || count > MAX_FRAMES || ![2048, 4096].contains(&frame_bytes) {
        return Err(UmemError::Geometry { count, frame_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_do_not_overlap() {
        let (umem, mut frames) = Umem::new(5, 2048).unwrap();
        for (i, frame) in frames.iter_mut().enumerate() {
            umem.bytes_mut(frame).fill(i as u8 + 1);
        }
        for (i, frame) in frames.iter().enumerate() {
            assert!(umem.bytes(frame).iter().all(|&b| b == i as u8 + 1));
        }
        assert_eq!(umem.bytes(&frames[4]).as_ptr().align_offset(HUGE_PAGE), 0);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for (count, bytes) in [(0, 2048), (1, 1024), (1, 8192), (MAX_FRAMES + 1, 2048)] {
            assert!(matches!(Umem::new(count, bytes), Err(UmemError::Geometry { .. })));
        }
    }
}
