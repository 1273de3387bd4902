//! The seam between the loops, written once, and the vector units, one implementation each.

use super::rule::Rule;

/// A vector unit. A value of the type is the proof that this CPU has it, so arithmetic is safe and
/// only memory accesses are not.
///
/// Floating-point methods round to nearest even, are never fused and keep subnormals. Memory is
/// little-endian and needs no alignment.
pub(super) trait Lanes: Copy {
    /// Elements in one vector, whatever their size in memory.
    const LANES: usize;
    /// Whether the usual numbers of ranks get code of their own.
    const SPECIALISED: bool;
    /// `LANES` binary32 values.
    type F32: Copy;
    /// `LANES` values of 16 bits, ready to be stored.
    type Half: Copy;
    /// `LANES` 32-bit integers.
    type I32: Copy;
    /// `LANES` integers of magnitude below 2^53, represented exactly.
    type Wide: Copy;

    /// Loads `LANES` binary32 values.
    ///
    /// # Safety
    /// `LANES * 4` bytes are readable at `at`.
    unsafe fn load_f32(self, at: *const u8) -> Self::F32;
    /// Loads `LANES` binary16 values; widening is exact.
    ///
    /// # Safety
    /// `LANES * 2` bytes are readable at `at`.
    unsafe fn load_f16(self, at: *const u8) -> Self::F32;
    /// Loads `LANES` bfloat16 values; widening is exact.
    ///
    /// # Safety
    /// `LANES * 2` bytes are readable at `at`.
    unsafe fn load_bf16(self, at: *const u8) -> Self::F32;
    /// Loads `LANES` 32-bit integers.
    ///
    /// # Safety
    /// `LANES * 4` bytes are readable at `at`.
    unsafe fn load_i32(self, at: *const u8) -> Self::I32;

    /// Stores `LANES` binary32 values.
    ///
    /// # Safety
    /// `LANES * 4` bytes are writable at `at`.
    unsafe fn store_f32(self, at: *mut u8, x: Self::F32);
    /// Stores `LANES` 16-bit values.
    ///
    /// # Safety
    /// `LANES * 2` bytes are writable at `at`.
    unsafe fn store_half(self, at: *mut u8, x: Self::Half);
    /// Stores `LANES` 32-bit integers.
    ///
    /// # Safety
    /// `LANES * 4` bytes are writable at `at`.
    unsafe fn store_i32(self, at: *mut u8, x: Self::I32);

    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, by: f32) -> Self::F32;
    fn div(self, a: Self::F32, by: f32) -> Self::F32;
    /// `x` where `x < acc` or `x` is NaN, else `acc`: so NaN sticks.
    fn min(self, acc: Self::F32, x: Self::F32) -> Self::F32;
    /// `x` where `x > acc` or `x` is NaN, else `acc`: so NaN sticks.
    fn max(self, acc: Self::F32, x: Self::F32) -> Self::F32;
    /// `a` with every NaN replaced by the bits 0x7FC00000.
    fn canonical(self, a: Self::F32) -> Self::F32;
    /// Rounds to binary16; `a` is canonical.
    fn to_f16(self, a: Self::F32) -> Self::Half;
    /// Rounds to bfloat16; `a` is canonical.
    fn to_bf16(self, a: Self::F32) -> Self::Half;

    /// Wraps modulo 2^32.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn min_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn widen(self, a: Self::I32) -> Self::Wide;
    fn add_wide(self, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The sum `a` of `by` 32-bit integers, divided, truncated toward zero; `by` is 1 to 32.
    ///
    /// Vector units do this in binary64, and it is exact: |a| < 2^37 and integers are exact, the
    /// quotient q is at most 2^31 in magnitude, so rounding it moves it by at most 2^-22. If q is no
    /// integer its distance to the nearest one is at least 1/32, so rounding crosses none and
    /// truncation yields the same; if q is an integer, it is represented exactly.
    fn div_wide(self, a: Self::Wide, by: usize) -> Self::I32;

    /// The whole pass over `frames` (see [`super::kernel::pass`]), compiled for this vector unit.
    ///
    /// # Safety
    /// This CPU has the vector unit, and what `pass` asks for holds.
    unsafe fn run<R: Rule, const N: usize>(
        frames: &[*mut u8],
        next: &[*mut u8],
        len: usize,
        to_all: bool,
    );
}
