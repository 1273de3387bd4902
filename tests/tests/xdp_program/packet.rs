//! Packets for the XDP program, byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Sources of the good packets.
pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));

/// Lengths of headers.
pub(crate) const ETHERNET: usize = 14;
pub(crate) const TAG: usize = 4;
pub(crate) const UDP: usize = 8;
pub(crate) const HEADER: usize = 32;

/// A packet in the making; `..Packet::new(V4)` is a good one.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) tags: Vec<u16>,
    pub(crate) ether_type: u16,
    pub(crate) protocol: u8,
    /// Version and header length of IPv4, version and class of IPv6.
    pub(crate) first: u8,
    /// Flags and offset; IPv4 alone.
    pub(crate) fragment: u16,
    pub(crate) port: u16,
    pub(crate) udp_length: Option<u16>,
    pub(crate) magic: [u8; 2],
    pub(crate) version: u8,
    pub(crate) payload: usize,
}

impl Packet {
    pub(crate) fn new(source: IpAddr, tags: &[u16]) -> Self {
        Self {
            source,
            tags: tags.to_vec(),
            ether_type: if source.is_ipv4() { 0x0800 } else { 0x86dd },
            protocol: 17,
            first: if source.is_ipv4() { 0x45 } else { 0x60 },
            fragment: 0x4000,
            port: 7001,
            udp_length: None,
            magic: *b"GB",
            version: 1,
            payload: 64,
        }
    }

    pub(crate) fn udp_offset(&self) -> usize {
        ETHERNET + self.tags.len() * TAG + if self.source.is_ipv4() { 20 } else { 40 }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let udp_length = (UDP + HEADER + self.payload) as u16;
        let mut out = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for tag in &self.tags {
            out.extend(tag.to_be_bytes());
            out.extend([0, 5]);
        }
        out.extend(self.ether_type.to_be_bytes());
        match self.source {
            IpAddr::V4(source) => {
                out.extend([self.first, 0]);
                out.extend((20 + udp_length).to_be_bytes());
                out.extend([0, 0]);
                out.extend(self.fragment.to_be_bytes());
                out.extend([64, self.protocol, 0, 0]);
                out.extend(source.octets());
                out.extend([10, 77, 0, 2]);
            }
            IpAddr::V6(source) => {
                out.extend([self.first, 0, 0, 0]);
                out.extend(udp_length.to_be_bytes());
                out.extend([self.protocol, 64]);
                out.extend(source.octets());
                out.extend(Ipv6Addr::LOCALHOST.octets());
            }
        }
        out.extend([0x30, 0x39]);
        out.extend(self.port.to_be_bytes());
        out.extend(self.udp_length.unwrap_or(udp_length).to_be_bytes());
        out.extend([0, 0]);
        out.extend(self.gradbox());
        out
    }

    /// What UDP carries.
    pub(crate) fn gradbox(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.push(self.version);
        out.resize(HEADER + self.payload, 0);
        out
    }
}

/// Every shape of a good packet: both families, without a tag and with one of either kind.
pub(crate) fn shapes() -> impl Iterator<Item = Packet> {
    let tags: [&[u16]; 3] = [&[], &[0x8100], &[0x88a8]];
    [V4, V6].into_iter().flat_map(move |source| tags.map(|tags| Packet::new(source, tags)))
}
