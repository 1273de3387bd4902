//! The reply that is for a multicast group: made, like any other, of a packet that was received.

use super::{CE, ECT0, Envelope, IPV4_LEN, UDP_LEN, fill_ipv4_checksum};
use core::net::{IpAddr, SocketAddr};

/// Hops of what is sent to a group: it does not leave the link, so that a network without multicast
/// routing is not asked for any (RFC 1112, 6.1).
pub const GROUP_HOPS: u8 = 1;

/// The MAC address that packets to `group` go to: `01:00:5e` and the lower 23 bits of an IPv4
/// address (RFC 1112, 6.4), `33:33` and the lower 32 bits of an IPv6 address (RFC 2464, 7).
#[must_use]
#[inline]
pub const fn group_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(ip) => {
            let [a, b, c, d] = (ip.to_bits() as u32).to_be_bytes();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

impl Envelope {
    /// Turns the envelope of a received packet into that of a reply to `group`, in place: from
    /// where the packet went to, with lengths for a UDP payload of `len` bytes, [`GROUP_HOPS`],
    /// and ECN as new. `body_sum` is as in [`Envelope::reply`].
    ///
    /// A group of the other address family makes a packet that nobody takes: its Ethernet address is
    /// the group's, its IP address the one that the packet went to.
    ///
    /// # Panics
    /// Where `packet` is shorter than envelope and payload.
    #[inline]
    pub fn reply_to_group(
        &self,
        packet: &mut [u8],
        group: SocketAddr,
        len: usize,
        body_sum: Option<u16>,
    ) {
        let (ip, udp) = (self.ip as usize, self.payload() - UDP_LEN);
        packet.copy_within(0..6, 6);
        packet[..6].copy_from_slice(&group_mac(group.ip()));
        let udp_len = ((UDP_LEN + len) as u16).to_be_bytes();
        packet.copy_within(udp + 2..udp + 4, udp);
        packet[udp + 2..udp + 4].copy_from_slice(&group.port().to_be_bytes());
        packet[udp + 4..udp + 6].copy_from_slice(&udp_len);
        packet[udp + 6..udp + 8].fill(0);
        let congestion = self.congestion(packet);
        if self.v6 {
            packet.copy_within(ip + 24..ip + 40, ip + 8);
            if let IpAddr::V6(group) = group.ip() {
                packet[ip + 24..ip + 40].copy_from_slice(&group.octets());
            }
            packet[ip + 4..ip + 6].copy_from_slice(&udp_len);
            packet[ip + 7] = GROUP_HOPS;
            if congestion {
                packet[ip + 1] = (packet[ip + 1] & !(CE << 4)) | (ECT0 << 4);
            }
        } else {
            let h = &mut packet[ip..ip + IPV4_LEN];
            h.copy_within(16..20, 12);
            if let IpAddr::V4(group) = group.ip() {
                h[16..20].copy_from_slice(&group.octets());
            }
            h[2..4].copy_from_slice(&((IPV4_LEN + UDP_LEN + len) as u16).to_be_bytes());
            h[8] = GROUP_HOPS;
            if congestion {
                h[1] = (h[1] & !CE) | ECT0;
            }
            fill_ipv4_checksum(h);
        }
        if self.v6 || body_sum.is_some() {
            self.fill_udp_checksum(packet, len, body_sum);
        }
    }
}
