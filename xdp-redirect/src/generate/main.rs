//! The load generator of the bench, and the sink that makes a closed loop of it.
//!
//! The generator is run on live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`): it makes each frame the PUSH
//! of a rank for a chunk, and the kernel sends it, with no skb on the way. The sink sees the RESULTs
//! come back on the same interface, counts them and lets the chunk go on to its next round; so a lost
//! packet heals itself, for the next pass over the chunks sends the same round again.
#![no_std]
#![no_main]

mod shared;
mod sink;

use aya_ebpf::{
    Global,
    bindings::xdp_action::{XDP_DROP, XDP_TX},
    helpers::bpf_ktime_get_ns,
    macros::{map, xdp},
    maps::Array,
    programs::XdpContext,
};
use gradbox_protocol::{
    MAX_WORLD,
    bench::{Chunk, HEAD_LEN, HEAD_WORDS, State},
};
use shared::{ANSWERED, CHUNK_COUNT, CHUNKS, PORT_BASE, SHARDS, WORLD};
use xdp_redirect::packet::*;

/// Of each rank the headers and the payload's lead, made by the loader; what is behind them is as it
/// was in the frame.
#[map]
static HEADS: Array<[u64; HEAD_WORDS]> = Array::with_max_entries(MAX_WORLD as u32, 0);

/// Words of a head but for its last, which is not a whole one.
const WHOLE_WORDS: usize = HEAD_LEN / 8;
const _: () = assert!(WHOLE_WORDS * 8 + 2 == HEAD_LEN);

/// The generator's own state. Only one run at a time may use it.
#[map]
static STATE: Array<[u64; State::COUNT]> = Array::with_max_entries(1, 0);

/// Not 0: send nothing more. A run cannot be ended before its frames are used up, but then they cost
/// little.
#[map]
static STOP: Array<u32> = Array::with_max_entries(1, 0);

/// Most packets that may be in flight. Set by the loader.
#[unsafe(no_mangle)]
static WINDOW: Global<u64> = Global::new(1);

/// Nanoseconds without an answer after which what is in flight is written off. Set by the loader.
#[unsafe(no_mangle)]
static STALL: Global<u64> = Global::new(0);

/// No helper used here is reserved for GPL programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 18] = *b"MIT OR Apache-2.0\0";

/// Entry point.
#[xdp]
fn gradbox_generate(ctx: XdpContext) -> u32 {
    match generate(&ctx) {
        Some(()) => XDP_TX,
        None => XDP_DROP,
    }
}

/// The generator's state, by name.
#[derive(Clone, Copy)]
struct Own(*mut [u64; State::COUNT]);

impl Own {
    #[inline(always)]
    fn get(self, field: State) -> u64 {
        // SAFETY: the verifier knows the entry to be of this type, and one run at a time uses it.
        unsafe { (*self.0)[field as usize] }
    }

    #[inline(always)]
    fn set(self, field: State, value: u64) {
        // SAFETY: as above.
        unsafe { (*self.0)[field as usize] = value };
    }

    #[inline(always)]
    fn add(self, field: State, more: u64) {
        self.set(field, self.get(field).wrapping_add(more));
    }
}

/// Makes the frame the next packet, if one may be sent.
#[inline(always)]
fn generate(ctx: &XdpContext) -> Option<()> {
    if stopped() {
        return None;
    }
    let packet = View::<HEAD_LEN>::at(ctx, 0)?;
    let own = Own(STATE.get_ptr_mut(0)?);
    if !has_room(own)? {
        return None;
    }
    let (rank, chunk) = (own.get(State::Rank) as u32, own.get(State::Chunk) as u32);
    let shard = chunk.checked_rem(SHARDS.load())?;
    let head = HEADS.get(rank)?;
    let (round, sent_before) = book(own, rank, chunk)?;

    let mut word = 0;
    while word < WHOLE_WORDS {
        let to = packet.address() + word * 8;
        // SAFETY: the word is within HEAD_LEN bytes of the packet.
        unsafe { (to as *mut u64).write_unaligned(head[word]) };
        word += 1;
    }
    packet.set::<{ WHOLE_WORDS * 8 }, _>(head[WHOLE_WORDS] as u16);
    let port = PORT_BASE.load() + shard as u16;
    packet.set::<{ FLAT_UDP + UDP_DESTINATION }, _>(port.to_be());
    packet.set::<{ GRADBOX + GRADBOX_FLAGS }, _>(if sent_before { FLAG_RESENT } else { 0 });
    packet.set::<{ GRADBOX + GRADBOX_ROUND }, _>(round);
    packet.set::<{ GRADBOX + GRADBOX_CHUNK }, _>(chunk);

    own.add(State::Sent, 1);
    if rank + 1 < WORLD.load() {
        own.set(State::Rank, u64::from(rank + 1));
    } else {
        own.set(State::Rank, 0);
        let next = if chunk + 1 < CHUNK_COUNT.load() { chunk + 1 } else { 0 };
        own.set(State::Chunk, u64::from(next));
    }
    Some(())
}

#[inline(always)]
fn stopped() -> bool {
    // SAFETY: the verifier knows the entry to be 4 bytes; user space writes them whole.
    STOP.get_ptr(0).is_none_or(|stop| unsafe { stop.read_volatile() } != 0)
}

/// Whether the window has room for one more packet; a poll where it has not.
#[inline(always)]
fn has_room(own: Own) -> Option<bool> {
    let mut answered = 0_u64;
    let mut shard = 0;
    while shard < SHARDS.load() {
        // SAFETY: the verifier knows the entry to be of this type; the sink writes words whole.
        answered += unsafe { ANSWERED.get_ptr(shard)?.cast::<u64>().read_volatile() };
        shard += 1;
    }
    let settled = answered.wrapping_add(own.get(State::WrittenOff));
    let in_flight = own.get(State::Sent).wrapping_sub(settled) as i64;
    if in_flight < 0 {
        // What was written off came after all.
        own.add(State::WrittenOff, in_flight as u64);
        return Some(true);
    }
    if (in_flight as u64) < WINDOW.load() {
        return Some(true);
    }
    own.add(State::Polls, 1);
    // SAFETY: takes nothing and reads a clock.
    let now = unsafe { bpf_ktime_get_ns() };
    let since = own.get(State::Since);
    if own.get(State::Progress) != answered || since == 0 {
        own.set(State::Progress, answered);
        own.set(State::Since, now);
    } else if now.wrapping_sub(since) > STALL.load() {
        own.add(State::WrittenOff, in_flight as u64);
        own.add(State::Epoch, 1);
        own.set(State::Since, now);
    }
    Some(false)
}

/// Notes that `rank` sends its part of `chunk`: the round, and whether it was sent before. In flight
/// is a part once, however often it was sent: the ones before are written off.
#[inline(always)]
fn book(own: Own, rank: u32, chunk: u32) -> Option<(u32, bool)> {
    let entry = CHUNKS.get_ptr_mut(chunk)?;
    let at = |field: Chunk| entry.cast::<u32>().wrapping_add(field as usize);
    // SAFETY: `at` stays within the entry. The sink writes nothing but the round.
    unsafe {
        let round = at(Chunk::Round).read_volatile();
        if at(Chunk::PushedRound).read() != round {
            at(Chunk::PushedRound).write(round);
            at(Chunk::Pushed).write(0);
            at(Chunk::Flying).write(0);
        }
        let epoch = own.get(State::Epoch) as u32;
        if at(Chunk::Epoch).read() != epoch {
            // All of them were written off when the epoch began.
            at(Chunk::Epoch).write(epoch);
            at(Chunk::Flying).write(0);
        }
        let bit = 1 << rank;
        let (pushed, flying) = (at(Chunk::Pushed).read(), at(Chunk::Flying).read());
        if flying & bit != 0 {
            own.add(State::WrittenOff, 1);
        }
        if pushed & bit != 0 {
            own.add(State::Resent, 1);
        }
        at(Chunk::Pushed).write(pushed | bit);
        at(Chunk::Flying).write(flying | bit);
        Some((round, pushed & bit != 0))
    }
}

/// The language asks for one; the verifier rejects every path that could come here.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
