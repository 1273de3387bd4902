//! Sends the gradient packets of a queue to its AF_XDP socket; all other traffic goes on to the
//! kernel. Every packet adds one to the counter of its [`Verdict`].
//!
//! A packet is Gradbox's if it is UDP to a port that a shard owns. Only then may it be dropped.
#![no_std]
#![no_main]

use aya_ebpf::{
    Global,
    bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_REDIRECT},
    macros::{map, xdp},
    maps::{HashMap, PerCpuArray, XskMap},
    programs::XdpContext,
};
use gradbox_protocol::{HEADER_LEN, MAGIC, VERSION, verdict::Verdict};
use xdp_redirect::packet::*;

/// Most receive queues that can have a socket.
const MAX_QUEUES: u32 = 64;
/// Most addresses that may send at one time.
const MAX_SOURCES: u32 = 1024;

/// Receive queue to AF_XDP socket. A closed socket takes itself out.
#[map]
static SOCKETS: XskMap = XskMap::with_max_entries(MAX_QUEUES, 0);

/// Addresses that may send, in network byte order, IPv4 ones mapped; the value means nothing.
///
/// Words for a key: 16 bytes would cost a call of memset and a store for each.
#[map]
static SOURCES: HashMap<[u32; 4], u8> = HashMap::with_max_entries(MAX_SOURCES, 0);

/// Packets by [`Verdict`].
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Verdict::COUNT as u32, 0);

/// First UDP port that is ours. Set by the loader.
#[unsafe(no_mangle)]
static PORT_BASE: Global<u16> = Global::new(0);

/// Number of ports from there on. Set by the loader.
#[unsafe(no_mangle)]
static PORT_COUNT: Global<u16> = Global::new(0);

/// No helper used here is reserved for GPL programs (`gpl_only` in the kernel's
/// `bpf_func_proto`), so the string can be the project's own licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 18] = *b"MIT OR Apache-2.0\0";

/// Entry point. Frags: packets larger than one buffer (MTU 9000) come to it too.
#[xdp(frags)]
fn gradbox_redirect(ctx: XdpContext) -> u32 {
    let verdict = match examine(&ctx) {
        Ok(()) => redirect(&ctx),
        Err(verdict) => verdict,
    };
    count(verdict);
    action(verdict)
}

/// What the kernel is to do with a packet of this verdict.
#[inline(always)]
fn action(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Redirected => XDP_REDIRECT,
        Verdict::DropTruncated
        | Verdict::DropBadMagic
        | Verdict::DropBadVersion
        | Verdict::DropStranger => XDP_DROP,
        Verdict::PassNotIp
        | Verdict::PassVlanStack
        | Verdict::PassTruncated
        | Verdict::PassFragment
        | Verdict::PassIpOptions
        | Verdict::PassNotUdp
        | Verdict::PassOtherPort
        | Verdict::PassNoSocket => XDP_PASS,
    }
}

/// `Ok` if this is a well-formed Gradbox packet from an allowed source.
#[inline(always)]
fn examine(ctx: &XdpContext) -> Result<(), Verdict> {
    let ethernet = View::<ETH_LEN>::at(ctx, 0).ok_or(Verdict::PassTruncated)?;
    match ethernet.be16::<ETH_TYPE>() {
        ETH_P_8021Q | ETH_P_8021AD => {
            let tag = View::<VLAN_LEN>::at(ctx, ETH_LEN).ok_or(Verdict::PassTruncated)?;
            match tag.be16::<VLAN_TYPE>() {
                ETH_P_8021Q | ETH_P_8021AD => Err(Verdict::PassVlanStack),
                ether_type => examine_ip(ctx, ether_type, ETH_LEN + VLAN_LEN),
            }
        }
        ether_type => examine_ip(ctx, ether_type, ETH_LEN),
    }
}

#[inline(always)]
fn examine_ip(ctx: &XdpContext, ether_type: u16, offset: usize) -> Result<(), Verdict> {
    match ether_type {
        ETH_P_IP => examine_ipv4(ctx, offset),
        ETH_P_IPV6 => examine_ipv6(ctx, offset),
        _ => Err(Verdict::PassNotIp),
    }
}

#[inline(always)]
fn examine_ipv4(ctx: &XdpContext, offset: usize) -> Result<(), Verdict> {
    let ip = View::<IPV4_LEN>::at(ctx, offset).ok_or(Verdict::PassTruncated)?;
    let first = ip.byte::<0>();
    if first >> 4 != 4 {
        return Err(Verdict::PassNotIp);
    }
    if ip.byte::<IPV4_PROTOCOL>() != IPPROTO_UDP {
        return Err(Verdict::PassNotUdp);
    }
    if ip.be16::<IPV4_FRAGMENT>() & IPV4_IS_FRAGMENT != 0 {
        return Err(Verdict::PassFragment);
    }
    if first != IPV4_PLAIN {
        return Err(Verdict::PassIpOptions);
    }
    examine_udp(ctx, offset + IPV4_LEN)?;
    // IPv4 as IPv6 is ::ffff:a.b.c.d (RFC 4291, section 2.5.5.2).
    examine_source([0, 0, 0xffff_u32.to_be(), ip.word::<IPV4_SOURCE>()])
}

#[inline(always)]
fn examine_ipv6(ctx: &XdpContext, offset: usize) -> Result<(), Verdict> {
    let ip = View::<IPV6_LEN>::at(ctx, offset).ok_or(Verdict::PassTruncated)?;
    if ip.byte::<0>() >> 4 != 6 {
        return Err(Verdict::PassNotIp);
    }
    match ip.byte::<IPV6_NEXT_HEADER>() {
        IPPROTO_UDP => {}
        IPPROTO_FRAGMENT => return Err(Verdict::PassFragment),
        IPPROTO_HOPOPTS | IPPROTO_ROUTING | IPPROTO_AH | IPPROTO_DSTOPTS => {
            return Err(Verdict::PassIpOptions);
        }
        _ => return Err(Verdict::PassNotUdp),
    }
    examine_udp(ctx, offset + IPV6_LEN)?;
    examine_source([
        ip.word::<IPV6_SOURCE>(),
        ip.word::<{ IPV6_SOURCE + 4 }>(),
        ip.word::<{ IPV6_SOURCE + 8 }>(),
        ip.word::<{ IPV6_SOURCE + 12 }>(),
    ])
}

/// Whose it is (`Pass`), then whether it is well-formed (`Drop`).
#[inline(always)]
fn examine_udp(ctx: &XdpContext, offset: usize) -> Result<(), Verdict> {
    let udp = View::<UDP_LEN>::at(ctx, offset).ok_or(Verdict::PassTruncated)?;
    // Wrapping makes one comparison of two: a port below the base becomes a large number.
    let shard = udp.be16::<UDP_DESTINATION>().wrapping_sub(PORT_BASE.load());
    if shard >= PORT_COUNT.load() {
        return Err(Verdict::PassOtherPort);
    }
    if usize::from(udp.be16::<UDP_LENGTH>()) < UDP_LEN + HEADER_LEN {
        return Err(Verdict::DropTruncated);
    }
    let header = View::<HEADER_LEN>::at(ctx, offset + UDP_LEN).ok_or(Verdict::DropTruncated)?;
    if u16::from_le_bytes(header.bytes::<GRADBOX_MAGIC, 2>()) != MAGIC {
        return Err(Verdict::DropBadMagic);
    }
    if header.byte::<GRADBOX_VERSION>() != VERSION {
        return Err(Verdict::DropBadVersion);
    }
    Ok(())
}

#[inline(always)]
fn examine_source(source: [u32; 4]) -> Result<(), Verdict> {
    // Only whether there is an entry counts; its value, which may be changing, is not read.
    match SOURCES.get_ptr(source) {
        Some(_) => Ok(()),
        None => Err(Verdict::DropStranger),
    }
}

#[inline(always)]
fn redirect(ctx: &XdpContext) -> Verdict {
    // The low two bits of the flags are the answer for a queue without a socket (since Linux 5.3,
    // `bpf_redirect_map` in bpf-helpers(7)); PASS lets the kernel's own UDP socket have it.
    match SOCKETS.redirect(ctx.rx_queue_index(), u64::from(XDP_PASS)) {
        Ok(_) => Verdict::Redirected,
        Err(_) => Verdict::PassNoSocket,
    }
}

#[inline(always)]
fn count(verdict: Verdict) {
    if let Some(counter) = COUNTERS.get_ptr_mut(verdict as u32) {
        // SAFETY: the verifier knows the entry to be 8 bytes of this CPU, which runs one
        // instance of the program at a time.
        unsafe { *counter = (*counter).wrapping_add(1) };
    }
}

/// The language asks for one; the verifier rejects every path that could come here.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
