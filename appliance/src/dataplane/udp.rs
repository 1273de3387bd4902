//! The `udp` port: ordinary sockets, no privileges. The fallback on a laptop, and the honest
//! baseline for AF_XDP.
//!
//! Packets get the envelope that they would have had on the wire, made from the sender's address,
//! so that the data plane above sees no difference and an answer is sent to whom it names.

mod batch;
mod group;

use super::counters::{Counter, Counters};
use super::frame::{Frame, ORIGIN, Packet};
use super::pool::Pool;
use super::port::{self, BATCH, Lent, Port};
use super::umem::Umem;
use batch::{Batch, Sent};
use gradbox_protocol::HEADER_LEN;
use gradbox_protocol::envelope::{self, Envelope, Link};
use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Receive buffer that is asked for; the kernel may give less.
const BUFFER: usize = 16 << 20;

/// How long a full socket buffer is waited for before its packets count as lost on the way.
const LONGEST_SEND_WAIT: Duration = Duration::from_millis(20);

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The address cannot be bound.
    #[error(
        "cannot bind UDP {address}: {source}; \
         is another box running there, and is the address this machine's?"
    )]
    Bind {
        /// Address asked for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The socket cannot send to multicast groups.
    #[error("cannot send to multicast groups from {address}: {source}")]
    Multicast {
        /// Address that it is bound to.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

/// One socket for each address family.
pub struct UdpPort {
    umem: Umem,
    sockets: Vec<(UdpSocket, SocketAddr)>,
    /// Frames for packets to come.
    fill: Vec<Frame>,
    batch: Batch,
}

impl UdpPort {
    /// Sockets bound to `addresses`, at most one of each family, that receive into `umem`.
    ///
    /// # Errors
    /// Where an address cannot be bound, or not send to multicast groups.
    pub fn new(umem: Umem, addresses: &[SocketAddr]) -> Result<Self, UdpError> {
        let sockets = addresses
            .iter()
            .map(|&address| {
                let socket = bind(address).map_err(|source| UdpError::Bind { address, source })?;
                // Port 0 becomes the one that was given.
                let bound = socket.local_addr().unwrap_or(address);
                group::prepare(&SockRef::from(&socket), bound.ip())
                    .map_err(|source| UdpError::Multicast { address: bound, source })?;
                Ok((socket, bound))
            })
            .collect::<Result<Vec<_>, UdpError>>()?;
        Ok(Self { umem, sockets, fill: Vec::with_capacity(BATCH), batch: Batch::new() })
    }

    /// The addresses that are bound.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(|(_, address)| *address).collect()
    }
}

/// A bound, non-blocking socket with large buffers.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    batch::set_buffers(&socket, BUFFER);
    batch::set_ecn(&socket, address.is_ipv6())?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

impl Port for UdpPort {
    fn umem(&self) -> &Umem {
        &self.umem
    }

    fn receive(&mut self, pool: &mut Pool, inbox: &mut Vec<Packet>, counters: &mut Counters) {
        for (socket, to) in &self.sockets {
            let room = BATCH.saturating_sub(inbox.len()).min(self.fill.len());
            // The payload lies where a packet from the wire would have it.
            let head = if to.is_ipv6() { envelope::LONGEST - 4 } else { envelope::SHORTEST };
            let datagrams = self.batch.receive(
                socket.as_raw_fd(),
                &self.umem,
                &mut self.fill,
                ORIGIN + head,
                room,
            );
            for d in datagrams {
                let mut frame = d.frame;
                let len = head + d.len;
                let bytes = &mut self.umem.bytes_mut(&mut frame)[ORIGIN..];
                let link = Link::default();
                match envelope::write(bytes, &link, d.from, *to, d.len) {
                    Some(envelope) if !d.truncated => {
                        if d.congestion {
                            envelope.mark_congestion(bytes);
                        }
                        inbox.push(Packet { frame, start: ORIGIN as u16, len: len as u16 });
                    }
                    _ => {
                        counters.bump(Counter::DropMalformed);
                        pool.give(frame);
                    }
                }
            }
        }
    }

    fn transmit(&mut self, pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        for v6 in [false, true] {
            let Some((socket, _)) = self.sockets.iter().find(|(_, a)| a.is_ipv6() == v6) else {
                continue;
            };
            let datagrams = outbox.iter().filter_map(|packet| {
                let bytes = self.umem.packet(packet);
                let e = Envelope::parse(bytes).filter(|e| e.is_ipv6() == v6)?;
                let to = SocketAddr::from(e.destination(bytes));
                Some((&bytes[e.payload()..e.payload() + e.len()], to))
            });
            if let Sent::Late(n) = self.batch.send(socket.as_raw_fd(), datagrams, LONGEST_SEND_WAIT)
            {
                counters.add(Counter::TxLate, n as u64);
            }
        }
        // Copied by the kernel, or lost on the way: the frames are ours again.
        for packet in outbox.drain(..) {
            pool.transmitted(packet.frame);
        }
    }

    fn settle(&mut self, pool: &mut Pool, counters: &mut Counters) {
        while self.fill.len() < BATCH {
            match pool.take() {
                Some(frame) => self.fill.push(frame),
                None => {
                    counters.bump(Counter::FillShort);
                    break;
                }
            }
        }
    }

    fn lent(&self) -> Lent {
        Lent { fill: self.fill.len() as u64, ..Lent::default() }
    }

    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) {
        let mut polls: Vec<_> =
            self.sockets.iter().map(|(s, _)| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        polls.push(PollFd::new(wake, PollFlags::POLLIN));
        port::poll(&mut polls, timeout);
    }
}

const _: () = assert!(HEADER_LEN == 32, "the payload's place in the frame depends on it");
