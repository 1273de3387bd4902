//! Combining the gradients of all ranks: one pass over the frames of a chunk, bit-identical always.
//!
//! The promise, for every CPU and any order of arrival ([`reference()`] is its plainest form):
//! - Elements are little-endian and combined in rank order, never fused, never reassociated.
//! - **Sum** of floats: `((x0 + x1) + x2) + ...` in binary32, each addition rounded to nearest even.
//!   f16 and bf16 are widened first, which is exact, and the sum is rounded once, to nearest even.
//! - **Avg** of floats: that binary32 sum divided by the number of ranks in binary32, then the one
//!   rounding to the wire type.
//! - **Min** of floats: `acc = if x < acc { x } else { acc }` from rank 0 up, **max** with `>`: of
//!   equal values, and of zeros of either sign, the lower rank's stays. NaN of any rank gives NaN.
//! - Any NaN in a result is the canonical quiet one: 0x7FC00000 (f32), 0x7E00 (f16), 0x7FC0 (bf16).
//! - Subnormals are kept, overflow gives infinity.
//! - **i32**: sum wraps modulo 2^32; avg is the exact sum divided by the number of ranks, truncated
//!   toward zero; min and max compare as signed integers.
//!
//! Threads must run with the default floating-point environment, as all Rust code must.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernel;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod reference;
mod rule;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;

use gradbox_protocol::{DType, Op};

use kernel::{Kernel, pick};
use portable::Portable;
pub use reference::reference;

/// Most ranks that one [`Reduce`] combines.
pub const MAX_WORLD: usize = 32;

/// A vector unit that a kernel is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64 with AVX-512F.
    Avx512,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// AArch64.
    Neon,
    /// Any CPU.
    Portable,
}

impl Isa {
    /// Every vector unit, widest first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// Name used in logs, flags and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// The widest vector unit of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        Self::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }

    /// All that are usable on this CPU, widest first; [`Isa::Portable`] always is.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Portable => true,
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why there is no kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumError {
    /// This CPU lacks the vector unit.
    IsaUnavailable(Isa),
    /// The number of ranks is not in `1..=MAX_WORLD`.
    World(usize),
}

impl fmt::Display for SumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IsaUnavailable(isa) => write!(f, "this CPU has no {isa}"),
            Self::World(world) => write!(f, "{world} ranks: must be 1 to {MAX_WORLD}"),
        }
    }
}

impl Error for SumError {}

/// A kernel chosen once for a job: vector unit, element type, operation and number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Reduce {
    kernel: Kernel,
    isa: Isa,
    dtype: DType,
    op: Op,
    world: usize,
}

impl Reduce {
    /// Chooses the kernel for `world` ranks.
    ///
    /// # Errors
    /// This CPU lacks `isa`, or `world` is not in `1..=MAX_WORLD`.
    pub fn select(isa: Isa, dtype: DType, op: Op, world: usize) -> Result<Self, SumError> {
        if !(1..=MAX_WORLD).contains(&world) {
            return Err(SumError::World(world));
        }
        if !isa.is_available() {
            return Err(SumError::IsaUnavailable(isa));
        }
        let kernel = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => pick::<avx512::Avx512>(dtype, op, world),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => pick::<avx2::Avx2>(dtype, op, world),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => pick::<neon::Neon>(dtype, op, world),
            _ => pick::<Portable<8>>(dtype, op, world),
        };
        Ok(Self { kernel, isa, dtype, op, world })
    }

    /// The vector unit.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// The element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The operation.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.op
    }

    /// The number of ranks.
    #[must_use]
    pub const fn world(&self) -> usize {
        self.world
    }

    /// Combines the payloads at `frames`, one per rank in rank order, each `len` bytes, and writes
    /// the result over every one of them, in one pass.
    ///
    /// # Safety
    /// Each pointer is valid for reads and writes of `len` bytes, no two payloads overlap, and
    /// nothing else accesses them meanwhile. Any alignment will do.
    ///
    /// # Panics
    /// If `frames.len()` is not `world`, or `len` is not a multiple of the element size.
    #[inline]
    pub unsafe fn into_all(&self, frames: &[*mut u8], len: usize) {
        self.check(frames, len);
        // SAFETY: the caller vouches for the frames, `select` for the CPU, `check` for the shape.
        unsafe { (self.kernel)(frames, len, true) }
    }

    /// As [`Reduce::into_all`], but writes the result over `frames[0]` only; the others are read.
    ///
    /// # Safety
    /// As for [`Reduce::into_all`], but the others need be valid for reads only.
    ///
    /// # Panics
    /// As [`Reduce::into_all`].
    #[inline]
    pub unsafe fn into_first(&self, frames: &[*mut u8], len: usize) {
        self.check(frames, len);
        // SAFETY: the caller vouches for the frames, `select` for the CPU, `check` for the shape.
        unsafe { (self.kernel)(frames, len, false) }
    }

    /// As [`Reduce::into_all`], or with `to_all` false as [`Reduce::into_first`], for payloads that
    /// are slices, one per rank in rank order, all of one length.
    ///
    /// # Panics
    /// If there are not `world` of them, their lengths differ, or the length is not a multiple of
    /// the element size.
    #[inline]
    pub fn slices(&self, frames: &mut [&mut [u8]], to_all: bool) {
        assert_eq!(frames.len(), self.world, "one frame per rank");
        let len = frames[0].len();
        let mut pointers = [std::ptr::null_mut(); MAX_WORLD];
        for (pointer, frame) in pointers.iter_mut().zip(frames) {
            assert_eq!(frame.len(), len, "payloads of one length");
            *pointer = frame.as_mut_ptr();
        }
        let pointers = &pointers[..self.world];
        self.check(pointers, len);
        // SAFETY: the slices are valid for `len` bytes, borrowed, and mutable ones never overlap;
        // `select` vouches for the CPU, `check` for the shape.
        unsafe { (self.kernel)(pointers, len, to_all) }
    }

    #[inline]
    fn check(&self, frames: &[*mut u8], len: usize) {
        assert_eq!(frames.len(), self.world, "one frame per rank");
        assert!(len.is_multiple_of(self.dtype.size()), "whole elements");
    }
}
