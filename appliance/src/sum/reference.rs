//! The truth: a scalar loop over ranks, in safe code, that every kernel must equal bit for bit.

use gradbox_protocol::{DType, Op};
use half::{bf16, f16};

/// Combines `inputs` (one payload per rank, in rank order) element by element into `out`.
///
/// # Panics
/// If there is no input, or an input and `out` differ in length, or the length is no multiple of
/// `dtype.size()`.
pub fn reference(dtype: DType, op: Op, inputs: &[&[u8]], out: &mut [u8]) {
    assert!(!inputs.is_empty(), "at least one rank");
    assert!(inputs.iter().all(|x| x.len() == out.len()), "payloads of one length");
    assert!(out.len().is_multiple_of(dtype.size()), "whole elements");
    match dtype {
        DType::F32 => {
            each(inputs, out, |x| float(op, x.map(f32::from_le_bytes)).to_le_bytes());
        }
        DType::F16 => each(inputs, out, |x| {
            f16::from_f32(float(op, x.map(|b| f16::from_le_bytes(b).to_f32()))).to_le_bytes()
        }),
        DType::Bf16 => each(inputs, out, |x| {
            bf16::from_f32(float(op, x.map(|b| bf16::from_le_bytes(b).to_f32()))).to_le_bytes()
        }),
        DType::I32 => {
            each(inputs, out, |x| integer(op, x.map(i32::from_le_bytes)).to_le_bytes());
        }
    }
}

/// Calls `combine` once per element with that element of every rank, in rank order.
fn each<const SIZE: usize>(
    inputs: &[&[u8]],
    out: &mut [u8],
    combine: impl Fn(&mut dyn Iterator<Item = [u8; SIZE]>) -> [u8; SIZE],
) {
    for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        *out = combine(&mut inputs.iter().map(|x| x.as_chunks().0[i]));
    }
}

fn float(op: Op, mut ranks: impl Iterator<Item = f32>) -> f32 {
    let mut acc = ranks.next().expect("at least one rank");
    let (mut world, mut nan) = (1.0, acc.is_nan());
    for x in ranks {
        acc = match op {
            Op::Sum | Op::Avg => acc + x,
            Op::Min if x < acc => x,
            Op::Max if x > acc => x,
            Op::Min | Op::Max => acc,
        };
        world += 1.0;
        nan |= x.is_nan();
    }
    if op == Op::Avg {
        acc /= world;
    }
    if nan || acc.is_nan() { f32::from_bits(0x7fc0_0000) } else { acc }
}

fn integer(op: Op, mut ranks: impl Iterator<Item = i32>) -> i32 {
    let first = ranks.next().expect("at least one rank");
    let (mut sum, mut world, mut least, mut most) = (i64::from(first), 1, first, first);
    for x in ranks {
        sum += i64::from(x);
        world += 1;
        least = least.min(x);
        most = most.max(x);
    }
    match op {
        Op::Sum => sum as i32, // the low 32 bits: the sum modulo 2^32
        Op::Avg => (sum / world) as i32,
        Op::Min => least,
        Op::Max => most,
    }
}
