//! Answers over loopback: what arrives, in which order, and what is refused.

use super::*;
use crate::dataplane::frame::ORIGIN;
use gradbox_protocol::envelope::{Link, write};
use std::time::Duration;

/// A sender on loopback, and memory for its packets.
struct Rig {
    umem: Umem,
    pool: Pool,
    sender: Sender,
    counters: Counters,
    refused: Vec<Packet>,
}

impl Rig {
    fn new() -> Self {
        let (umem, frames) = Umem::new(512, 2048).unwrap();
        let sender = Sender::of_answers(&["127.0.0.1:0".parse().unwrap()], "lo").unwrap();
        let (pool, counters) = (Pool::new(frames), Counters::default());
        Self { umem, pool, sender, counters, refused: Vec::new() }
    }

    fn address(&self) -> SocketAddr {
        self.sender.sockets()[0].1
    }

    /// An answer of `len` bytes, all of them `mark`.
    fn answer(
        &mut self,
        link: &Link,
        (from, to): (SocketAddr, SocketAddr),
        len: usize,
        mark: u8,
    ) -> Packet {
        let mut frame = self.pool.take().unwrap();
        let bytes = &mut self.umem.bytes_mut(&mut frame)[ORIGIN..];
        let at = write(bytes, link, from, to, len).unwrap().payload();
        bytes[at..at + len].fill(mark);
        Packet { frame, start: ORIGIN as u16, len: (at + len) as u16 }
    }

    fn transmit(&mut self, outbox: &mut Vec<Packet>, more: bool) {
        let frames = (&self.umem, &mut self.pool);
        self.sender.transmit(frames, outbox, &mut self.refused, more, &mut self.counters);
    }
}

fn receiver() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Length and mark of the next datagram.
fn next(socket: &UdpSocket, from: SocketAddr) -> (usize, u8) {
    let mut bytes = [0; 2048];
    let (len, sender) = socket.recv_from(&mut bytes).unwrap();
    assert_eq!(sender, from);
    assert!(bytes[..len].iter().all(|b| *b == bytes[0]));
    (len, bytes[0])
}

#[test]
fn each_receiver_gets_its_own_in_order() {
    let mut rig = Rig::new();
    let from = rig.address();
    let receivers = [receiver(), receiver(), receiver()];
    // Long and short ones by turns: a short one may end a message, and a long one must not follow.
    let len = |n: usize| if n % 5 == 3 { 40 } else { 1000 };
    let mut outbox = Vec::new();
    for n in 0..100 {
        for (_, to) in &receivers {
            outbox.push(rig.answer(&Link::default(), (from, *to), len(n), n as u8));
        }
    }
    let free = rig.pool.free();
    rig.transmit(&mut outbox, false);
    assert_eq!((outbox.len(), rig.refused.len(), rig.sender.waiting()), (0, 0, 0));
    assert_eq!(rig.pool.free(), free + 300);
    for (socket, _) in &receivers {
        for n in 0..100 {
            assert_eq!(next(socket, from), (len(n), n as u8));
        }
    }
    assert_eq!(rig.counters.get(Counter::TxLate), 0);
}

#[test]
fn what_would_look_otherwise_is_refused() {
    let mut rig = Rig::new();
    let (from, (_socket, to)) = (rig.address(), receiver());
    let mut other = from;
    other.set_port(from.port() ^ 1);
    let tagged = Link { vlan: Some(5), ..Link::default() };
    let v6 = ("[::1]:9100".parse().unwrap(), "[::1]:40000".parse().unwrap());
    let mut outbox = vec![
        rig.answer(&tagged, (from, to), 100, 1),
        rig.answer(&Link::default(), (other, to), 100, 1),
        rig.answer(&Link::default(), ("127.0.0.2:9100".parse().unwrap(), to), 100, 1),
        rig.answer(&Link::default(), v6, 100, 1),
    ];
    rig.transmit(&mut outbox, false);
    assert_eq!((outbox.len(), rig.refused.len(), rig.sender.waiting()), (0, 4, 0));
}

#[test]
fn answers_gather_while_packets_come_but_not_for_ever() {
    let mut rig = Rig::new();
    let (from, (socket, to)) = (rig.address(), receiver());
    let mut outbox = vec![rig.answer(&Link::default(), (from, to), 100, 7)];
    for _ in 1..LONGEST_HOLD {
        rig.transmit(&mut outbox, true);
        assert_eq!(rig.sender.waiting(), 1);
    }
    rig.transmit(&mut outbox, true);
    assert_eq!((rig.sender.waiting(), next(&socket, from)), (0, (100, 7)));
    for n in 0..GATHER {
        outbox.push(rig.answer(&Link::default(), (from, to), 100, n as u8));
    }
    rig.transmit(&mut outbox, true);
    assert_eq!((rig.sender.waiting(), outbox.len()), (0, 0));
}

#[test]
fn nothing_waits_in_its_sockets() {
    let rig = Rig::new();
    let (stranger, _) = receiver();
    for _ in 0..100 {
        stranger.send_to(&[0; 1000], rig.address()).unwrap();
    }
    // Loopback delivers before the send returns.
    let peeked = rig.sender.sockets()[0].0.peek(&mut [0; 1000]).unwrap_err();
    assert_eq!(peeked.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_address_of_nobody_and_an_interface_of_nobody_are_named() {
    let error = |address: &str, interface| {
        let refused = Sender::of_answers(&[address.parse().unwrap()], interface).err();
        refused.map(|e| e.to_string()).unwrap_or_default()
    };
    let text = error("192.0.2.1:9100", "lo");
    assert!(text.contains("192.0.2.1:9100") && text.contains("this machine's"), "{text}");
    let text = error("127.0.0.1:0", "nosuch");
    assert!(text.contains("127.0.0.1:0") && text.contains("nosuch"), "{text}");
}

#[test]
fn keys_put_one_receiver_together_in_order() {
    let ends: Vec<Endpoint> =
        (1..=16).map(|n| SocketAddr::from(([10, 0, 0, n], 40_000)).into()).collect();
    let to = |place: usize| ends[place % ends.len()];
    let mut keys: Vec<u64> = (0..CAPACITY).map(|place| key(to(place), false, place)).collect();
    keys.sort_unstable();
    for receiver in keys.chunks(CAPACITY / ends.len()) {
        let places: Vec<_> = receiver.iter().map(|k| (k & PLACE) as usize).collect();
        assert!(places.iter().all(|&p| to(p) == to(places[0])), "{places:?}");
        assert!(places.is_sorted(), "{places:?}");
    }
    assert!(key(to(0), true, 0) > keys[CAPACITY - 1]);
}
