//! The reference against results worked out by hand, and every kernel against the reference.

use gradbox_protocol::{DType, Op};
use half::{bf16, f16};
use proptest::prelude::*;

use super::portable::{narrow_bf16, narrow_f16, widen_f16};
use super::{Isa, MAX_WORLD, Reduce, SumError, reference};

/// The reference on one element per rank, as its bits.
fn element(dtype: DType, op: Op, ranks: &[u32]) -> u32 {
    let size = dtype.size();
    let inputs: Vec<_> = ranks.iter().map(|x| x.to_le_bytes()).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(|x| &x[..size]).collect();
    let mut out = [0; 4];
    reference(dtype, op, &inputs, &mut out[..size]);
    u32::from_le_bytes(out)
}

fn f32s(op: Op, ranks: &[f32]) -> f32 {
    let bits: Vec<_> = ranks.iter().map(|x| x.to_bits()).collect();
    f32::from_bits(element(DType::F32, op, &bits))
}

fn i32s(op: Op, ranks: &[i32]) -> i32 {
    let bits: Vec<_> = ranks.iter().map(|&x| x as u32).collect();
    element(DType::I32, op, &bits) as i32
}

#[test]
fn sums_in_rank_order() {
    // 1e8 has a last place of 8: the ones vanish beside it, unless they meet first.
    assert_eq!(f32s(Op::Sum, &[1e8, 1.0, -1e8, 1.0]), 1.0);
    assert_eq!(f32s(Op::Sum, &[1.0, 1.0, 1e8, -1e8]), 0.0);
    assert_eq!(f32s(Op::Sum, &[1e8, -1e8, 1.0, 1.0]), 2.0);
}

#[test]
fn narrow_types_round_once_to_nearest_even() {
    // bf16 has 8 significant bits: at 256 its last place is 2, so 257 is a tie and 259 is another.
    assert_eq!(element(DType::Bf16, Op::Sum, &[0x4380, 0x3f80]), 0x4380); // 256 + 1 = 256
    assert_eq!(element(DType::Bf16, Op::Sum, &[0x4381, 0x3f80]), 0x4382); // 258 + 1 = 260
    // Rounding after each addition would lose every 1: 256 + 1 + 1 + 1 = 259, a tie, to 260.
    assert_eq!(element(DType::Bf16, Op::Sum, &[0x4380, 0x3f80, 0x3f80, 0x3f80]), 0x4382);
    // f16 has 11: 2048 + 1 is a tie, 2048 + 1 + 1 = 2050 is exact.
    assert_eq!(element(DType::F16, Op::Sum, &[0x6800, 0x3c00]), 0x6800);
    assert_eq!(element(DType::F16, Op::Sum, &[0x6800, 0x3c00, 0x3c00]), 0x6801);
}

#[test]
fn subnormals_are_kept_and_overflow_is_infinite() {
    assert_eq!(element(DType::F32, Op::Sum, &[1, 2]), 3);
    assert_eq!(element(DType::F16, Op::Sum, &[1, 0x03ff]), 0x0400);
    assert_eq!(element(DType::Bf16, Op::Sum, &[1, 2]), 3);
    // Half of the smallest subnormal is a tie with zero; half of three of them ties up to two.
    assert_eq!(element(DType::F16, Op::Avg, &[1, 0]), 0);
    assert_eq!(element(DType::F16, Op::Avg, &[3, 0]), 2);
    // 65504 + 16 is halfway to 2^16 and goes to the even neighbour, infinity.
    assert_eq!(element(DType::F16, Op::Sum, &[0x7bff, 0x4c00]), 0x7c00);
    assert_eq!(element(DType::F16, Op::Sum, &[0xfbff, 0xcbff]), 0xfbff);
    // The binary32 accumulator does not overflow where f16 would.
    assert_eq!(element(DType::F16, Op::Sum, &[0x7bff, 0x7bff, 0xfbff]), 0x7bff);
    assert_eq!(element(DType::Bf16, Op::Sum, &[0x7f7f, 0x7f7f]), 0x7f80);
    assert_eq!(f32s(Op::Sum, &[-f32::MAX, -f32::MAX]), f32::NEG_INFINITY);
}

#[test]
fn averages_divide() {
    assert_eq!(f32s(Op::Avg, &[1.0, 0.0, 0.0]).to_bits(), 0x3eaa_aaab); // 1/3
    // 5/3 = 1.6666666269302368: the product with the rounded reciprocal would be one place higher.
    assert_eq!(f32s(Op::Avg, &[5.0, 0.0, 0.0]).to_bits(), 0x3fd5_5555);
    assert_eq!(element(DType::Bf16, Op::Avg, &[0x3f80, 0, 0]), 0x3eab); // 0.333984375
    assert_eq!(element(DType::F16, Op::Avg, &[0x3c00, 0, 0]), 0x3555); // 0.333251953125
}

#[test]
fn not_a_number_is_canonical() {
    let inf = f32::INFINITY.to_bits();
    for op in Op::ALL {
        for payload in [0x7f80_0001, 0xffc1_2345, 0x7fff_ffff] {
            for ranks in [[payload, 0, 0], [0, payload, 0], [0, 0, payload]] {
                assert_eq!(element(DType::F32, op, &ranks), 0x7fc0_0000, "{op} {ranks:x?}");
            }
        }
        assert_eq!(element(DType::F16, op, &[0x3c00, 0xfc01]), 0x7e00);
        assert_eq!(element(DType::Bf16, op, &[0xff81, 0x3f80]), 0x7fc0);
        assert_eq!(element(DType::F32, op, &[0xff80_0001]), 0x7fc0_0000);
    }
    assert_eq!(element(DType::F32, Op::Sum, &[inf, inf | 1 << 31]), 0x7fc0_0000);
}

#[test]
fn ties_stay_with_the_lower_rank() {
    let (plus, minus) = (0, 1 << 31);
    for op in [Op::Min, Op::Max] {
        assert_eq!(element(DType::F32, op, &[plus, minus]), plus);
        assert_eq!(element(DType::F32, op, &[minus, plus]), minus);
        assert_eq!(element(DType::F16, op, &[0x8000, 0]), 0x8000);
        assert_eq!(element(DType::Bf16, op, &[0, 0x8000]), 0);
    }
    assert_eq!(f32s(Op::Min, &[2.0, -3.0, 1.0]), -3.0);
    assert_eq!(f32s(Op::Max, &[2.0, -3.0, f32::INFINITY]), f32::INFINITY);
    assert_eq!(element(DType::F32, Op::Sum, &[minus, minus]), minus);
    assert_eq!(element(DType::F32, Op::Sum, &[minus]), minus);
}

#[test]
fn integers_wrap_and_truncate() {
    assert_eq!(i32s(Op::Sum, &[i32::MAX, 1]), i32::MIN);
    assert_eq!(i32s(Op::Sum, &[i32::MIN, i32::MIN]), 0);
    assert_eq!(i32s(Op::Avg, &[-7, 0]), -3);
    assert_eq!(i32s(Op::Avg, &[-1, -1, 0]), 0);
    assert_eq!(i32s(Op::Avg, &[5, 3, 0]), 2);
    assert_eq!(i32s(Op::Avg, &[i32::MAX; 32]), i32::MAX);
    assert_eq!(i32s(Op::Avg, &[i32::MIN; 31]), i32::MIN);
    assert_eq!(i32s(Op::Min, &[0, i32::MIN, -1]), i32::MIN);
    assert_eq!(i32s(Op::Max, &[i32::MIN, -1, -2]), -1);
}

#[test]
fn portable_conversions_agree_with_half() {
    for h in 0..=u16::MAX {
        let (ours, theirs) = (widen_f16(h), f16::from_bits(h).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{h:x}");
        // Around every value and around every halfway point to the next.
        let bf = f32::from_bits(u32::from(h) << 16);
        for bits in [theirs.to_bits(), theirs.to_bits() + 0x1000, bf.to_bits() + 0x8000] {
            for x in [bits.wrapping_sub(1), bits, bits + 1].map(f32::from_bits) {
                if !x.is_nan() {
                    assert_eq!(narrow_f16(x), f16::from_f32(x).to_bits(), "{x:e}");
                    assert_eq!(narrow_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
                }
            }
        }
    }
}

#[test]
fn refuses_what_it_cannot_do() {
    let select = |isa, world| Reduce::select(isa, DType::F32, Op::Sum, world).map(|r| r.world());
    for world in [0, MAX_WORLD + 1] {
        assert_eq!(select(Isa::Portable, world), Err(SumError::World(world)));
    }
    for isa in Isa::ALL {
        let expected = Isa::available().contains(&isa).then_some(3);
        assert_eq!(select(isa, 3), expected.ok_or(SumError::IsaUnavailable(isa)));
    }
    assert!(Isa::available().contains(&Isa::Portable));
    assert_eq!(Isa::available()[0], Isa::detect());
}

#[test]
fn slices_are_combined_as_pointers_are() {
    let payloads = Draw(1).payloads(DType::F32, 3, 1408);
    let inputs: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let mut expected = vec![0; 1408];
    reference(DType::F32, Op::Sum, &inputs, &mut expected);
    let reduce = Reduce::select(Isa::detect(), DType::F32, Op::Sum, 3).expect("available");
    for to_all in [true, false] {
        let mut frames = payloads.clone();
        let mut slices: Vec<&mut [u8]> = frames.iter_mut().map(Vec::as_mut_slice).collect();
        reduce.slices(&mut slices, &[], to_all);
        for (rank, (frame, payload)) in frames.iter().zip(&payloads).enumerate() {
            assert!(frame == if to_all || rank == 0 { &expected } else { payload }, "rank {rank}");
        }
    }
}

#[test]
fn slices_must_fit_each_other() {
    let reduce = Reduce::select(Isa::Portable, DType::F32, Op::Sum, 2).expect("available");
    for lengths in [&[8, 4][..], &[6, 6], &[8], &[8, 8, 8]] {
        let mut frames: Vec<_> = lengths.iter().map(|&len| vec![0; len]).collect();
        let refused = std::panic::catch_unwind(move || {
            let mut slices: Vec<&mut [u8]> = frames.iter_mut().map(Vec::as_mut_slice).collect();
            reduce.slices(&mut slices, &[], true);
        });
        assert!(refused.is_err(), "{lengths:?}");
    }
}

/// SplitMix64: a payload is drawn from a seed, which is what a failure prints.
struct Draw(u64);
impl Draw {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u32
    }

    /// An element of `dtype`. All ranks share the `flavour` of a position: were any element
    /// arbitrary, almost every result over many ranks would be NaN.
    fn element(&mut self, dtype: DType, flavour: u32) -> u32 {
        // Mantissa bits, exponent bits.
        let (m, e) = match dtype {
            DType::F32 | DType::I32 => (23, 8),
            DType::F16 => (10, 5),
            DType::Bf16 => (7, 8),
        };
        let bits = self.next();
        let sign = (bits & 1) << (m + e);
        let infinity = ((1 << e) - 1) << m;
        let fraction = (bits >> 1) & ((1 << m) - 1);
        let pick = self.next();
        match (flavour, pick % 8) {
            (0, _) => bits,
            // NaN with any payload, infinities, and numbers to meet them.
            (1, 0) => sign | infinity | fraction,
            (1, 1) | (2, 0) => sign | infinity,
            // Zeros, subnormals, the smallest normal, the largest number.
            (1..=3, 2) => sign,
            (1..=3, 3) => sign | fraction,
            (1..=3, 4) => sign | 1 << m,
            (1 | 2, 5) => sign | (infinity - 1),
            // Few significant bits and near exponents: sums fall halfway between two values.
            _ => {
                let exponent = (1 << (e - 1)) + (pick >> 3) % (m + 2);
                let short = if pick & 1 << 31 == 0 { fraction & (7 << (m - 3)) } else { fraction };
                sign | exponent << m | short
            }
        }
    }

    fn payloads(&mut self, dtype: DType, ranks: usize, len: usize) -> Vec<Vec<u8>> {
        let mut payloads = vec![Vec::with_capacity(len); ranks];
        for _ in 0..len / dtype.size() {
            let flavour = self.next() % 6;
            for payload in &mut payloads {
                let bytes = self.element(dtype, flavour).to_le_bytes();
                payload.extend_from_slice(&bytes[..dtype.size()]);
            }
        }
        payloads
    }
}

/// Bytes before and after a payload that no kernel may change.
const GUARD: usize = 128;

/// Runs one kernel on fresh copies of `payloads`, all `offset` bytes off an aligned address (and
/// rank r another r * `skew`), and compares all bytes of all frames.
fn check(reduce: &Reduce, payloads: &[Vec<u8>], expected: &[u8], offset: usize, skew: usize) {
    let len = expected.len();
    for all in [true, false] {
        let mut buffers = vec![vec![0xa5u8; GUARD + 64 + len + GUARD]; payloads.len()];
        let mut starts = Vec::new();
        for (rank, (buffer, payload)) in buffers.iter_mut().zip(payloads).enumerate() {
            let align = buffer[GUARD..].as_ptr().align_offset(64);
            let start = GUARD + (align + offset + rank * skew) % 64;
            buffer[start..start + len].copy_from_slice(payload);
            starts.push(start);
        }
        let frames: Vec<*mut u8> =
            buffers.iter_mut().zip(&starts).map(|(b, &s)| b[s..].as_mut_ptr()).collect();
        // SAFETY: each frame is `len` bytes inside a buffer of its own.
        unsafe {
            if all {
                reduce.into_all(&frames, &[], len)
            } else {
                reduce.into_first(&frames, &[], len)
            }
        }
        for (rank, (buffer, &start)) in buffers.iter().zip(&starts).enumerate() {
            let written = if all || rank == 0 { expected } else { &payloads[rank] };
            let (got, wanted) = (&buffer[start..start + len], written);
            if let Some(i) = (0..len).find(|&i| got[i] != wanted[i]) {
                let size = reduce.dtype().size();
                let at = i / size * size;
                panic!(
                    "{reduce:?} len {len} all {all} rank {rank} byte {at}: {:02x?}, not {:02x?}, of {:02x?}",
                    &got[at..at + size],
                    &wanted[at..at + size],
                    payloads.iter().map(|p| &p[at..at + size]).collect::<Vec<_>>()
                );
            }
            let mut around = buffer[..start].iter().chain(&buffer[start + len..]);
            assert!(around.all(|&b| b == 0xa5), "{reduce:?} wrote outside of {len} bytes");
        }
    }
}

/// Every vector unit and operation on one set of payloads.
fn check_kernels(dtype: DType, ranks: usize, len: usize, seed: u64, offset: usize, skew: usize) {
    let payloads = Draw(seed).payloads(dtype, ranks, len);
    let inputs: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    for op in Op::ALL {
        let mut expected = vec![0; len];
        reference(dtype, op, &inputs, &mut expected);
        for isa in Isa::available() {
            let reduce = Reduce::select(isa, dtype, op, ranks).expect("available");
            check(&reduce, &payloads, &expected, offset, skew);
        }
    }
}

/// Every number of ranks with every length of tail, and the payloads of usual MTUs.
#[test]
fn kernels_equal_the_reference_for_every_shape() {
    for dtype in DType::ALL {
        for ranks in 1..=MAX_WORLD {
            let tails = (0..4).chain([7, 8, 9, 31, 63, 65, 127, 131]).map(|n| n * dtype.size());
            for (i, len) in tails.chain([1408, 3392]).enumerate() {
                let seed = (ranks * 100 + i) as u64;
                check_kernels(dtype, ranks, len, seed, seed as usize % 64, i % 3);
            }
        }
    }
}

proptest! {
    #[test]
    fn kernels_equal_the_reference(
        dtype in prop::sample::select(&DType::ALL[..]),
        ranks in 1..=MAX_WORLD,
        elements in 0..700usize,
        seed: u64,
        offset in 0..64usize,
        skew in 0..64usize,
    ) {
        check_kernels(dtype, ranks, elements * dtype.size(), seed, offset, skew);
    }
}
