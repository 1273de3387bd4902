//! Plain Rust on arrays: the fallback on any CPU (8 lanes, which compilers vectorise) and the tail of
//! every other kernel (1 lane).

use super::kernel::pass;
use super::lanes::Lanes;
use super::rule::Rule;

/// `L` lanes of ordinary arithmetic.
#[derive(Clone, Copy)]
pub(super) struct Portable<const L: usize>;

/// binary16 to binary32, exact; special values keep their kind.
#[inline(always)]
pub(super) fn widen_f16(h: u16) -> f32 {
    // The magnitude bits, moved to binary32's place, are the value over 2^112: multiplying is exact
    // and makes normal numbers of subnormal ones. Infinity and NaN lack only exponent bits.
    let magnitude = f32::from_bits(u32::from(h & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (u32::from(h & 0x8000) << 16))
}

/// binary32 to binary16, nearest even; NaN becomes the canonical one, with the sign of `x`.
#[inline(always)]
pub(super) fn narrow_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let bits = x.to_bits() & 0x7fff_ffff;
    // All cases are computed and one is selected, so that compilers vectorise.
    // Normal: just under half a unit, plus the last kept bit; rebias by 112.
    let normal = bits.wrapping_add(0xfff + ((bits >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    // Beside 0.5 the last place is 2^-24, the unit of subnormals: the addition rounds.
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let special = if bits > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if bits < 0x3880_0000 { subnormal } else { normal }; // below 2^-14
    let magnitude = if bits >= 0x4780_0000 { special } else { finite }; // from 2^16
    (sign | magnitude) as u16
}

/// binary32 to bfloat16, nearest even; NaN must be canonical.
#[inline(always)]
pub(super) fn narrow_bf16(x: f32) -> u16 {
    // Just under half a unit, plus the last kept bit: nearest, ties to even.
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// # Safety
/// `L` values of type `T` are readable at `at`, which needs no alignment.
#[inline(always)]
unsafe fn load<T: Copy, const L: usize>(at: *const u8) -> [T; L] {
    // SAFETY: the caller's promise; T is an integer, so any bytes are valid.
    unsafe { at.cast::<[T; L]>().read_unaligned() }
}

/// # Safety
/// `L` values of type `T` are writable at `at`, which needs no alignment.
#[inline(always)]
unsafe fn store<T: Copy, const L: usize>(at: *mut u8, x: [T; L]) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<[T; L]>().write_unaligned(x) }
}

/// As `array::map`, but always inlined, hence vectorised.
#[inline(always)]
fn map<T: Copy, U: Copy + Default, const L: usize>(a: [T; L], f: impl Fn(T) -> U) -> [U; L] {
    let mut out = [U::default(); L];
    for i in 0..L {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<T: Copy, const L: usize>(mut a: [T; L], b: [T; L], f: impl Fn(T, T) -> T) -> [T; L] {
    for i in 0..L {
        a[i] = f(a[i], b[i]);
    }
    a
}

impl<const L: usize> Lanes for Portable<L> {
    const LANES: usize = L;
    // By far the most code, for CPUs that no box has: one loop for any number of ranks.
    const SPECIALISED: bool = false;
    type F32 = [f32; L];
    type Half = [u16; L];
    type I32 = [i32; L];
    type Wide = [i64; L];

    #[inline(always)]
    unsafe fn load_f32(self, at: *const u8) -> [f32; L] {
        // SAFETY: the caller promises L elements.
        map(unsafe { load::<u32, L>(at) }, |x| f32::from_bits(u32::from_le(x)))
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> [f32; L] {
        // SAFETY: the caller promises L elements.
        map(unsafe { load::<u16, L>(at) }, |x| widen_f16(u16::from_le(x)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> [f32; L] {
        // SAFETY: the caller promises L elements.
        map(unsafe { load::<u16, L>(at) }, |x| f32::from_bits(u32::from(u16::from_le(x)) << 16))
    }
    #[inline(always)]
    unsafe fn load_i32(self, at: *const u8) -> [i32; L] {
        // SAFETY: the caller promises L elements.
        map(unsafe { load::<i32, L>(at) }, i32::from_le)
    }
    #[inline(always)]
    unsafe fn store_f32(self, at: *mut u8, x: [f32; L]) {
        // SAFETY: the caller promises L elements.
        unsafe { store(at, map(x, |x| x.to_bits().to_le())) }
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u8, x: [u16; L]) {
        // SAFETY: the caller promises L elements.
        unsafe { store(at, map(x, u16::to_le)) }
    }
    #[inline(always)]
    unsafe fn store_i32(self, at: *mut u8, x: [i32; L]) {
        // SAFETY: the caller promises L elements.
        unsafe { store(at, map(x, i32::to_le)) }
    }

    #[inline(always)]
    fn add(self, a: [f32; L], b: [f32; L]) -> [f32; L] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; L], by: f32) -> [f32; L] {
        map(a, |a| a * by)
    }
    #[inline(always)]
    fn div(self, a: [f32; L], by: f32) -> [f32; L] {
        map(a, |a| a / by)
    }
    #[inline(always)]
    fn min(self, acc: [f32; L], x: [f32; L]) -> [f32; L] {
        zip(acc, x, |acc, x| if x < acc || x.is_nan() { x } else { acc })
    }
    #[inline(always)]
    fn max(self, acc: [f32; L], x: [f32; L]) -> [f32; L] {
        zip(acc, x, |acc, x| if x > acc || x.is_nan() { x } else { acc })
    }
    #[inline(always)]
    fn canonical(self, a: [f32; L]) -> [f32; L] {
        map(a, |a| if a.is_nan() { f32::from_bits(0x7fc0_0000) } else { a })
    }
    #[inline(always)]
    fn to_f16(self, a: [f32; L]) -> [u16; L] {
        map(a, narrow_f16)
    }
    #[inline(always)]
    fn to_bf16(self, a: [f32; L]) -> [u16; L] {
        map(a, narrow_bf16)
    }

    #[inline(always)]
    fn add_i32(self, a: [i32; L], b: [i32; L]) -> [i32; L] {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn min_i32(self, a: [i32; L], b: [i32; L]) -> [i32; L] {
        zip(a, b, i32::min)
    }
    #[inline(always)]
    fn max_i32(self, a: [i32; L], b: [i32; L]) -> [i32; L] {
        zip(a, b, i32::max)
    }
    #[inline(always)]
    fn widen(self, a: [i32; L]) -> [i64; L] {
        map(a, i64::from)
    }
    #[inline(always)]
    fn add_wide(self, a: [i64; L], b: [i64; L]) -> [i64; L] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn div_wide(self, a: [i64; L], by: usize) -> [i32; L] {
        // A quotient of a sum by its number of terms fits.
        map(a, |a| (a / by as i64) as i32)
    }

    unsafe fn run<R: Rule, const N: usize>(
        frames: &[*mut u8],
        next: &[*mut u8],
        len: usize,
        to_all: bool,
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe { pass::<Self, R, N, 1>(Self, frames, next, len, to_all) }
    }
}
