//! What is done with elements: how each type is loaded, folded over the ranks, finished and stored.

use std::marker::PhantomData;

use super::lanes::Lanes;

/// How elements of one data type are combined under one operation.
pub(super) trait Rule {
    /// Bytes per element in memory.
    const SIZE: usize;
    /// One vector of partial results.
    type Acc<S: Lanes>: Copy;
    /// One vector of results as they are stored.
    type Out<S: Lanes>: Copy;
    /// # Safety
    /// `S::LANES` elements are readable at `at`.
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> Self::Acc<S>;
    /// # Safety
    /// `S::LANES` elements are writable at `at`.
    unsafe fn store<S: Lanes>(s: S, at: *mut u8, out: Self::Out<S>);
    fn fold<S: Lanes>(s: S, acc: Self::Acc<S>, x: Self::Acc<S>) -> Self::Acc<S>;
    fn finish<S: Lanes>(s: S, acc: Self::Acc<S>, world: usize) -> Self::Out<S>;
}

/// How a floating-point type lies in memory.
pub(super) trait Wire {
    const SIZE: usize;
    type Out<S: Lanes>: Copy;
    /// # Safety
    /// `S::LANES` elements are readable at `at`.
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::F32;
    /// # Safety
    /// `S::LANES` elements are writable at `at`.
    unsafe fn store<S: Lanes>(s: S, at: *mut u8, out: Self::Out<S>);
    fn narrow<S: Lanes>(s: S, a: S::F32) -> Self::Out<S>;
}

macro_rules! wire {
    ($name:ident, $size:literal, $out:ident, $load:ident, $store:ident, $narrow:expr) => {
        pub(super) struct $name;
        impl Wire for $name {
            const SIZE: usize = $size;
            type Out<S: Lanes> = S::$out;
            #[inline(always)]
            unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::F32 {
                // SAFETY: the caller's promise is the same.
                unsafe { s.$load(at) }
            }
            #[inline(always)]
            unsafe fn store<S: Lanes>(s: S, at: *mut u8, out: Self::Out<S>) {
                // SAFETY: the caller's promise is the same.
                unsafe { s.$store(at, out) }
            }
            #[inline(always)]
            fn narrow<S: Lanes>(s: S, a: S::F32) -> Self::Out<S> {
                $narrow(s, a)
            }
        }
    };
}
wire!(Binary32, 4, F32, load_f32, store_f32, |_, a| a);
wire!(Binary16, 2, Half, load_f16, store_half, S::to_f16);
wire!(Bfloat16, 2, Half, load_bf16, store_half, S::to_bf16);

/// An operation on floating-point values, all in binary32.
pub(super) trait Scan {
    fn fold<S: Lanes>(s: S, acc: S::F32, x: S::F32) -> S::F32;
    #[inline(always)]
    fn finish<S: Lanes>(_: S, acc: S::F32, _world: usize) -> S::F32 {
        acc
    }
}

pub(super) struct Sum;
impl Scan for Sum {
    #[inline(always)]
    fn fold<S: Lanes>(s: S, acc: S::F32, x: S::F32) -> S::F32 {
        s.add(acc, x)
    }
}

pub(super) struct Avg;
impl Scan for Avg {
    #[inline(always)]
    fn fold<S: Lanes>(s: S, acc: S::F32, x: S::F32) -> S::F32 {
        s.add(acc, x)
    }
    #[inline(always)]
    fn finish<S: Lanes>(s: S, acc: S::F32, world: usize) -> S::F32 {
        // The reciprocal of a power of two is exact, so both round the same real number.
        if world.is_power_of_two() {
            s.mul(acc, 1.0 / world as f32)
        } else {
            s.div(acc, world as f32)
        }
    }
}

pub(super) struct Min;
impl Scan for Min {
    #[inline(always)]
    fn fold<S: Lanes>(s: S, acc: S::F32, x: S::F32) -> S::F32 {
        s.min(acc, x)
    }
}

pub(super) struct Max;
impl Scan for Max {
    #[inline(always)]
    fn fold<S: Lanes>(s: S, acc: S::F32, x: S::F32) -> S::F32 {
        s.max(acc, x)
    }
}

pub(super) struct Float<W, O>(PhantomData<(W, O)>);
impl<W: Wire, O: Scan> Rule for Float<W, O> {
    const SIZE: usize = W::SIZE;
    type Acc<S: Lanes> = S::F32;
    type Out<S: Lanes> = W::Out<S>;
    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::F32 {
        // SAFETY: the caller's promise is the same.
        unsafe { W::load(s, at) }
    }
    #[inline(always)]
    unsafe fn store<S: Lanes>(s: S, at: *mut u8, out: W::Out<S>) {
        // SAFETY: the caller's promise is the same.
        unsafe { W::store(s, at, out) }
    }
    #[inline(always)]
    fn fold<S: Lanes>(s: S, acc: S::F32, x: S::F32) -> S::F32 {
        O::fold(s, acc, x)
    }
    #[inline(always)]
    fn finish<S: Lanes>(s: S, acc: S::F32, world: usize) -> W::Out<S> {
        W::narrow(s, s.canonical(O::finish(s, acc, world)))
    }
}

macro_rules! integer_rule {
    ($name:ident, $acc:ident, $lift:expr, $fold:ident, $finish:expr) => {
        pub(super) struct $name;
        impl Rule for $name {
            const SIZE: usize = 4;
            type Acc<S: Lanes> = S::$acc;
            type Out<S: Lanes> = S::I32;
            #[inline(always)]
            unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::$acc {
                // SAFETY: the caller's promise is the same.
                let x = unsafe { s.load_i32(at) };
                $lift(s, x)
            }
            #[inline(always)]
            unsafe fn store<S: Lanes>(s: S, at: *mut u8, out: S::I32) {
                // SAFETY: the caller's promise is the same.
                unsafe { s.store_i32(at, out) }
            }
            #[inline(always)]
            fn fold<S: Lanes>(s: S, acc: S::$acc, x: S::$acc) -> S::$acc {
                s.$fold(acc, x)
            }
            #[inline(always)]
            fn finish<S: Lanes>(s: S, acc: S::$acc, world: usize) -> S::I32 {
                $finish(s, acc, world)
            }
        }
    };
}
integer_rule!(SumI32, I32, |_, x| x, add_i32, |_, acc, _| acc);
integer_rule!(AvgI32, Wide, S::widen, add_wide, S::div_wide);
integer_rule!(MinI32, I32, |_, x| x, min_i32, |_, acc, _| acc);
integer_rule!(MaxI32, I32, |_, x| x, max_i32, |_, acc, _| acc);
