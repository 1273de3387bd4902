//! Packets to be measured with. A test run of the kernel gives the program one packet, again and
//! again, as it left it; this makes it the packet of another rank, chunk and round each time.

use crate::WORLD;
use aya_ebpf::{Global, macros::map, maps::Array, programs::XdpContext};
use gradbox_protocol::{
    HEADER_LEN, MAX_WORLD,
    bench::{LEAD, SUM_BYTES},
};
use xdp_redirect::packet::*;

/// Of each rank the headers of its packets, behind two bytes of no meaning, and the payload. What is
/// behind the payload's lead is the same for all.
///
/// Both are written in words from the packet's payload on, as the sum reads them: a read across two
/// fresh writes would wait for them, as it never does after a network card.
#[map]
static PACKETS: Array<[u64; HEADER_WORDS + SUM_BYTES / 8]> =
    Array::with_max_entries(MAX_WORLD as u32, 0);

/// Words before the payload. Of the first one only two bytes are the packet's.
const HEADER_WORDS: usize = (GRADBOX + HEADER_LEN).div_ceil(8);
/// Bytes of no meaning before the headers.
const BEFORE: usize = HEADER_WORDS * 8 - (GRADBOX + HEADER_LEN);

/// Rank, chunk within the burst, first chunk of the burst, and round of the next packet, of each of
/// the two programs that stamp.
#[map]
static NEXT: Array<[u32; 4]> = Array::with_max_entries(2, 0);

/// Chunks that a rank sends before the next rank sends the same ones.
#[unsafe(no_mangle)]
static BURST: Global<u32> = Global::new(1);
/// Chunks of the job.
#[unsafe(no_mangle)]
static CHUNK_COUNT: Global<u32> = Global::new(1);

/// Makes the packet the next one of `series`. Does nothing to a packet of another length.
#[inline(always)]
pub fn stamp(ctx: &XdpContext, series: u32) {
    let Some(packet) = View::<{ GRADBOX + HEADER_LEN + SUM_BYTES }>::at(ctx, 0) else { return };
    let Some(next) = NEXT.get_ptr_mut(series) else { return };
    // SAFETY: the verifier knows the entry to be of this type, and one CPU runs the measurement.
    let [rank, within, first, round] = unsafe { *next };
    let Some(whole) = PACKETS.get_ptr(rank) else { return };
    let last = rank + 1 == WORLD.load();
    // Only the last rank's packet comes back changed behind its lead: it took the sum.
    let changed = (rank == 0 && within == 0) || (last && within != 0);
    let words = HEADER_WORDS + if changed { SUM_BYTES } else { LEAD } / 8;
    let mut word = 1;
    while word < words {
        let to = packet.address() + word * 8 - BEFORE;
        // SAFETY: word is below the words of the value, BEFORE bytes behind those of the packet.
        unsafe { (to as *mut u64).write_unaligned(whole.cast::<u64>().add(word).read()) };
        word += 1;
    }
    // SAFETY: the first word ends there.
    packet.set::<0, _>(unsafe { whole.cast::<u8>().add(BEFORE).cast::<[u8; 8 - BEFORE]>().read() });
    packet.set::<{ GRADBOX + GRADBOX_CHUNK }, _>(first + within);
    packet.set::<{ GRADBOX + GRADBOX_ROUND }, _>(round);

    let burst = BURST.load();
    let following = if within + 1 < burst {
        [rank, within + 1, first, round]
    } else if !last {
        [rank + 1, 0, first, round]
    } else if first + burst < CHUNK_COUNT.load() {
        [0, 0, first + burst, round]
    } else {
        [0, 0, 0, round.wrapping_add(1)]
    };
    // SAFETY: as above.
    unsafe { *next = following };
}
