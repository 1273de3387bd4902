//! Ethernet, at most one VLAN tag, IPv4 or IPv6, and UDP around a Gradbox packet; and the reply
//! that is made of the received packet by swapping its addresses ("reflect").

mod group;

use crate::HEADER_LEN;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use group::{GROUP_HOPS, group_mac};

/// Bytes of an Ethernet header without a tag (IEEE 802.3).
pub const ETHERNET_LEN: usize = 14;
/// Bytes of one VLAN tag (IEEE 802.1Q).
pub const VLAN_LEN: usize = 4;
/// Bytes of an IPv4 header without options (RFC 791).
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header (RFC 8200).
pub const IPV6_LEN: usize = 40;
/// Bytes of a UDP header (RFC 768).
pub const UDP_LEN: usize = 8;
/// Bytes before the Gradbox header in the smallest envelope: Ethernet, IPv4, UDP.
pub const SHORTEST: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN;
/// Bytes before the Gradbox header in the largest envelope: Ethernet, VLAN, IPv6, UDP.
pub const LONGEST: usize = ETHERNET_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN;

/// EtherTypes (IANA "IEEE 802 Numbers").
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
/// Protocol number of UDP (IANA "Protocol Numbers").
const UDP: u8 = 17;
/// Time to live of what we send (IANA "IP parameters": recommended 64).
const HOPS: u8 = 64;
/// ECN field (RFC 3168): capable, and congestion experienced.
const ECT0: u8 = 0b10;
const CE: u8 = 0b11;

/// One end of a flow: the address (IPv4 as IPv4-mapped IPv6) and the UDP port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address in network order, IPv4 as `::ffff:a.b.c.d`.
    pub ip: u128,
    /// UDP port.
    pub port: u16,
}

/// `::ffff:0:0`, to which an IPv4 address is added (RFC 4291, 2.5.5.2).
const MAPPED: u128 = 0xffff_0000_0000;

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => MAPPED | u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        };
        Self { ip, port: address.port() }
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(end: Endpoint) -> Self {
        Self::new(Ipv6Addr::from(end.ip).to_canonical(), end.port)
    }
}

/// Where the parts of a packet lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Offset of the IP header.
    ip: u8,
    /// Offset of the UDP payload, which is the Gradbox header.
    payload: u8,
    /// IPv6 rather than IPv4.
    v6: bool,
    /// Bytes of the UDP payload.
    len: u16,
}

/// Reads a big-endian 16-bit field; the caller has checked the bounds.
#[inline]
const fn be16(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

impl Envelope {
    /// Finds IP and UDP in an Ethernet `packet`. `None` where it is not UDP over IP with at most
    /// one VLAN tag, has IPv4 options or IPv6 extension headers, is a fragment, or is shorter
    /// than its headers say. Bytes behind the UDP datagram (Ethernet padding) are allowed.
    #[must_use]
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        // Arrays rather than slices: their length is checked once.
        let link = packet.first_chunk::<{ ETHERNET_LEN + VLAN_LEN }>()?;
        let (ethertype, ip) = match be16(link, 12) {
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => (be16(link, 16), ETHERNET_LEN + VLAN_LEN),
            plain => (plain, ETHERNET_LEN),
        };
        match ethertype {
            ETHERTYPE_IPV4 => {
                let h = packet.get(ip..)?.first_chunk::<{ IPV4_LEN + UDP_LEN }>()?;
                // More-fragments flag or a fragment offset.
                let fragment = be16(h, 6) & 0x3fff != 0;
                let (total, udp) = (usize::from(be16(h, 2)), usize::from(be16(h, IPV4_LEN + 4)));
                let fits = total == IPV4_LEN + udp && udp >= UDP_LEN && ip + total <= packet.len();
                (h[0] == 0x45 && h[9] == UDP && !fragment && fits).then(|| Self {
                    ip: ip as u8,
                    payload: (ip + IPV4_LEN + UDP_LEN) as u8,
                    v6: false,
                    len: (udp - UDP_LEN) as u16,
                })
            }
            ETHERTYPE_IPV6 => {
                let h = packet.get(ip..)?.first_chunk::<{ IPV6_LEN + UDP_LEN }>()?;
                let (total, udp) = (usize::from(be16(h, 4)), usize::from(be16(h, IPV6_LEN + 4)));
                let fits = total == udp && udp >= UDP_LEN && ip + IPV6_LEN + total <= packet.len();
                (h[0] >> 4 == 6 && h[6] == UDP && fits).then(|| Self {
                    ip: ip as u8,
                    payload: (ip + IPV6_LEN + UDP_LEN) as u8,
                    v6: true,
                    len: (udp - UDP_LEN) as u16,
                })
            }
            _ => None,
        }
    }

    /// Offset of the UDP payload, which is the Gradbox header, from the start of the packet.
    #[must_use]
    #[inline]
    pub const fn payload(&self) -> usize {
        self.payload as usize
    }

    /// Bytes of the UDP payload.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the UDP payload is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The shape in two bits: 1 for a VLAN tag, 2 for IPv6. With it and the length,
    /// [`Envelope::of_shape`] makes the envelope again without a look at the packet.
    #[must_use]
    #[inline]
    pub const fn shape(&self) -> u8 {
        (self.ip as usize == ETHERNET_LEN + VLAN_LEN) as u8 | (self.v6 as u8) << 1
    }

    /// The envelope of a [`shape`](Self::shape) around a UDP payload of `len` bytes.
    #[must_use]
    #[inline]
    pub const fn of_shape(shape: u8, len: u16) -> Self {
        let ip = if shape & 1 != 0 { ETHERNET_LEN + VLAN_LEN } else { ETHERNET_LEN };
        let v6 = shape & 2 != 0;
        let payload = ip + if v6 { IPV6_LEN } else { IPV4_LEN } + UDP_LEN;
        Self { ip: ip as u8, payload: payload as u8, v6, len }
    }

    /// Whether there is a VLAN tag.
    #[must_use]
    pub const fn has_vlan(&self) -> bool {
        self.shape() & 1 != 0
    }

    /// Whether this is IPv6.
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        self.v6
    }

    /// The sender of the `packet` that this envelope was found in.
    ///
    /// # Panics
    /// Where `packet` is shorter than the one that this envelope was found in.
    #[must_use]
    #[inline]
    pub fn source(&self, packet: &[u8]) -> Endpoint {
        let (ip, udp) = (self.ip as usize, self.payload() - UDP_LEN);
        self.end(packet, if self.v6 { ip + 8 } else { ip + 12 }, udp)
    }

    /// The receiver of the `packet` that this envelope was found in.
    ///
    /// # Panics
    /// Where `packet` is shorter than the one that this envelope was found in.
    #[must_use]
    pub fn destination(&self, packet: &[u8]) -> Endpoint {
        let (ip, udp) = (self.ip as usize, self.payload() - UDP_LEN);
        self.end(packet, if self.v6 { ip + 24 } else { ip + 16 }, udp + 2)
    }

    /// The address at offset `ip` with the port at offset `port`.
    #[inline]
    fn end(&self, packet: &[u8], ip: usize, port: usize) -> Endpoint {
        let ip = if self.v6 {
            let v6 = packet[ip..ip + 16].first_chunk().copied().unwrap_or_default();
            u128::from_be_bytes(v6)
        } else {
            let v4 = packet[ip..ip + 4].first_chunk().copied().unwrap_or_default();
            MAPPED | u128::from(u32::from_be_bytes(v4))
        };
        Endpoint { ip, port: be16(packet, port) }
    }

    /// Whether a router marked the packet "congestion experienced" (RFC 3168).
    ///
    /// # Panics
    /// Where `packet` is shorter than the one that this envelope was found in.
    #[must_use]
    #[inline]
    pub fn congestion(&self, packet: &[u8]) -> bool {
        let tos = packet[self.ip as usize + 1];
        let ecn = if self.v6 { tos >> 4 } else { tos };
        ecn & CE == CE
    }

    /// Marks the packet "congestion experienced", as a router would. IPv4's header checksum is
    /// made anew.
    ///
    /// # Panics
    /// Where `packet` is shorter than the one that this envelope was found in.
    pub fn mark_congestion(&self, packet: &mut [u8]) {
        let ip = self.ip as usize;
        if self.v6 {
            packet[ip + 1] |= CE << 4;
        } else {
            let h = &mut packet[ip..ip + IPV4_LEN];
            h[1] |= CE;
            fill_ipv4_checksum(h);
        }
    }

    /// Turns the envelope of a received packet into that of the reply, in place: addresses and
    /// ports swapped, lengths for a UDP payload of `len` bytes, hops and ECN as new.
    ///
    /// `body_sum` is the [`ones_complement_sum`] of what follows the Gradbox header, where the
    /// caller has it already. Over IPv4 the UDP checksum is then 0 (none) without it and full
    /// with it; over IPv6, which forbids 0, it is always full.
    ///
    /// # Panics
    /// Where `packet` is shorter than envelope, Gradbox header and `len` require.
    #[inline]
    pub fn reply(&self, packet: &mut [u8], len: usize, body_sum: Option<u16>) {
        let (ip, udp) = (self.ip as usize, self.payload() - UDP_LEN);
        swap::<6>(&mut packet[..12]);
        swap::<2>(&mut packet[udp..udp + 4]);
        let udp_len = ((UDP_LEN + len) as u16).to_be_bytes();
        packet[udp + 4..udp + 6].copy_from_slice(&udp_len);
        packet[udp + 6..udp + 8].fill(0);
        if self.v6 {
            swap::<16>(&mut packet[ip + 8..ip + 40]);
            packet[ip + 4..ip + 6].copy_from_slice(&udp_len);
            packet[ip + 7] = HOPS;
            if self.congestion(packet) {
                packet[ip + 1] = (packet[ip + 1] & !0x30) | (ECT0 << 4);
            }
        } else {
            let h: &mut [u8] = &mut packet[ip..ip + IPV4_LEN];
            swap::<4>(&mut h[12..20]);
            let total = ((IPV4_LEN + UDP_LEN + len) as u16).to_be_bytes();
            let congestion = h[1] & CE == CE;
            // Swapping leaves the checksum valid; only a changed field makes it anew.
            if h[2..4] != total || h[8] != HOPS || congestion {
                h[2..4].copy_from_slice(&total);
                h[8] = HOPS;
                if congestion {
                    h[1] = (h[1] & !CE) | ECT0;
                }
                fill_ipv4_checksum(h);
            }
        }
        if self.v6 || body_sum.is_some() {
            self.fill_udp_checksum(packet, len, body_sum);
        }
    }

    /// Writes the UDP checksum over pseudo-header, UDP header and `len` bytes of payload.
    fn fill_udp_checksum(&self, packet: &mut [u8], len: usize, body_sum: Option<u16>) {
        let (ip, payload) = (self.ip as usize, self.payload());
        let addresses = if self.v6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
        let head = HEADER_LEN.min(len);
        let body =
            body_sum.unwrap_or_else(|| ones_complement_sum(&packet[payload + head..payload + len]));
        let sum = u64::from(UDP)
            + (UDP_LEN + len) as u64
            + u64::from(ones_complement_sum(&packet[addresses]))
            + u64::from(ones_complement_sum(&packet[payload - UDP_LEN..payload + head]))
            + u64::from(body);
        // RFC 768: a computed 0 is sent as all ones.
        let check = match !fold(sum) {
            0 => 0xffff,
            check => check,
        };
        packet[payload - 2..payload].copy_from_slice(&check.to_be_bytes());
    }
}

/// Swaps the two halves of `2 * N` bytes.
#[inline]
fn swap<const N: usize>(both: &mut [u8]) {
    let (a, b) = both.split_at_mut(N);
    a.swap_with_slice(b);
}

/// Folds carries into 16 bits.
const fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The Internet checksum's sum (RFC 1071), not yet inverted, of bytes that start at an even
/// offset of the whole.
#[must_use]
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    fold(sum + u64::from(u32::from_be_bytes(last)))
}

/// The link layer of a packet that is made from nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// MAC address of the receiver.
    pub destination: [u8; 6],
    /// MAC address of the sender.
    pub source: [u8; 6],
    /// VLAN id and priority of an 802.1Q tag, where there is one.
    pub vlan: Option<u16>,
}

/// Writes Ethernet, IP and UDP headers for a UDP payload of `len` bytes at the start of `packet`
/// and returns the envelope: its [`Envelope::payload`] is where the payload goes. The UDP
/// checksum is 0 over IPv4; over IPv6 the caller sends it as it is, or completes it with
/// [`Envelope::reply`]. `None` where the addresses are of two families or `packet` is too short.
#[must_use]
pub fn write(
    packet: &mut [u8],
    link: &Link,
    source: SocketAddr,
    destination: SocketAddr,
    len: usize,
) -> Option<Envelope> {
    let ip = if link.vlan.is_some() { ETHERNET_LEN + VLAN_LEN } else { ETHERNET_LEN };
    let v6 = source.is_ipv6();
    let payload = ip + if v6 { IPV6_LEN } else { IPV4_LEN } + UDP_LEN;
    if packet.len() < payload + len || len > 0xffff - IPV6_LEN - UDP_LEN {
        return None;
    }
    packet[..6].copy_from_slice(&link.destination);
    packet[6..12].copy_from_slice(&link.source);
    if let Some(tag) = link.vlan {
        packet[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
        packet[14..16].copy_from_slice(&tag.to_be_bytes());
    }
    let udp_len = ((UDP_LEN + len) as u16).to_be_bytes();
    let ethertype = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            write_ipv4(&mut packet[ip..ip + IPV4_LEN], from, to, len);
            ETHERTYPE_IPV4
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let h = &mut packet[ip..ip + IPV6_LEN];
            h[..4].copy_from_slice(&[0x60, ECT0 << 4, 0, 0]);
            h[4..6].copy_from_slice(&udp_len);
            h[6] = UDP;
            h[7] = HOPS;
            h[8..24].copy_from_slice(&from.octets());
            h[24..40].copy_from_slice(&to.octets());
            ETHERTYPE_IPV6
        }
        _ => return None,
    };
    packet[ip - 2..ip].copy_from_slice(&ethertype.to_be_bytes());
    let udp = &mut packet[payload - UDP_LEN..payload];
    udp[..2].copy_from_slice(&source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&destination.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len);
    udp[6..8].fill(0);
    Some(Envelope { ip: ip as u8, payload: payload as u8, v6, len: len as u16 })
}

/// Fills a 20-byte IPv4 header for a UDP payload of `len` bytes.
fn write_ipv4(h: &mut [u8], from: Ipv4Addr, to: Ipv4Addr, len: usize) {
    let total = ((IPV4_LEN + UDP_LEN + len) as u16).to_be_bytes();
    h[0] = 0x45;
    h[1] = ECT0;
    h[2..4].copy_from_slice(&total);
    // No identification, don't fragment.
    h[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
    h[8] = HOPS;
    h[9] = UDP;
    h[12..16].copy_from_slice(&from.octets());
    h[16..20].copy_from_slice(&to.octets());
    fill_ipv4_checksum(h);
}

/// Writes the checksum of a 20-byte IPv4 header.
fn fill_ipv4_checksum(h: &mut [u8]) {
    h[10..12].fill(0);
    let sum = !ones_complement_sum(h);
    h[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
