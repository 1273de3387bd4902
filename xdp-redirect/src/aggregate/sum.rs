//! The sums of a chunk: fixed-point numbers of 32 bits, two in a word.

use gradbox_protocol::bench::SUM_BYTES;

/// Words of a payload.
const WORDS: usize = SUM_BYTES / 8;
/// Words of one turn of a loop: what is unrolled.
const UNROLLED: usize = 16;
const _: () = assert!(WORDS.is_multiple_of(UNROLLED));

/// A sum as it lies in the map.
pub type Sum = [u64; WORDS];

/// Adds two pairs of 32-bit numbers, without a carry from the lower to the upper one.
///
/// The fastest of what was tried; the others are in the README.
#[inline(always)]
fn add_pairs(a: u64, b: u64) -> u64 {
    let sum = a.wrapping_add(b);
    // Bit 32 of a sum differs from that of its terms where a carry came in.
    sum.wrapping_sub((a ^ b ^ sum) & (1 << 32))
}

/// Calls `each` with the place of every word in the map and in the packet.
///
/// # Safety
/// There are `SUM_BYTES` bytes at either.
#[inline(always)]
unsafe fn walk(sum: *mut Sum, payload: usize, each: impl Fn(*mut u64, *mut u64)) {
    let mut word = 0;
    while word < WORDS {
        for i in 0..UNROLLED {
            // SAFETY: word + i is below WORDS, and both places have as many.
            unsafe {
                each(sum.cast::<u64>().add(word + i), (payload as *mut u64).wrapping_add(word + i));
            }
        }
        word += UNROLLED;
    }
}

/// The first part: becomes the sum.
///
/// # Safety
/// There are `SUM_BYTES` bytes at `sum` and at `payload`.
#[inline(always)]
pub unsafe fn begin(sum: *mut Sum, payload: usize) {
    // SAFETY: the caller's, and `walk` gives places of words within them.
    unsafe { walk(sum, payload, |sum, part| sum.write(part.read_unaligned())) };
}

/// One more part.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub unsafe fn add(sum: *mut Sum, payload: usize) {
    // SAFETY: as in `begin`.
    unsafe {
        walk(sum, payload, |sum, part| sum.write(add_pairs(sum.read(), part.read_unaligned())));
    }
}

/// The last part: the sum goes into the packet too.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub unsafe fn finish(sum: *mut Sum, payload: usize) {
    // SAFETY: as in `begin`.
    unsafe {
        walk(sum, payload, |sum, part| {
            let whole = add_pairs(sum.read(), part.read_unaligned());
            sum.write(whole);
            part.write_unaligned(whole);
        });
    }
}

/// The sum once more, into the packet.
///
/// # Safety
/// As [`begin`].
#[inline(always)]
pub unsafe fn answer(sum: *mut Sum, payload: usize) {
    // SAFETY: as in `begin`.
    unsafe { walk(sum, payload, |sum, part| part.write_unaligned(sum.read())) };
}
