//! AVX-512: two vectors of 16 lanes at a time. Needs the foundation only.

use std::arch::x86_64::*;

use super::kernel::pass;
use super::lanes::Lanes;
use super::rule::Rule;

/// Exists only on a CPU with AVX-512F: made by [`Lanes::run`], which demands it.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Calls intrinsics on behalf of [`Avx512`].
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: the intrinsics touch registers only, and the token (or the
        // caller) proves that the CPU has them.
        unsafe { $e }
    };
}

/// # Safety
/// This CPU has the vector unit.
#[inline(always)]
unsafe fn canonical(a: __m512) -> __m512 {
    simd!({
        let quiet = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc0_0000));
        _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), quiet)
    })
}

/// The bits of `a`, rounded so that their upper halves are the bfloat16 values nearest even. Not the
/// bfloat16 instruction, which flushes subnormals.
///
/// # Safety
/// This CPU has the vector unit.
#[inline(always)]
unsafe fn round_bf16(a: __m512) -> __m512i {
    // Adds just under half a unit, plus the last kept bit.
    simd!({
        let bits = _mm512_castps_si512(a);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)))
    })
}

/// # Safety
/// This CPU has the vector unit.
#[inline(always)]
unsafe fn min(acc: __m512, x: __m512) -> __m512 {
    // The instruction yields its second operand for ties, zeros of both signs and NaN.
    simd!(_mm512_mask_mov_ps(_mm512_min_ps(x, acc), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x))
}

/// # Safety
/// This CPU has the vector unit.
#[inline(always)]
unsafe fn max(acc: __m512, x: __m512) -> __m512 {
    // As for `min`.
    simd!(_mm512_mask_mov_ps(_mm512_max_ps(x, acc), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x))
}

/// # Safety
/// This CPU has the vector unit.
#[inline(always)]
unsafe fn widen(a: __m512i) -> [__m512d; 2] {
    simd!([
        _mm512_cvtepi32_pd(_mm512_castsi512_si256(a)),
        _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64::<1>(a)),
    ])
}

/// # Safety
/// This CPU has the vector unit.
#[inline(always)]
unsafe fn div(a: [__m512d; 2], by: __m512d) -> __m512i {
    simd!({
        let low = _mm512_cvttpd_epi32(_mm512_div_pd(a[0], by));
        let high = _mm512_cvttpd_epi32(_mm512_div_pd(a[1], by));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    })
}

impl Lanes for Avx512 {
    const LANES: usize = 32;
    const SPECIALISED: bool = true;
    type F32 = [__m512; 2];
    type Half = __m512i;
    type I32 = [__m512i; 2];
    type Wide = [[__m512d; 2]; 2];

    #[inline(always)]
    unsafe fn load_f32(self, at: *const u8) -> Self::F32 {
        // SAFETY: the token proves the instructions, the caller the 128 bytes.
        unsafe { [_mm512_loadu_ps(at.cast()), _mm512_loadu_ps(at.add(64).cast())] }
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> Self::F32 {
        // SAFETY: the token proves the instructions, the caller the 64 bytes.
        let (low, high) =
            unsafe { (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) };
        simd!([_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)])
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> Self::F32 {
        // SAFETY: the token proves the instructions, the caller the 64 bytes.
        let pairs = unsafe { _mm512_loadu_si512(at.cast()) };
        // Even elements in one vector, odd ones in the other: no shuffle either way.
        simd!({
            let even = _mm512_slli_epi32::<16>(pairs);
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff));
            [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)]
        })
    }
    #[inline(always)]
    unsafe fn load_i32(self, at: *const u8) -> Self::I32 {
        // SAFETY: the token proves the instructions, the caller the 128 bytes.
        unsafe { [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast())] }
    }
    #[inline(always)]
    unsafe fn store_f32(self, at: *mut u8, x: Self::F32) {
        // SAFETY: the token proves the instructions, the caller the 128 bytes.
        unsafe {
            _mm512_storeu_ps(at.cast(), x[0]);
            _mm512_storeu_ps(at.add(64).cast(), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u8, x: __m512i) {
        // SAFETY: the token proves the instructions, the caller the 64 bytes.
        unsafe { _mm512_storeu_si512(at.cast(), x) }
    }
    #[inline(always)]
    unsafe fn store_i32(self, at: *mut u8, x: Self::I32) {
        // SAFETY: the token proves the instructions, the caller the 128 bytes.
        unsafe {
            _mm512_storeu_si512(at.cast(), x[0]);
            _mm512_storeu_si512(at.add(64).cast(), x[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        simd!([_mm512_add_ps(a[0], b[0]), _mm512_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: Self::F32, by: f32) -> Self::F32 {
        simd!({
            let by = _mm512_set1_ps(by);
            [_mm512_mul_ps(a[0], by), _mm512_mul_ps(a[1], by)]
        })
    }
    #[inline(always)]
    fn div(self, a: Self::F32, by: f32) -> Self::F32 {
        simd!({
            let by = _mm512_set1_ps(by);
            [_mm512_div_ps(a[0], by), _mm512_div_ps(a[1], by)]
        })
    }
    #[inline(always)]
    fn min(self, acc: Self::F32, x: Self::F32) -> Self::F32 {
        simd!([min(acc[0], x[0]), min(acc[1], x[1])])
    }
    #[inline(always)]
    fn max(self, acc: Self::F32, x: Self::F32) -> Self::F32 {
        simd!([max(acc[0], x[0]), max(acc[1], x[1])])
    }
    #[inline(always)]
    fn canonical(self, a: Self::F32) -> Self::F32 {
        simd!({
            // True where either is NaN: seldom, so that one question for both is cheaper.
            if _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a[0], a[1]) == 0 {
                return a;
            }
            [canonical(a[0]), canonical(a[1])]
        })
    }
    #[inline(always)]
    fn to_f16(self, a: Self::F32) -> __m512i {
        simd!({
            let low = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[0]);
            let high = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[1]);
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        })
    }
    #[inline(always)]
    fn to_bf16(self, a: Self::F32) -> __m512i {
        simd!({
            let even = _mm512_srli_epi32::<16>(round_bf16(a[0]));
            // Where the mask is set, the odd ones: (even & !mask) | (odd & mask).
            let mask = _mm512_set1_epi32(!0xffff);
            _mm512_ternarylogic_epi32::<0b1101_1000>(even, round_bf16(a[1]), mask)
        })
    }

    #[inline(always)]
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        simd!([_mm512_add_epi32(a[0], b[0]), _mm512_add_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn min_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        simd!([_mm512_min_epi32(a[0], b[0]), _mm512_min_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        simd!([_mm512_max_epi32(a[0], b[0]), _mm512_max_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn widen(self, a: Self::I32) -> Self::Wide {
        simd!([widen(a[0]), widen(a[1])])
    }
    #[inline(always)]
    fn add_wide(self, a: Self::Wide, b: Self::Wide) -> Self::Wide {
        simd!([
            [_mm512_add_pd(a[0][0], b[0][0]), _mm512_add_pd(a[0][1], b[0][1])],
            [_mm512_add_pd(a[1][0], b[1][0]), _mm512_add_pd(a[1][1], b[1][1])],
        ])
    }
    #[inline(always)]
    fn div_wide(self, a: Self::Wide, by: usize) -> Self::I32 {
        simd!({
            let by = _mm512_set1_pd(by as f64);
            [div(a[0], by), div(a[1], by)]
        })
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn run<R: Rule, const N: usize>(
        frames: &[*mut u8],
        next: &[*mut u8],
        len: usize,
        to_all: bool,
    ) {
        // SAFETY: the caller promises the CPU, so the token may exist, and the frames.
        unsafe {
            // Frames are often a multiple of the L1 way size apart: many of them evict each other's
            // lines, and visits of whole lines, several at a time, soften it. Few do best with one.
            if N == 0 {
                pass::<Self, R, N, 2>(Self(()), frames, next, len, to_all)
            } else {
                pass::<Self, R, N, 1>(Self(()), frames, next, len, to_all)
            }
        }
    }
}
