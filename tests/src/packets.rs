//! Packets as workers send them.

use gradbox_protocol::envelope::{self, Envelope, LONGEST, Link};
use gradbox_protocol::{Header, Kind};
use std::net::SocketAddr;
use zerocopy::IntoBytes;

/// Who sends and how: the envelope of one worker's packets.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// MAC addresses and VLAN.
    pub link: Link,
    /// The worker.
    pub from: SocketAddr,
    /// The box, with the port of shard 0.
    pub to: SocketAddr,
}

impl Sender {
    /// Worker `rank` with an address of its own, over IPv4 or IPv6, with a VLAN tag or without.
    ///
    /// # Panics
    /// Never: the addresses are well-formed.
    #[must_use]
    pub fn new(rank: u8, v6: bool, vlan: bool) -> Self {
        let (from, to) = if v6 {
            (format!("[fd00::{:x}]:40000", u16::from(rank) + 16), "[fd00::1]:9100".to_owned())
        } else {
            (format!("10.0.0.{}:40000", u16::from(rank) + 16), "10.0.0.1:9100".to_owned())
        };
        Self {
            link: Link {
                destination: [2, 0, 0, 0, 0, 1],
                source: [2, 0, 0, 0, 1, rank],
                vlan: vlan.then_some(7),
            },
            from: from.parse().expect("well-formed"),
            to: to.parse().expect("well-formed"),
        }
    }

    /// A whole packet to `shard`: envelope, header (whose length field is set here), body.
    ///
    /// # Panics
    /// Where `body` is longer than a packet.
    #[must_use]
    pub fn packet(&self, shard: u16, mut header: Header, body: &[u8]) -> Vec<u8> {
        header.length = (body.len() as u16).into();
        self.datagram(shard, &[header.as_bytes(), body].concat())
    }

    /// Anything at all as a UDP datagram to `shard`.
    ///
    /// # Panics
    /// Where it is longer than a packet.
    #[must_use]
    pub fn datagram(&self, shard: u16, datagram: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; LONGEST + datagram.len()];
        let mut to = self.to;
        to.set_port(to.port() + shard);
        let envelope =
            envelope::write(&mut bytes, &self.link, self.from, to, datagram.len()).expect("fits");
        let at = envelope.payload();
        bytes.truncate(at + datagram.len());
        bytes[at..].copy_from_slice(datagram);
        bytes
    }
}

/// Takes a packet of the box apart: to whom it goes, its header and its body. `None` where it is
/// not a Gradbox packet.
#[must_use]
pub fn open(packet: &[u8]) -> Option<(SocketAddr, Header, Vec<u8>)> {
    let envelope = Envelope::parse(packet)?;
    let datagram = &packet[envelope.payload()..envelope.payload() + envelope.len()];
    let (header, body) = Header::parse(datagram)?;
    Some((envelope.destination(packet).into(), *header, body.to_vec()))
}

/// A header of `kind` for a rank of a job.
#[must_use]
pub fn header(kind: Kind, job: u16, rank: u8, cookie: u32) -> Header {
    let mut header = Header::new(kind);
    header.job = job.into();
    header.rank = rank;
    header.cookie = cookie.into();
    header
}
