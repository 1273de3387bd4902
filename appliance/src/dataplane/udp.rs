//! The `udp` port: ordinary sockets, no privileges. The fallback on a laptop, and the honest
//! baseline for AF_XDP.
//!
//! Packets get the envelope that they would have had on the wire, made from the sender's address,
//! so that the data plane above sees no difference and an answer is sent to whom it names.

mod batch;
mod group;
mod messages;
mod options;
mod sender;

pub use sender::{CAPACITY, Sender};

use super::counters::{Counter, Counters};
use super::frame::{Frame, ORIGIN, Packet};
use super::pool::Pool;
use super::port::{self, BATCH, Lent, Port};
use super::umem::Umem;
use batch::Batch;
use gradbox_protocol::HEADER_LEN;
use gradbox_protocol::envelope::{self, Link};
use nix::poll::{PollFd, PollFlags};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

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
    /// The socket cannot be one that only sends, by one interface.
    #[error("cannot have the socket at {address} send by {interface} alone: {source}")]
    Restrict {
        /// Address asked for.
        address: SocketAddr,
        /// Interface asked for.
        interface: String,
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

/// One socket for each address family, to receive from and to send by.
pub struct UdpPort {
    umem: Umem,
    sender: Sender,
    /// Frames for packets to come.
    fill: Vec<Frame>,
    batch: Batch,
    /// The sockets had as many packets as were wanted, so there may be more.
    more: bool,
    /// Answers that there is no socket for.
    refused: Vec<Packet>,
}

impl UdpPort {
    /// Sockets bound to `addresses`, at most one of each family, that receive into `umem`.
    ///
    /// # Errors
    /// Where an address cannot be bound, or not send to multicast groups.
    pub fn new(umem: Umem, addresses: &[SocketAddr]) -> Result<Self, UdpError> {
        let sender = Sender::new(addresses)?;
        let fill = Vec::with_capacity(BATCH);
        let refused = Vec::with_capacity(CAPACITY);
        Ok(Self { umem, sender, fill, batch: Batch::new(), more: false, refused })
    }

    /// The addresses that are bound.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sender.sockets().iter().map(|(_, address)| *address).collect()
    }
}

impl Port for UdpPort {
    fn umem(&self) -> &Umem {
        &self.umem
    }

    fn receive(&mut self, pool: &mut Pool, inbox: &mut Vec<Packet>, counters: &mut Counters) {
        for (socket, to) in self.sender.sockets() {
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
        self.more = inbox.len() >= BATCH;
    }

    fn transmit(&mut self, pool: &mut Pool, outbox: &mut Vec<Packet>, counters: &mut Counters) {
        let (frames, refused) = ((&self.umem, &mut *pool), &mut self.refused);
        self.sender.transmit(frames, outbox, refused, self.more, counters);
        for packet in self.refused.drain(..) {
            counters.bump(Counter::TxLate);
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
        Lent { fill: self.fill.len() as u64, rx: 0, tx: self.sender.waiting() as u64 }
    }

    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) {
        // What waits for a full socket is work to come.
        if self.sender.waiting() > 0 {
            return;
        }
        let sockets = self.sender.sockets().iter();
        let mut polls: Vec<_> =
            sockets.map(|(s, _)| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        polls.push(PollFd::new(wake, PollFlags::POLLIN));
        port::poll(&mut polls, timeout);
    }
}

const _: () = assert!(HEADER_LEN == 32, "the payload's place in the frame depends on it");
