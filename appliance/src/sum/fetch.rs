//! Asking for memory before it is needed.

/// Asks the CPU to fetch `len` bytes from `start` on: a hint, whatever the address.
#[inline]
pub fn fetch(start: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        fetch_line(start.wrapping_add(at));
        at += 64;
    }
}

/// Asks the CPU to fetch one cache line.
#[inline]
fn fetch_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
