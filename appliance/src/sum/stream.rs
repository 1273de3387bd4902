//! What memory allows: the same traffic as a sum's, with next to no arithmetic. The yardstick for
//! the kernels, measured beside them.

use super::Isa;
use super::fetch::fetch;

/// In which order [`stream`] visits the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// One frame after the other.
    Frames,
    /// A line of every frame, then the next line of every frame, as a sum must.
    Lines,
    /// One frame after the other, after the same frame of the next group has been asked for.
    FramesAhead,
}

impl Visit {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Frames, Self::Lines, Self::FramesAhead];
}

/// Bytes of a visit.
const LINE: usize = 64;

/// Reads every byte of every frame and, with `to_all`, writes it back changed; without, writes the
/// first frame only. Bytes behind the last whole 64 of a frame are left alone. With
/// [`Visit::FramesAhead`] the `next` frames are fetched meanwhile.
///
/// # Panics
/// Where frames differ in length.
pub fn stream(isa: Isa, frames: &mut [&mut [u8]], next: &[&mut [u8]], visit: Visit, to_all: bool) {
    if visit == Visit::FramesAhead && to_all {
        for (frame, next) in frames.iter_mut().zip(next) {
            fetch(next.as_ptr(), next.len());
            stream(isa, std::slice::from_mut(frame), &[], Visit::Frames, true);
        }
        let fetched = frames.len().min(next.len());
        return stream(isa, &mut frames[fetched..], &[], Visit::Frames, true);
    }
    let len = frames.first().map_or(0, |f| f.len());
    assert!(frames.iter().all(|f| f.len() == len), "frames of one length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detected` says that this CPU has it.
        Isa::Avx512 if isa.is_available() => unsafe { x86::avx512(frames, len, visit, to_all) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 if isa.is_available() => unsafe { x86::avx2(frames, len, visit, to_all) },
        _ => go(Words, frames, len, visit, to_all),
    }
}

/// One line in registers.
trait Lines: Copy {
    type Line: Copy;
    fn load(self, line: &[u8; LINE]) -> Self::Line;
    fn store(self, line: &mut [u8; LINE], value: Self::Line);
    /// A cheap change that depends on all bits.
    fn change(self, a: Self::Line, b: Self::Line) -> Self::Line;
    fn start(self) -> Self::Line;
}

#[inline(always)]
fn go<L: Lines>(l: L, frames: &mut [&mut [u8]], len: usize, visit: Visit, to_all: bool) {
    let lines = len / LINE;
    // Nobody may know that it is zero: what is stored unchanged need not be stored.
    let mut seen = std::hint::black_box(l.start());
    match (visit, to_all) {
        (Visit::Frames | Visit::FramesAhead, true) => {
            for frame in frames {
                for line in frame.as_chunks_mut::<LINE>().0 {
                    l.store(line, l.change(l.load(line), seen));
                }
            }
        }
        (Visit::Lines, true) => {
            for at in 0..lines {
                for frame in &mut *frames {
                    if let Some(line) = frame[at * LINE..].first_chunk_mut::<LINE>() {
                        l.store(line, l.change(l.load(line), seen));
                    }
                }
            }
        }
        (Visit::Frames | Visit::FramesAhead, false) => {
            for frame in frames.iter().skip(1) {
                for line in frame.as_chunks::<LINE>().0 {
                    seen = l.change(l.load(line), seen);
                }
            }
            for line in frames.iter_mut().take(1).flat_map(|f| f.as_chunks_mut::<LINE>().0) {
                l.store(line, l.change(l.load(line), seen));
            }
        }
        (Visit::Lines, false) => {
            for at in 0..lines {
                for frame in frames.iter().skip(1) {
                    if let Some(line) = frame[at * LINE..].first_chunk::<LINE>() {
                        seen = l.change(l.load(line), seen);
                    }
                }
                let first = frames.first_mut().map(|f| &mut f[at * LINE..]);
                if let Some(line) = first.and_then(|f| f.first_chunk_mut::<LINE>()) {
                    l.store(line, l.change(l.load(line), seen));
                }
            }
        }
    }
}

/// Any CPU: words, which compilers turn into vectors.
#[derive(Clone, Copy)]
struct Words;

impl Lines for Words {
    type Line = [u64; LINE / 8];

    #[inline(always)]
    fn load(self, line: &[u8; LINE]) -> Self::Line {
        let mut words = [0; LINE / 8];
        for (word, bytes) in words.iter_mut().zip(line.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }
    #[inline(always)]
    fn store(self, line: &mut [u8; LINE], value: Self::Line) {
        for (bytes, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(value) {
            *bytes = word.to_le_bytes();
        }
    }
    #[inline(always)]
    fn change(self, mut a: Self::Line, b: Self::Line) -> Self::Line {
        for (a, b) in a.iter_mut().zip(b) {
            *a ^= b;
        }
        a
    }
    #[inline(always)]
    fn start(self) -> Self::Line {
        [0; LINE / 8]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINE, Lines, Visit, go};
    use std::arch::x86_64::*;

    /// Exists only where the CPU has AVX-512F.
    #[derive(Clone, Copy)]
    struct Avx512(());

    impl Lines for Avx512 {
        type Line = __m512i;

        #[inline(always)]
        fn load(self, line: &[u8; LINE]) -> __m512i {
            // SAFETY: 64 readable bytes, and the token proves the instruction.
            unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
        }
        #[inline(always)]
        fn store(self, line: &mut [u8; LINE], value: __m512i) {
            // SAFETY: 64 writable bytes, and the token proves the instruction.
            unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), value) }
        }
        #[inline(always)]
        fn change(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: the token proves the instruction.
            unsafe { _mm512_xor_si512(a, b) }
        }
        #[inline(always)]
        fn start(self) -> __m512i {
            // SAFETY: the token proves the instruction.
            unsafe { _mm512_setzero_si512() }
        }
    }

    /// Exists only where the CPU has AVX2.
    #[derive(Clone, Copy)]
    struct Avx2(());

    impl Lines for Avx2 {
        type Line = [__m256i; 2];

        #[inline(always)]
        fn load(self, line: &[u8; LINE]) -> Self::Line {
            let at = line.as_ptr().cast::<__m256i>();
            // SAFETY: 64 readable bytes, and the token proves the instructions.
            unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
        }
        #[inline(always)]
        fn store(self, line: &mut [u8; LINE], value: Self::Line) {
            let at = line.as_mut_ptr().cast::<__m256i>();
            // SAFETY: 64 writable bytes, and the token proves the instructions.
            unsafe {
                _mm256_storeu_si256(at, value[0]);
                _mm256_storeu_si256(at.add(1), value[1]);
            }
        }
        #[inline(always)]
        fn change(self, a: Self::Line, b: Self::Line) -> Self::Line {
            // SAFETY: the token proves the instructions.
            unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
        }
        #[inline(always)]
        fn start(self) -> Self::Line {
            // SAFETY: the token proves the instruction.
            unsafe { [_mm256_setzero_si256(); 2] }
        }
    }

    /// # Safety
    /// This CPU has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(frames: &mut [&mut [u8]], len: usize, visit: Visit, to_all: bool) {
        go(Avx512(()), frames, len, visit, to_all);
    }

    /// # Safety
    /// This CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(frames: &mut [&mut [u8]], len: usize, visit: Visit, to_all: bool) {
        go(Avx2(()), frames, len, visit, to_all);
    }
}
