//! The pass over frames, written once for all vector units, and the choice of its instance.

use std::ptr;

use gradbox_protocol::{DType, Op};

use super::fetch::fetch;
use super::lanes::Lanes;
use super::portable::Portable;
use super::rule::{
    Avg, AvgI32, Bfloat16, Binary16, Binary32, Float, Max, MaxI32, Min, MinI32, Rule, Sum, SumI32,
    Wire,
};

/// A kernel: frames in rank order, frames to be fetched meanwhile, bytes per payload, whether all
/// frames receive the result.
///
/// Callers uphold the safety conditions of [`pass`], and the CPU has the kernel's vector unit.
pub(super) type Kernel = unsafe fn(frames: &[*mut u8], next: &[*mut u8], len: usize, to_all: bool);

/// Combines the frames in one pass: every block is loaded from all frames in order, folded in
/// registers and stored to all frames (or to the first). `UNROLL` vectors make a block. `N` is the
/// number of frames if known when compiling, else 0.
///
/// Each block is fetched of the `next` frames as well: evenly, so that they come from memory while
/// the CPU works. There are as many of them as of frames, or those in excess are left out; where
/// there are fewer, none is fetched.
///
/// # Safety
/// Every frame is valid for reads and writes of `len` bytes and no two overlap; `frames` is not
/// empty and `len` is a multiple of `R::SIZE`.
#[inline(always)]
pub(super) unsafe fn pass<S: Lanes, R: Rule, const N: usize, const UNROLL: usize>(
    s: S,
    frames: &[*mut u8],
    next: &[*mut u8],
    len: usize,
    to_all: bool,
) {
    // Fetching what is at hand is cheaper than asking each time.
    let next = next.get(..frames.len()).unwrap_or(frames);
    // Copies that no store can alias let the pointers stay in registers.
    let (mut local, mut local_next) = ([ptr::null_mut(); N], [ptr::null_mut(); N]);
    let (frames, next) = if N == 0 {
        (frames, next)
    } else {
        local.copy_from_slice(frames);
        local_next.copy_from_slice(next);
        (&local[..], &local_next[..])
    };
    let vector = R::SIZE * S::LANES;
    let mut at = 0;
    while len - at >= UNROLL * vector {
        // SAFETY: the condition above leaves UNROLL vectors in every frame.
        unsafe { block::<S, R, UNROLL>(s, frames, next, at, to_all) };
        at += UNROLL * vector;
    }
    while len - at >= vector {
        // SAFETY: the condition above leaves one vector in every frame.
        unsafe { block::<S, R, 1>(s, frames, next, at, to_all) };
        at += vector;
    }
    // Shorter than a vector: wide units still compile eight lanes of plain Rust to good code.
    while len - at >= R::SIZE * 8 {
        // SAFETY: the condition above leaves eight elements in every frame.
        unsafe { block::<Portable<8>, R, 1>(Portable, frames, next, at, to_all) };
        at += R::SIZE * 8;
    }
    while at < len {
        // SAFETY: `len` and `at` are multiples of SIZE, so one element is left.
        unsafe { block::<Portable<1>, R, 1>(Portable, frames, &[], at, to_all) };
        at += R::SIZE;
    }
}

/// # Safety
/// As for [`pass`], and `UNROLL` vectors lie at `at` in every frame.
#[inline(always)]
unsafe fn block<S: Lanes, R: Rule, const UNROLL: usize>(
    s: S,
    frames: &[*mut u8],
    next: &[*mut u8],
    at: usize,
    to_all: bool,
) {
    let vector = R::SIZE * S::LANES;
    for &frame in next {
        fetch(frame.wrapping_add(at), UNROLL * vector);
    }
    // SAFETY: the caller says that this block, so its first vector, lies within every frame.
    let mut acc = [unsafe { R::load(s, frames[0].add(at)) }; UNROLL];
    for (u, acc) in acc.iter_mut().enumerate().skip(1) {
        // SAFETY: vector u of the block.
        *acc = unsafe { R::load(s, frames[0].add(at + u * vector)) };
    }
    for &frame in &frames[1..] {
        for (u, acc) in acc.iter_mut().enumerate() {
            // SAFETY: vector u of the block.
            let x = unsafe { R::load(s, frame.add(at + u * vector)) };
            *acc = R::fold(s, *acc, x);
        }
    }
    // Not `map`: its closure would be compiled without the vector unit, and not inlined.
    let mut out = [R::finish(s, acc[0], frames.len()); UNROLL];
    for (out, &acc) in out.iter_mut().zip(&acc).skip(1) {
        *out = R::finish(s, acc, frames.len());
    }
    // Two loops, since only one over all frames has a length known when compiling.
    if to_all {
        for &frame in frames {
            for (u, &out) in out.iter().enumerate() {
                // SAFETY: vector u of the block.
                unsafe { R::store(s, frame.add(at + u * vector), out) };
            }
        }
    } else {
        for (u, &out) in out.iter().enumerate() {
            // SAFETY: vector u of the block.
            unsafe { R::store(s, frames[0].add(at + u * vector), out) };
        }
    }
}

/// The kernel of `S` for this element type, operation and number of ranks.
pub(super) fn pick<S: Lanes>(dtype: DType, op: Op, world: usize) -> Kernel {
    match dtype {
        DType::F32 => pick_float::<S, Binary32>(op, world),
        DType::F16 => pick_float::<S, Binary16>(op, world),
        DType::Bf16 => pick_float::<S, Bfloat16>(op, world),
        DType::I32 => match op {
            Op::Sum => pick_world::<S, SumI32>(world),
            Op::Avg => pick_world::<S, AvgI32>(world),
            Op::Min => pick_world::<S, MinI32>(world),
            Op::Max => pick_world::<S, MaxI32>(world),
        },
    }
}

fn pick_float<S: Lanes, W: Wire>(op: Op, world: usize) -> Kernel {
    match op {
        Op::Sum => pick_world::<S, Float<W, Sum>>(world),
        Op::Avg => pick_world::<S, Float<W, Avg>>(world),
        Op::Min => pick_world::<S, Float<W, Min>>(world),
        Op::Max => pick_world::<S, Float<W, Max>>(world),
    }
}

fn pick_world<S: Lanes, R: Rule>(world: usize) -> Kernel {
    if !S::SPECIALISED {
        return S::run::<R, 0>;
    }
    match world {
        2 => S::run::<R, 2>,
        4 => S::run::<R, 4>,
        8 => S::run::<R, 8>,
        16 => S::run::<R, 16>,
        _ => S::run::<R, 0>,
    }
}
