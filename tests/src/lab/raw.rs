//! Any Ethernet frame at all: the box's own AF_XDP port, used by somebody else.

use super::Lab;
use super::process::until;
use crate::packets::Sender;
use gradbox::dataplane::counters::Counters;
use gradbox::dataplane::frame::{ORIGIN, Packet};
use gradbox::dataplane::pool::Pool;
use gradbox::dataplane::port::Port;
use gradbox::xdp::program::{self, Mode, Program};
use gradbox::xdp::socket::{Settings, Wanted, XdpPort};
use gradbox_protocol::envelope::Link;
use std::net::{IpAddr, SocketAddr};

/// Frames under way at once: what a queue of the box takes beside its workers' packets.
const BATCH: usize = 32;

/// A sender on host `x`.
pub struct RawSender {
    port: XdpPort,
    pool: Pool,
    link: Link,
    /// Redirects to the port what [`RawSender::listen`] asked for.
    program: Option<Program>,
}

impl RawSender {
    /// Binds to the interface of `x`.
    ///
    /// # Panics
    /// Where that is not possible.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let settings = Settings {
            interface: "eth0".to_owned(),
            queue: 0,
            wanted: Wanted::Copy,
            frames: 256,
            frame_bytes: 2048,
            rx: 64,
            tx: 64,
            fill: 64,
            completion: 64,
            huge_pages: false,
        };
        let (port, pool) = lab.within("x", || XdpPort::bind(&settings).expect("a socket"));
        let link = Link {
            destination: mac(lab, "box", "box0"),
            source: mac(lab, "x", "eth0"),
            vlan: None,
        };
        Self { port, pool, link, program: None }
    }

    /// Envelopes of packets to the box that claim to come from `from`.
    ///
    /// # Panics
    /// Never: the address is well-formed.
    #[must_use]
    pub fn envelope(&self, from: SocketAddr) -> Sender {
        Sender { link: self.link, from, to: "10.77.0.1:9100".parse().expect("well-formed") }
    }

    /// A frame of another protocol to the box.
    #[must_use]
    pub fn frame(&self, ethertype: u16, body: &[u8]) -> Vec<u8> {
        let Link { destination, source, .. } = self.link;
        [&destination[..], &source, &ethertype.to_be_bytes(), body].concat()
    }

    /// Takes from now on what `from` sends to UDP port `to` of `x`.
    ///
    /// # Panics
    /// Where no XDP program can be attached.
    pub fn listen(&mut self, lab: &Lab, from: IpAddr, to: u16) {
        let settings = program::Settings { port_base: to, port_count: 1, mode: Mode::Driver };
        let program = lab.within("x", || Program::load("eth0", &settings));
        let mut program = program.expect("an XDP program");
        program.allow(from).expect("an allowed source");
        program.set_socket(0, self.port.socket()).expect("a socket for queue 0");
        self.program = Some(program);
    }

    /// Frames that have come.
    pub fn received(&mut self) -> Vec<Vec<u8>> {
        let (mut inbox, mut counters) = (Vec::new(), Counters::default());
        self.port.receive(&mut self.pool, &mut inbox, &mut counters);
        let bytes = inbox.iter().map(|p| self.port.umem().packet(p).to_vec()).collect();
        for packet in inbox {
            self.pool.give(packet.frame);
        }
        self.port.settle(&mut self.pool, &mut counters);
        bytes
    }

    /// Sends frames.
    ///
    /// # Panics
    /// Where the kernel does not take them.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let mut counters = Counters::default();
        for batch in frames.chunks(BATCH) {
            let mut outbox = Vec::new();
            for bytes in batch {
                let mut frame = self.pool.take().expect("a free frame");
                self.port.umem().bytes_mut(&mut frame)[ORIGIN..][..bytes.len()]
                    .copy_from_slice(bytes);
                outbox.push(Packet { frame, start: ORIGIN as u16, len: bytes.len() as u16 });
            }
            let sent = until(|| {
                self.port.transmit(&mut self.pool, &mut outbox, &mut counters);
                self.port.settle(&mut self.pool, &mut counters);
                outbox.is_empty() && self.port.lent().tx == 0
            });
            assert!(sent, "frames that are never sent");
        }
    }
}

/// MAC address of an interface.
fn mac(lab: &Lab, host: &str, interface: &str) -> [u8; 6] {
    let text = lab.output(host, "cat", &[&format!("/sys/class/net/{interface}/address")]);
    let bytes: Vec<_> =
        text.trim().split(':').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
    bytes.try_into().expect("six bytes")
}
