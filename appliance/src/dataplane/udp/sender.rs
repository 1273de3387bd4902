//! Answers by ordinary sockets: the kernel copies them, those to one worker many at a time.
//!
//! A message of many segments costs the kernel little more than a packet does, so answers of a few
//! steps gather while packets keep coming.

use super::messages::Messages;
use super::{UdpError, group, options};
use crate::dataplane::counters::{Counter, Counters};
use crate::dataplane::frame::Packet;
use crate::dataplane::pool::Pool;
use crate::dataplane::umem::Umem;
use gradbox_protocol::envelope::{Endpoint, Envelope};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Answers that wait for the sockets at most.
pub const CAPACITY: usize = 1024;

/// Answers that are sent even if more packets are there: enough for messages of 16 and more
/// segments to each of 16 workers.
const GATHER: usize = 256;

/// Steps that an answer waits at the longest for others to go with it.
const LONGEST_HOLD: u32 = 8;

/// Receive and send buffer that is asked for; the kernel may give less.
const BUFFER: usize = 16 << 20;

/// Bits of a key that are the place in the queue.
const PLACE: u64 = CAPACITY as u64 - 1;
const _: () = assert!(CAPACITY.is_power_of_two());

/// The bit of a key that stands for IPv6: all of one family go by one socket.
const V6: u64 = 1 << 63;

/// An answer that waits.
struct Queued {
    packet: Packet,
    to: Endpoint,
    /// Where its UDP payload begins in the packet, and how long it is.
    payload: u16,
    len: u16,
    taken: bool,
}

/// One bound socket for each address family, and what waits for them.
pub struct Sender {
    sockets: Vec<(UdpSocket, SocketAddr)>,
    /// Only answers that would look on the wire as a socket makes them are taken.
    faithful: bool,
    queue: Vec<Queued>,
    /// One for each of the queue: family, a hash of the receiver, and the place. Sorted, they put
    /// what is for one receiver together, in the order that it came in.
    keys: Vec<u64>,
    messages: Messages,
    /// Steps that the oldest has waited.
    held: u32,
}

impl Sender {
    /// Sockets at `addresses`, at most one of each family, that receive as well.
    pub(super) fn new(addresses: &[SocketAddr]) -> Result<Self, UdpError> {
        Self::with(addresses, None)
    }

    /// Sockets at `addresses`, at most one of each family, that send answers alone, by the
    /// interface `interface`. What reaches them is dropped by the kernel. An answer with a VLAN
    /// tag, or that names another sender than these addresses, is refused.
    ///
    /// # Errors
    /// Where an address cannot be bound, is another interface's, or cannot send to groups.
    pub fn of_answers(addresses: &[SocketAddr], interface: &str) -> Result<Self, UdpError> {
        Self::with(addresses, Some(interface))
    }

    fn with(addresses: &[SocketAddr], interface: Option<&str>) -> Result<Self, UdpError> {
        let bound = |&address: &SocketAddr| {
            let socket = socket(address).map_err(|source| UdpError::Bind { address, source })?;
            if let Some(interface) = interface {
                // Before it is bound, so that nothing ever waits in it.
                restrict(&socket, interface).map_err(|source| UdpError::Restrict {
                    address,
                    interface: interface.to_owned(),
                    source,
                })?;
            }
            socket.bind(&address.into()).map_err(|source| UdpError::Bind { address, source })?;
            let socket = UdpSocket::from(socket);
            // Port 0 becomes the one that was given.
            let address = socket.local_addr().unwrap_or(address);
            group::prepare(&SockRef::from(&socket), address.ip())
                .map_err(|source| UdpError::Multicast { address, source })?;
            Ok((socket, address))
        };
        Ok(Self {
            sockets: addresses.iter().map(bound).collect::<Result<_, UdpError>>()?,
            faithful: interface.is_some(),
            queue: Vec::with_capacity(CAPACITY),
            keys: Vec::with_capacity(CAPACITY),
            messages: Messages::new(CAPACITY),
            held: 0,
        })
    }

    /// The sockets, and where they are bound.
    pub(super) fn sockets(&self) -> &[(UdpSocket, SocketAddr)] {
        &self.sockets
    }

    /// Answers that wait for the sockets.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes packets from the front of `outbox` as long as there is room, and sends what has
    /// waited long enough; while packets keep coming (`more`), some wait for others. What no socket
    /// is there for goes to `refused`.
    pub fn transmit(
        &mut self,
        (umem, pool): (&Umem, &mut Pool),
        outbox: &mut Vec<Packet>,
        refused: &mut Vec<Packet>,
        more: bool,
        counters: &mut Counters,
    ) {
        loop {
            let room = CAPACITY - self.queue.len();
            for packet in outbox.drain(..room.min(outbox.len())) {
                if let Err(packet) = self.enqueue(umem, packet) {
                    refused.push(packet);
                }
            }
            if !self.due(more) {
                return;
            }
            let full = self.flush(umem, pool, counters);
            if full || outbox.is_empty() {
                return;
            }
        }
    }

    /// Puts an answer into the queue, which has room; gives it back where it is not for a socket.
    fn enqueue(&mut self, umem: &Umem, packet: Packet) -> Result<(), Packet> {
        let bytes = umem.packet(&packet);
        let Some(e) = Envelope::parse(bytes) else { return Err(packet) };
        let socket = self.sockets.iter().find(|(_, a)| a.is_ipv6() == e.is_ipv6());
        let Some(&(_, address)) = socket else { return Err(packet) };
        if self.faithful && (e.has_vlan() || e.source(bytes) != Endpoint::from(address)) {
            return Err(packet);
        }
        let to = e.destination(bytes);
        self.keys.push(key(to, e.is_ipv6(), self.queue.len()));
        let (payload, len) = (e.payload() as u16, e.len() as u16);
        self.queue.push(Queued { packet, to, payload, len, taken: false });
        Ok(())
    }

    /// Whether what waits is to be sent now.
    fn due(&mut self, more: bool) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        self.held += 1;
        !more || self.queue.len() >= GATHER || self.held >= LONGEST_HOLD
    }

    /// Sends what waits, as far as the sockets have room, and gives the frames back: the kernel has
    /// copied them. Returns whether a socket is full.
    fn flush(&mut self, umem: &Umem, pool: &mut Pool, counters: &mut Counters) -> bool {
        self.held = 0;
        self.keys.sort_unstable();
        let (mut taken, mut full) = (0, false);
        let v4 = self.keys.partition_point(|k| k & V6 == 0);
        for (v6, mut keys) in [(false, &self.keys[..v4]), (true, &self.keys[v4..])] {
            let socket = self.sockets.iter().find(|(_, a)| a.is_ipv6() == v6);
            let Some((socket, _)) = socket else { continue };
            while !keys.is_empty() {
                let datagrams = keys.iter().map(|k| {
                    let q = &self.queue[(k & PLACE) as usize];
                    let payload = usize::from(q.payload);
                    (&umem.packet(&q.packet)[payload..payload + usize::from(q.len)], q.to)
                });
                let sent = self.messages.send(socket.as_raw_fd(), datagrams);
                counters.add(Counter::TxLate, sent.lost as u64);
                for k in &keys[..sent.taken] {
                    self.queue[(k & PLACE) as usize].taken = true;
                }
                taken += sent.taken;
                keys = &keys[sent.taken..];
                if sent.full {
                    counters.bump(Counter::TxRingFull);
                    full = true;
                    break;
                }
            }
        }
        if taken < self.queue.len() {
            self.keep_untaken();
        }
        let left = self.queue.len() - taken;
        for q in self.queue.drain(left..) {
            pool.transmitted(q.packet.frame);
        }
        self.keys.clear();
        let queue = self.queue.iter().enumerate();
        self.keys
            .extend(queue.map(|(place, q)| key(q.to, SocketAddr::from(q.to).is_ipv6(), place)));
        full
    }

    /// Moves what was not taken to the front, in order.
    #[cold]
    fn keep_untaken(&mut self) {
        let mut kept = 0;
        for place in 0..self.queue.len() {
            if !self.queue[place].taken {
                self.queue.swap(kept, place);
                kept += 1;
            }
        }
    }
}

/// The key of the answer to `to` at `place` of the queue. Receivers of one hash are told apart
/// later; they only make shorter messages.
fn key(to: Endpoint, v6: bool, place: usize) -> u64 {
    let folded = (to.ip >> 64) as u64 ^ (to.ip as u64).rotate_left(17) ^ u64::from(to.port) << 47;
    let hash = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
    u64::from(v6) << 63 | hash & !PLACE | place as u64
}

/// A non-blocking socket with large buffers for the family of `address`.
fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    options::set_buffers(&socket, BUFFER);
    options::set_ecn(&socket, address.is_ipv6())?;
    Ok(socket)
}

/// Has a socket send by `interface` alone, and drop whatever comes.
fn restrict(socket: &Socket, interface: &str) -> io::Result<()> {
    /// `BPF_RET | BPF_K` (`include/uapi/linux/bpf_common.h`): how many bytes of a packet to keep.
    const RETURN: u16 = 0x06;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])
}

#[cfg(test)]
mod tests;
