//! NEON: 4 lanes.

use std::arch::aarch64::*;

use super::kernel::pass;
use super::lanes::Lanes;
use super::rule::Rule;

/// Exists only on a CPU with NEON: made by [`Lanes::run`], which demands it.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

/// Calls intrinsics from a method of [`Neon`].
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: the intrinsics touch registers only, and the token proves that the CPU has them.
        unsafe { $e }
    };
}

impl Lanes for Neon {
    const LANES: usize = 4;
    const SPECIALISED: bool = true;
    type F32 = float32x4_t;
    type Half = uint16x4_t;
    type I32 = int32x4_t;
    type Wide = (float64x2_t, float64x2_t);

    #[inline(always)]
    unsafe fn load_f32(self, at: *const u8) -> float32x4_t {
        // SAFETY: the token proves the instructions, the caller the 16 bytes.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(at)) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> float32x4_t {
        // SAFETY: the token proves the instructions, the caller the 8 bytes.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> float32x4_t {
        // SAFETY: the token proves the instructions, the caller the 8 bytes.
        let halves = unsafe { vreinterpret_u16_u8(vld1_u8(at)) };
        simd!(vreinterpretq_f32_u32(vshll_n_u16::<16>(halves)))
    }
    #[inline(always)]
    unsafe fn load_i32(self, at: *const u8) -> int32x4_t {
        // SAFETY: the token proves the instructions, the caller the 16 bytes.
        unsafe { vreinterpretq_s32_u8(vld1q_u8(at)) }
    }
    #[inline(always)]
    unsafe fn store_f32(self, at: *mut u8, x: float32x4_t) {
        // SAFETY: the token proves the instructions, the caller the 16 bytes.
        unsafe { vst1q_u8(at, vreinterpretq_u8_f32(x)) }
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u8, x: uint16x4_t) {
        // SAFETY: the token proves the instructions, the caller the 8 bytes.
        unsafe { vst1_u8(at, vreinterpret_u8_u16(x)) }
    }
    #[inline(always)]
    unsafe fn store_i32(self, at: *mut u8, x: int32x4_t) {
        // SAFETY: the token proves the instructions, the caller the 16 bytes.
        unsafe { vst1q_u8(at, vreinterpretq_u8_s32(x)) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        simd!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, by: f32) -> float32x4_t {
        simd!(vmulq_f32(a, vdupq_n_f32(by)))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, by: f32) -> float32x4_t {
        simd!(vdivq_f32(a, vdupq_n_f32(by)))
    }
    #[inline(always)]
    fn min(self, acc: float32x4_t, x: float32x4_t) -> float32x4_t {
        // Not FMIN, which orders zeros by sign. An x that is NaN is not equal to itself.
        simd!({
            let keep = vbicq_u32(vceqq_f32(x, x), vcltq_f32(x, acc));
            vbslq_f32(keep, acc, x)
        })
    }
    #[inline(always)]
    fn max(self, acc: float32x4_t, x: float32x4_t) -> float32x4_t {
        // As for `min`.
        simd!({
            let keep = vbicq_u32(vceqq_f32(x, x), vcgtq_f32(x, acc));
            vbslq_f32(keep, acc, x)
        })
    }
    #[inline(always)]
    fn canonical(self, a: float32x4_t) -> float32x4_t {
        simd!({
            let quiet = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc0_0000));
            vbslq_f32(vceqq_f32(a, a), a, quiet)
        })
    }
    #[inline(always)]
    fn to_f16(self, a: float32x4_t) -> uint16x4_t {
        simd!(vreinterpret_u16_f16(vcvt_f16_f32(a)))
    }
    #[inline(always)]
    fn to_bf16(self, a: float32x4_t) -> uint16x4_t {
        // Just under half a unit, plus the last kept bit: nearest, ties to even.
        simd!({
            let bits = vreinterpretq_u32_f32(a);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
            vshrn_n_u32::<16>(vaddq_u32(bits, half))
        })
    }

    #[inline(always)]
    fn add_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        simd!(vaddq_s32(a, b))
    }
    #[inline(always)]
    fn min_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        simd!(vminq_s32(a, b))
    }
    #[inline(always)]
    fn max_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        simd!(vmaxq_s32(a, b))
    }
    #[inline(always)]
    fn widen(self, a: int32x4_t) -> Self::Wide {
        simd!((vcvtq_f64_s64(vmovl_s32(vget_low_s32(a))), vcvtq_f64_s64(vmovl_high_s32(a))))
    }
    #[inline(always)]
    fn add_wide(self, a: Self::Wide, b: Self::Wide) -> Self::Wide {
        simd!((vaddq_f64(a.0, b.0), vaddq_f64(a.1, b.1)))
    }
    #[inline(always)]
    fn div_wide(self, a: Self::Wide, by: usize) -> int32x4_t {
        simd!({
            let by = vdupq_n_f64(by as f64);
            let low = vmovn_s64(vcvtq_s64_f64(vdivq_f64(a.0, by)));
            vmovn_high_s64(low, vcvtq_s64_f64(vdivq_f64(a.1, by)))
        })
    }

    #[target_feature(enable = "neon")]
    unsafe fn run<R: Rule, const N: usize>(
        frames: &[*mut u8],
        next: &[*mut u8],
        len: usize,
        to_all: bool,
    ) {
        // SAFETY: the caller promises the CPU, so the token may exist, and the frames.
        unsafe { pass::<Self, R, N, 8>(Self(()), frames, next, len, to_all) }
    }
}
