//! The rival: sums in the kernel, where XDP runs, as the literature on in-network aggregation does
//! it without a switch. Fixed-point i32 only, for BPF has no floats.
//!
//! A chunk's sum lies in an array map. The first part of a round is copied there, the others are
//! added; the last one's packet takes the sum and goes back to its sender. That is one reply in all:
//! XDP sends a packet or drops it, and cannot make a second one, so a reply to each worker is only to
//! be had from a multicast group behind it.
//!
//! Nothing is locked: the packets of a chunk must all come to one CPU, as they do here, where a port
//! stands for a shard.
#![no_std]
#![no_main]

mod measure;
mod sum;

use aya_ebpf::{
    Global,
    bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
    macros::{map, xdp},
    maps::{Array, PerCpuArray},
    programs::XdpContext,
};
use gradbox_protocol::{
    HEADER_LEN, MAGIC, MAX_WORLD, VERSION,
    bench::{Outcome, SUM_BYTES},
};
use sum::Sum;
use xdp_redirect::packet::*;

/// Bytes of a packet: all of one length, so that every bound is checked once.
const PACKET: usize = GRADBOX + HEADER_LEN + SUM_BYTES;

/// BPF_F_MMAPABLE (linux/bpf.h): makes the kernel put the values on pages of their own, so that
/// each begins on a cache line.
const PAGED: u32 = 1 << 10;

/// Of each chunk the number of rounds completed, and in the upper half a bit for each rank whose
/// part of the present round is here. As many as chunks; set by the loader.
#[map]
static CHUNKS: Array<u64> = Array::with_max_entries(1, PAGED);

/// Sums of the chunks: `COPIES` of each chunk, of which the round's number chooses one.
#[map]
static SUMS: Array<Sum> = Array::with_max_entries(1, PAGED);

/// Of each rank the IPv4 address as it lies in the packet, and the cookie.
#[map]
static MEMBERS: Array<[u32; 2]> = Array::with_max_entries(MAX_WORLD as u32, 0);

/// Packets by [`Outcome`].
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Outcome::COUNT as u32, 0);

/// First UDP port that is ours, and the number of them. Set by the loader, as all of these.
#[unsafe(no_mangle)]
static PORT_BASE: Global<u16> = Global::new(0);
#[unsafe(no_mangle)]
static PORT_COUNT: Global<u16> = Global::new(0);

/// The job, and how many ranks it has.
#[unsafe(no_mangle)]
static JOB: Global<u16> = Global::new(0);
#[unsafe(no_mangle)]
static WORLD: Global<u32> = Global::new(0);

/// Sums kept of each chunk: 2 if a finished round's is to be had until the next one is complete,
/// as a lossy network needs it; 1 if only until the next one begins.
#[unsafe(no_mangle)]
static COPIES: Global<u32> = Global::new(1);

/// No helper used here is reserved for GPL programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 18] = *b"MIT OR Apache-2.0\0";

/// Entry point.
#[xdp]
fn gradbox_aggregate(ctx: XdpContext) -> u32 {
    serve(&ctx)
}

/// Entry point to be measured: makes its own packets of the one that it is run on.
#[xdp]
fn gradbox_measure(ctx: XdpContext) -> u32 {
    measure::stamp(&ctx, 0);
    serve(&ctx)
}

/// What of [`gradbox_measure`] is not aggregation.
#[xdp]
fn gradbox_stamp(ctx: XdpContext) -> u32 {
    measure::stamp(&ctx, 1);
    XDP_DROP
}

/// Does what is to be done with a packet, and counts it.
#[inline(always)]
fn serve(ctx: &XdpContext) -> u32 {
    let outcome = match examine(ctx) {
        Ok(part) => part.take(),
        Err(outcome) => outcome,
    };
    if let Some(counter) = COUNTERS.get_ptr_mut(outcome as u32) {
        // SAFETY: the verifier knows the entry to be 8 bytes of this CPU, which runs one
        // instance of the program at a time.
        unsafe { *counter = (*counter).wrapping_add(1) };
    }
    match outcome {
        Outcome::Completed | Outcome::Resent => XDP_TX,
        Outcome::PassOther => XDP_PASS,
        Outcome::Added
        | Outcome::Duplicate
        | Outcome::DropMalformed
        | Outcome::DropUnknownJob
        | Outcome::DropStranger
        | Outcome::DropWrongChunk
        | Outcome::DropWrongRound => XDP_DROP,
    }
}

/// A good PUSH.
struct Part {
    packet: View<PACKET>,
    rank: u32,
    chunk: u32,
    round: u32,
}

/// The part that a packet brings, if it is one of this job.
#[inline(always)]
fn examine(ctx: &XdpContext) -> Result<Part, Outcome> {
    let start = View::<GRADBOX>::at(ctx, 0).ok_or(Outcome::PassOther)?;
    let ours = start.be16::<ETH_TYPE>() == ETH_P_IP
        && start.byte::<ETH_LEN>() == IPV4_PLAIN
        && start.byte::<{ ETH_LEN + IPV4_PROTOCOL }>() == IPPROTO_UDP
        && start.be16::<{ ETH_LEN + IPV4_FRAGMENT }>() & IPV4_IS_FRAGMENT == 0
        && start.be16::<{ FLAT_UDP + UDP_DESTINATION }>().wrapping_sub(PORT_BASE.load())
            < PORT_COUNT.load();
    if !ours {
        return Err(Outcome::PassOther);
    }
    let packet = View::<PACKET>::at(ctx, 0).ok_or(Outcome::DropMalformed)?;
    let well_formed = usize::from(packet.be16::<{ FLAT_UDP + UDP_LENGTH }>())
        == UDP_LEN + HEADER_LEN + SUM_BYTES
        && packet.le16::<{ GRADBOX + GRADBOX_MAGIC }>() == MAGIC
        && packet.byte::<{ GRADBOX + GRADBOX_VERSION }>() == VERSION
        && packet.byte::<{ GRADBOX + GRADBOX_KIND }>() == KIND_PUSH
        && usize::from(packet.le16::<{ GRADBOX + GRADBOX_LENGTH }>()) == SUM_BYTES;
    if !well_formed {
        return Err(Outcome::DropMalformed);
    }
    if packet.le16::<{ GRADBOX + GRADBOX_JOB }>() != JOB.load() {
        return Err(Outcome::DropUnknownJob);
    }
    let rank = u32::from(packet.byte::<{ GRADBOX + GRADBOX_RANK }>());
    if rank >= WORLD.load() {
        return Err(Outcome::DropStranger);
    }
    let member = MEMBERS.get(rank).ok_or(Outcome::DropStranger)?;
    if member[0] != packet.word::<{ ETH_LEN + IPV4_SOURCE }>()
        || member[1] != packet.word::<{ GRADBOX + GRADBOX_COOKIE }>()
    {
        return Err(Outcome::DropStranger);
    }
    if packet.le16::<{ GRADBOX + GRADBOX_TENSOR }>() != 0 {
        return Err(Outcome::DropWrongChunk);
    }
    Ok(Part {
        packet,
        rank,
        chunk: packet.word::<{ GRADBOX + GRADBOX_CHUNK }>(),
        round: packet.word::<{ GRADBOX + GRADBOX_ROUND }>(),
    })
}

impl Part {
    /// Takes the part into the sum of its chunk.
    #[inline(always)]
    fn take(self) -> Outcome {
        let Some(chunk) = CHUNKS.get_ptr_mut(self.chunk) else {
            return Outcome::DropWrongChunk;
        };
        // SAFETY: the verifier knows the entry to be 8 bytes; one CPU serves this chunk.
        let state = unsafe { chunk.read() };
        let (completed, held) = (state as u32, (state >> 32) as u32);
        let copies = COPIES.load();
        let copy = self.round & (copies - 1);
        // A chunk beyond the map has been refused above, so this cannot overflow.
        let Some(sum) = SUMS.get_ptr_mut(self.chunk * copies + copy) else {
            return Outcome::DropWrongChunk;
        };
        let payload = self.packet.address() + GRADBOX + HEADER_LEN;
        if self.round != completed {
            // Of the round before: its sum is there as long as nothing has overwritten it.
            let kept = copies > 1 || held == 0;
            if completed == 0 || self.round != completed.wrapping_sub(1) || !kept {
                return Outcome::DropWrongRound;
            }
            // SAFETY: `sum` is an entry of the map, and `examine` found the whole packet.
            unsafe { sum::answer(sum, payload) };
            self.turn();
            return Outcome::Resent;
        }
        let bit = 1 << self.rank;
        if held & bit != 0 {
            return Outcome::Duplicate;
        }
        let complete = held | bit == u32::MAX >> (32 - WORLD.load());
        // SAFETY: as above, for each of them.
        unsafe {
            if complete {
                if held == 0 {
                    sum::begin(sum, payload);
                } else {
                    sum::finish(sum, payload);
                }
                chunk.write(u64::from(completed.wrapping_add(1)));
            } else {
                if held == 0 {
                    sum::begin(sum, payload);
                } else {
                    sum::add(sum, payload);
                }
                chunk.write(state | u64::from(bit) << 32);
            }
        }
        if complete {
            self.turn();
            Outcome::Completed
        } else {
            Outcome::Added
        }
    }

    /// Turns the packet into the RESULT: back to its sender, with no UDP checksum. Swapped addresses
    /// leave IPv4's checksum as it is.
    #[inline(always)]
    fn turn(&self) {
        let packet = self.packet;
        let destination = packet.bytes::<0, 6>();
        packet.set::<0, _>(packet.bytes::<6, 6>());
        packet.set::<6, _>(destination);
        let source = packet.word::<{ ETH_LEN + IPV4_SOURCE }>();
        packet.set::<{ ETH_LEN + IPV4_SOURCE }, _>(packet.word::<{ ETH_LEN + IPV4_DESTINATION }>());
        packet.set::<{ ETH_LEN + IPV4_DESTINATION }, _>(source);
        // Source port, destination port.
        packet.set::<FLAT_UDP, _>(packet.word::<FLAT_UDP>().rotate_left(16));
        packet.set::<{ FLAT_UDP + UDP_CHECKSUM }, _>(0_u16);
        packet.set::<{ GRADBOX + GRADBOX_KIND }, _>(KIND_RESULT);
        packet.set::<{ GRADBOX + GRADBOX_FLAGS }, _>(0_u8);
    }
}

/// The language asks for one; the verifier rejects every path that could come here.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
