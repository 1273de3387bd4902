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

fn float(op: Op, ranks: impl Iterator<Item = f32>) -> f32 {
    let ranks: Vec<f32> = ranks.collect();
    let mut acc = ranks[0];
    for &x in &ranks[1..] {
        acc = match op {
            Op::Sum | Op::Avg => acc + x,
            Op::Min => {
                if x < acc {
                    x
                } else {
                    acc
                }
            }
            Op::Max => {
                if x > acc {
                    x
                } else {
                    acc
                }
            }
        };
    }
    if op == Op::Avg {
        acc /= ranks.len() as f32;
    }
    if acc.is_nan() || ranks.iter().any(|x| x.is_nan()) { f32::from_bits(0x7fc0_0000) } else { acc }
}

fn integer(op: Op, ranks: impl Iterator<Item = i32>) -> i32 {
    let ranks: Vec<i32> = ranks.collect();
    let sum: i64 = ranks.iter().map(|&x| i64::from(x)).sum();
    match op {
        Op::Sum => sum as i32, // the low 32 bits: the sum modulo 2^32
        Op::Avg => (sum / ranks.len() as i64) as i32,
        Op::Min => ranks.into_iter().min().expect("at least one rank"),
        Op::Max => ranks.into_iter().max().expect("at least one rank"),
    }
}
