//! Bounds-checked reads of the packet, and where each header field stands.
#![expect(missing_docs, reason = "constants of one kind share a comment")]

use aya_ebpf::programs::XdpContext;

/// Ethernet header without tags (IEEE 802.3; `ETH_HLEN`, linux/if_ether.h).
pub const ETH_LEN: usize = 14;
/// Offset of the EtherType in it.
pub const ETH_TYPE: usize = 12;
/// One VLAN tag; its last two bytes are the inner EtherType (`VLAN_HLEN`, linux/if_vlan.h).
pub const VLAN_LEN: usize = 4;
/// Offset of the inner EtherType in a tag.
pub const VLAN_TYPE: usize = 2;

/// EtherTypes (linux/if_ether.h): IPv4, IPv6, and both VLAN tags.
pub const ETH_P_IP: u16 = 0x0800;
pub const ETH_P_IPV6: u16 = 0x86dd;
pub const ETH_P_8021Q: u16 = 0x8100;
pub const ETH_P_8021AD: u16 = 0x88a8;

/// IPv4 header without options (RFC 791, section 3.1), and fields in it.
pub const IPV4_LEN: usize = 20;
pub const IPV4_FRAGMENT: usize = 6;
pub const IPV4_PROTOCOL: usize = 9;
pub const IPV4_SOURCE: usize = 12;
pub const IPV4_DESTINATION: usize = 16;
/// First byte of a header without options: version 4, five 32-bit words.
pub const IPV4_PLAIN: u8 = 0x45;
/// The more-fragments bit and the fragment offset; the don't-fragment bit is not in it.
pub const IPV4_IS_FRAGMENT: u16 = 0x3fff;

/// IPv6 header (RFC 8200, section 3), and fields in it.
pub const IPV6_LEN: usize = 40;
pub const IPV6_NEXT_HEADER: usize = 6;
pub const IPV6_SOURCE: usize = 8;

/// Protocol numbers (linux/in.h, linux/in6.h; the registry of RFC 5237).
pub const IPPROTO_HOPOPTS: u8 = 0;
pub const IPPROTO_UDP: u8 = 17;
pub const IPPROTO_ROUTING: u8 = 43;
pub const IPPROTO_FRAGMENT: u8 = 44;
pub const IPPROTO_AH: u8 = 51;
pub const IPPROTO_DSTOPTS: u8 = 60;

/// UDP header (RFC 768), and fields in it.
pub const UDP_LEN: usize = 8;
pub const UDP_DESTINATION: usize = 2;
pub const UDP_LENGTH: usize = 4;
pub const UDP_CHECKSUM: usize = 6;

/// Fields of the Gradbox header (`gradbox_protocol::Header`).
pub const GRADBOX_MAGIC: usize = 0;
pub const GRADBOX_VERSION: usize = 2;
pub const GRADBOX_KIND: usize = 3;
pub const GRADBOX_JOB: usize = 4;
pub const GRADBOX_RANK: usize = 6;
pub const GRADBOX_FLAGS: usize = 7;
pub const GRADBOX_COOKIE: usize = 8;
pub const GRADBOX_ROUND: usize = 12;
pub const GRADBOX_CHUNK: usize = 16;
pub const GRADBOX_TENSOR: usize = 20;
pub const GRADBOX_LENGTH: usize = 22;

/// Kinds of packets (`gradbox_protocol::Kind`), and the flag of a PUSH sent before
/// (`gradbox_protocol::Flags`).
pub const KIND_PUSH: u8 = 1;
pub const KIND_RESULT: u8 = 2;
pub const KIND_STATUS: u8 = 4;
pub const KIND_ERROR: u8 = 5;
pub const FLAG_RESENT: u8 = 1 << 1;

/// Where UDP and the Gradbox header begin without VLAN tag, over IPv4: the one envelope that the
/// programs of the bench know.
pub const FLAT_UDP: usize = ETH_LEN + IPV4_LEN;
pub const GRADBOX: usize = FLAT_UDP + UDP_LEN;

/// A header that lies whole within the packet.
///
/// `N` is its length, so the verifier's one comparison covers every later read from it.
#[derive(Clone, Copy)]
pub struct View<const N: usize>(*const [u8; N]);

impl<const N: usize> View<N> {
    /// The `N` bytes at `offset` of the packet, or `None` if it ends before them.
    ///
    /// Of a packet in several buffers only the first one is visible; drivers put the headers there.
    #[inline(always)]
    pub fn at(ctx: &XdpContext, offset: usize) -> Option<Self> {
        Self::within(ctx.data() + offset, ctx.data_end())
    }

    /// The `N` bytes at address `start`, or `None` if the packet ends (`end`) before them.
    #[inline(always)]
    pub fn within(start: usize, end: usize) -> Option<Self> {
        if start + N > end {
            return None;
        }
        Some(Self(start as *const [u8; N]))
    }

    /// The `LEN` bytes at `OFFSET` of this header.
    #[inline(always)]
    pub fn bytes<const OFFSET: usize, const LEN: usize>(self) -> [u8; LEN] {
        const { assert!(OFFSET + LEN <= N) }
        // SAFETY: `at` found N bytes in the packet, OFFSET + LEN is within N, and a byte array
        // has no alignment.
        unsafe { self.0.cast::<u8>().add(OFFSET).cast::<[u8; LEN]>().read() }
    }

    /// The byte at `OFFSET`.
    #[inline(always)]
    pub fn byte<const OFFSET: usize>(self) -> u8 {
        let [byte] = self.bytes::<OFFSET, 1>();
        byte
    }

    /// The 16-bit number at `OFFSET`, in network byte order.
    #[inline(always)]
    pub fn be16<const OFFSET: usize>(self) -> u16 {
        u16::from_be_bytes(self.bytes::<OFFSET, 2>())
    }

    /// The four bytes at `OFFSET`, in their order in memory.
    #[inline(always)]
    pub fn word<const OFFSET: usize>(self) -> u32 {
        u32::from_ne_bytes(self.bytes::<OFFSET, 4>())
    }

    /// The 16-bit number at `OFFSET`, in little-endian byte order.
    #[inline(always)]
    pub fn le16<const OFFSET: usize>(self) -> u16 {
        u16::from_le_bytes(self.bytes::<OFFSET, 2>())
    }

    /// Writes `value` at `OFFSET`, as it lies in memory.
    #[inline(always)]
    pub fn set<const OFFSET: usize, T: Copy>(self, value: T) {
        const { assert!(OFFSET + size_of::<T>() <= N) }
        let start = self.0.cast_mut().cast::<u8>();
        // SAFETY: `at` found N bytes in the packet, which a program may write to, and what is
        // written ends within N.
        unsafe { start.add(OFFSET).cast::<T>().write_unaligned(value) };
    }

    /// Where the header begins.
    #[inline(always)]
    pub fn address(self) -> usize {
        self.0 as usize
    }
}
