//! Takes the box's answers out of the kernel's way, counts them, and moves chunks on.
//!
//! In tc rather than XDP: with an XDP program there, veth would copy every packet once more.

use crate::shared::*;
use aya_ebpf::{
    EbpfContext, Global,
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::bpf_skb_load_bytes,
    macros::{classifier, map},
    maps::{PerCpuArray, RingBuf},
    programs::TcContext,
};
use gradbox_protocol::{
    HEADER_LEN, MAGIC, VERSION,
    bench::{Chunk, SAMPLE_LEN, Seen},
};
use xdp_redirect::packet::*;

/// Bytes from the Ethernet header to the end of the Gradbox header.
const HEADERS: usize = GRADBOX + HEADER_LEN;

/// What was seen, by [`Seen`].
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Seen::COUNT as u32, 0);

/// Whole RESULTs: their length in the first eight bytes, then the packet.
#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// A packet in the ring.
type Sample = [u8; 8 + SAMPLE_LEN];

/// Most segments of one message (`UDP_MAX_SEGMENTS`, linux/udp.h).
const SEGMENTS: u32 = 128;

/// A datagram of a packet: the packet's only one, or a segment of a message that was sent with
/// UDP_SEGMENT, which passes a veth link in one piece.
#[derive(Clone, Copy)]
struct Datagram {
    /// Where its Gradbox header begins.
    at: u32,
    /// Its bytes, Gradbox header included.
    len: u32,
    /// The packet has more of them.
    segment: bool,
    header: [u8; HEADER_LEN],
}

impl Datagram {
    #[inline(always)]
    fn word(&self, at: usize) -> u32 {
        let h = &self.header;
        u32::from_ne_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
    }
}

/// The job. Set by the loader, as all of these.
#[unsafe(no_mangle)]
static JOB: Global<u16> = Global::new(0);

/// Not 0: one RESULT answers all ranks, rather than each its own.
#[unsafe(no_mangle)]
static ONE_REPLY: Global<u32> = Global::new(0);

/// Of how many RESULTs, on each CPU, one is handed out whole; 0: none.
#[unsafe(no_mangle)]
static SAMPLE_EVERY: Global<u64> = Global::new(0);

/// Entry point.
#[classifier]
fn gradbox_sink(ctx: TcContext) -> i32 {
    match sink(&ctx) {
        Some(()) => TC_ACT_SHOT,
        // On to whatever else is attached.
        None => TC_ACT_UNSPEC,
    }
}

/// Counts a packet of Gradbox; `None` if it is none.
#[inline(always)]
fn sink(ctx: &TcContext) -> Option<()> {
    let packet = headers(ctx)?;
    let shard = u32::from(packet.be16::<FLAT_UDP>().wrapping_sub(PORT_BASE.load()));
    let from_box = packet.be16::<ETH_TYPE>() == ETH_P_IP
        && packet.byte::<ETH_LEN>() == IPV4_PLAIN
        && packet.byte::<{ ETH_LEN + IPV4_PROTOCOL }>() == IPPROTO_UDP
        && packet.be16::<{ ETH_LEN + IPV4_FRAGMENT }>() & IPV4_IS_FRAGMENT == 0
        && shard < SHARDS.load()
        && packet.le16::<{ GRADBOX + GRADBOX_MAGIC }>() == MAGIC
        && packet.byte::<{ GRADBOX + GRADBOX_VERSION }>() == VERSION;
    if !from_box {
        return None;
    }
    let header = packet.bytes::<GRADBOX, HEADER_LEN>();
    let (at, len) = (GRADBOX as u32, ctx.len());
    // SAFETY: the context is that of the packet at hand.
    let size = unsafe { (*ctx.skb.skb).gso_size };
    let segment = size != 0;
    let mut d = Datagram { at, len: if segment { size } else { len - at }, segment, header };
    let mut n = 0;
    while n < SEGMENTS {
        datagram(ctx, &d, shard);
        d.at += size;
        if !segment || d.at + HEADER_LEN as u32 > len {
            break;
        }
        d.len = if len - d.at < size { len - d.at } else { size };
        d.header = ctx.load(d.at as usize).ok()?;
        n += 1;
    }
    Some(())
}

#[inline(always)]
fn datagram(ctx: &TcContext, d: &Datagram, shard: u32) -> u64 {
    let h = &d.header;
    let known = u16::from_le_bytes([h[GRADBOX_JOB], h[GRADBOX_JOB + 1]]) == JOB.load();
    match h[GRADBOX_KIND] {
        KIND_RESULT if known => result(ctx, d, shard),
        KIND_STATUS => add(Seen::Statuses, 1),
        KIND_ERROR => add(Seen::Errors, 1),
        _ => add(Seen::Other, 1),
    }
}

/// The headers, which a packet in several pieces may have to be moved together for.
#[inline(always)]
fn headers(ctx: &TcContext) -> Option<View<HEADERS>> {
    if let Some(packet) = View::within(ctx.data(), ctx.data_end()) {
        return Some(packet);
    }
    ctx.pull_data(HEADERS as u32).ok()?;
    View::within(ctx.data(), ctx.data_end())
}

#[inline(always)]
fn result(ctx: &TcContext, d: &Datagram, shard: u32) -> u64 {
    let rank = u32::from(d.header[GRADBOX_RANK]);
    let round = d.word(GRADBOX_ROUND);
    let Some(chunk) = CHUNKS.get_ptr_mut(d.word(GRADBOX_CHUNK)) else {
        return add(Seen::Other, 1);
    };
    // The last rank's goes out last, so when it is here the others are, or are lost.
    if ONE_REPLY.load() != 0 || rank + 1 == WORLD.load() {
        let present = chunk.cast::<u32>().wrapping_add(Chunk::Round as usize);
        // SAFETY: the place is within the entry, and the box answers a chunk on one core.
        unsafe {
            if present.read_volatile() == round {
                present.write_volatile(round.wrapping_add(1));
                answered(shard);
                add(Seen::Advanced, 1);
            }
        }
    }
    let bytes = if d.segment { d.len + GRADBOX as u32 } else { ctx.len() };
    add(Seen::ResultBytes, u64::from(bytes));
    let seen = add(Seen::Results, 1);
    let every = SAMPLE_EVERY.load();
    if every != 0 && seen % every == 0 && sample(ctx, d).is_none() {
        add(Seen::Unsampled, 1);
    }
    seen
}

/// The parts of all ranks are no longer in flight.
#[inline(always)]
fn answered(shard: u32) {
    if let Some(answered) = ANSWERED.get_ptr_mut(shard) {
        let count = answered.cast::<u64>();
        // SAFETY: the verifier knows the entry to be of this type; see there for who writes it.
        unsafe { count.write_volatile(count.read().wrapping_add(u64::from(WORLD.load()))) };
    }
}

/// Copies the datagram with its headers into the ring, if it has room; of a packet that has no
/// other, also what is behind it.
#[inline(always)]
fn sample(ctx: &TcContext, d: &Datagram) -> Option<()> {
    const HEAD: u32 = GRADBOX as u32;
    let len = d.len;
    if len > SAMPLE_LEN as u32 - HEAD || len == 0 {
        return None;
    }
    let mut entry = SAMPLES.reserve::<Sample>(0)?;
    let start = entry.as_mut_ptr().cast::<u8>();
    // SAFETY: all writes are within the entry: 8 bytes, the headers, and len of at most what
    // SAMPLE_LEN leaves behind these.
    let copied = unsafe {
        start.cast::<u64>().write_unaligned(u64::from(len + HEAD));
        let (packet, skb) = (start.add(8), ctx.as_ptr().cast());
        let head = bpf_skb_load_bytes(skb, 0, packet.cast(), HEAD);
        let body = bpf_skb_load_bytes(skb, d.at, packet.add(GRADBOX).cast(), len);
        if d.segment {
            // The message's lengths, made the segment's.
            let total = (len as u16 + (IPV4_LEN + UDP_LEN) as u16).to_be();
            packet.add(ETH_LEN + 2).cast::<u16>().write_unaligned(total);
            let udp = (len as u16 + UDP_LEN as u16).to_be();
            packet.add(FLAT_UDP + UDP_LENGTH).cast::<u16>().write_unaligned(udp);
        }
        head | body
    };
    if copied != 0 {
        entry.discard(0);
        return None;
    }
    entry.submit(0);
    Some(())
}

/// Adds to a counter of this CPU; returns what it is then.
#[inline(always)]
fn add(seen: Seen, more: u64) -> u64 {
    let Some(counter) = COUNTERS.get_ptr_mut(seen as u32) else { return 0 };
    // SAFETY: the verifier knows the entry to be 8 bytes of this CPU, which runs one instance of
    // the program at a time.
    unsafe {
        *counter = (*counter).wrapping_add(more);
        *counter
    }
}
