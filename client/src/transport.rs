//! The data-plane sockets: batches out, batches in.

use crate::engine::{Engine, Transmit};
use crate::error::Error;
use crate::socket;
use crate::sys::{self, BATCH, Outgoing, Receiver};
use gradbox_protocol::Header;
use socket2::SockAddr;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use zerocopy::IntoBytes;

/// Segments of one message: what the oldest kernels take (`UDP_MAX_SEGMENTS`).
const SEGMENTS: usize = 64;
/// Bytes of one message: an IP packet's 65,535 less the IPv6 and UDP headers.
const MESSAGE_BYTES: usize = 65_535 - 48;
/// Sorts a failed system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The queue is full: wait until it can be written.
    Full,
    /// This packet is lost, which the protocol repairs.
    Passing,
    /// The kernel or the device does not cut segments.
    NoSegments,
    /// It will not get better.
    Fatal,
}

fn sort(error: &io::Error, segments: bool) -> Trouble {
    match error.raw_os_error().unwrap_or(0) {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Trouble::Full,
        libc::EIO | libc::EINVAL if segments => Trouble::NoSegments,
        // A link that is down, a neighbour that is silent, a rule that may change: deadlines tell.
        libc::ENETDOWN
        | libc::ENETUNREACH
        | libc::EHOSTUNREACH
        | libc::EHOSTDOWN
        | libc::ECONNREFUSED
        | libc::EPERM
        | libc::EADDRNOTAVAIL => Trouble::Passing,
        _ => Trouble::Fatal,
    }
}

/// What one attempt at sending came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing is left.
    All,
    /// The socket is full.
    Full,
}

/// The data-plane socket, and the one that listens to the job's group, where it has one.
pub(crate) struct Transport {
    socket: UdpSocket,
    group: Option<UdpSocket>,
    receiver: Receiver,
    /// By shard.
    targets: Vec<SockAddr>,
    remote: IpAddr,
    port_base: u16,
    segments: bool,
    lost_to: Option<io::ErrorKind>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Transport {
    /// Sets the options of a bound `socket` for packets of `datagram` bytes to `shards` ports of
    /// `remote`. Returns it with the number of packets that its receive buffer has room for.
    pub(crate) fn new(
        socket: UdpSocket,
        remote: IpAddr,
        port_base: u16,
        shards: u16,
        receive_buffer: usize,
        datagram: usize,
    ) -> Result<(Self, u32), Error> {
        if port_base.checked_add(shards.saturating_sub(1)).is_none() {
            return Err(Error::Socket {
                doing: "reading the box's answer".into(),
                reason: format!("{shards} ports from {port_base} on go past 65535"),
            });
        }
        let packets = socket::prepare(&socket, remote.is_ipv4(), receive_buffer, datagram);
        socket::never_fragment(&socket, remote.is_ipv4());
        let target = |shard| SockAddr::from(SocketAddr::new(remote, port_base + shard));
        let transport = Self {
            targets: (0..shards).map(target).collect(),
            receiver: Receiver::new(),
            remote: remote.to_canonical(),
            port_base,
            socket,
            group: None,
            segments: true,
            lost_to: None,
        };
        Ok((transport, packets))
    }

    /// Listens to `group` too, on the interface that has the address `local`. Returns the number of
    /// packets that its receive buffer has room for.
    pub(crate) fn listen(
        &mut self,
        group: SocketAddr,
        local: IpAddr,
        receive_buffer: usize,
        datagram: usize,
    ) -> Result<u32, Error> {
        let socket = socket::join(group, local)?;
        let packets = socket::prepare(&socket, group.is_ipv4(), receive_buffer, datagram);
        self.group = Some(socket);
        Ok(packets)
    }

    /// What to wait for: the socket that also sends comes first.
    pub(crate) fn fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.socket.as_fd()), self.group.as_ref().map(AsFd::as_fd)]
    }

    /// Hands the datagrams that have come from the box to `take`; at most one batch of each socket.
    /// Returns whether nothing is left.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(&[u8], bool)) -> Result<bool, Error> {
        let mut drained = true;
        // The group first: a STATUS of the same moment may call done what has come there.
        for socket in self.group.iter().chain([&self.socket]) {
            let count = match self.receiver.receive(socket.as_fd()) {
                Ok(count) => count,
                Err(error) => match sort(&error, false) {
                    Trouble::Full => continue,
                    Trouble::Passing => {
                        drained = false;
                        continue;
                    }
                    _ => return Err(fatal("receiving", &error, 0)),
                },
            };
            for datagram in self.receiver.datagrams() {
                let ours = datagram.source.is_some_and(|(ip, port)| {
                    ip == self.remote
                        && usize::from(port.wrapping_sub(self.port_base)) < self.targets.len()
                });
                if ours {
                    take(datagram.bytes, datagram.marked);
                }
            }
            drained &= count < BATCH;
        }
        Ok(drained)
    }

    /// Sends one header without a body.
    pub(crate) fn send_header(&mut self, shard: u16, header: &Header) -> Result<(), Error> {
        let parts = [IoSlice::new(header.as_bytes())];
        let to = &self.targets[usize::from(shard)];
        let message = Outgoing { to, parts: &parts, segment: 0 };
        match sys::send(self.socket.as_fd(), &[message]) {
            Ok(_) => Ok(()),
            Err(error) if sort(&error, false) == Trouble::Fatal => {
                Err(fatal("sending", &error, parts[0].len()))
            }
            Err(_) => Ok(()),
        }
    }

    /// Sends from the front of `queue` until it is empty or the socket is full.
    pub(crate) fn flush(
        &mut self,
        engine: &Engine,
        queue: &mut VecDeque<Transmit>,
    ) -> Result<Flushed, Error> {
        while !queue.is_empty() {
            queue.make_contiguous();
            let packets = queue.as_slices().0;
            let (parts, messages) = group(engine, packets, self.segments);
            let mut at = 0;
            let outgoing: Vec<Outgoing<'_>> = messages
                .iter()
                .map(|m| {
                    let parts = &parts[at..at + m.parts];
                    at += m.parts;
                    let to = &self.targets[usize::from(m.shard)];
                    Outgoing { to, parts, segment: m.segment }
                })
                .collect();
            let sent =
                if outgoing.is_empty() { Ok(0) } else { sys::send(self.socket.as_fd(), &outgoing) };
            let done = match sent {
                Ok(sent) if sent == messages.len() => messages.iter().map(|m| m.packets).sum(),
                Ok(sent) => messages[..sent].iter().map(|m| m.packets).sum(),
                Err(error) => match sort(&error, messages[0].segment != 0) {
                    Trouble::Full => return Ok(Flushed::Full),
                    Trouble::NoSegments => {
                        tracing::info!(%error, "no UDP segmentation here, sending singly");
                        self.segments = false;
                        continue;
                    }
                    Trouble::Passing => {
                        if self.lost_to.replace(error.kind()) != Some(error.kind()) {
                            tracing::warn!(%error, to = %self.remote, "packets cannot be sent");
                        }
                        messages[0].packets
                    }
                    Trouble::Fatal => {
                        let bytes = packets.first().map_or(0, Transmit::datagram_len);
                        return Err(fatal("sending", &error, bytes));
                    }
                },
            };
            // Packets that are not needed any more make no message.
            let done = if messages.is_empty() { packets.len() } else { done };
            queue.drain(..done);
        }
        Ok(Flushed::All)
    }
}

/// How packets at the front of the queue become messages.
struct Message {
    shard: u16,
    /// Packets of the queue that it covers, those left out included.
    packets: usize,
    /// Slices that it consists of.
    parts: usize,
    /// Size of each datagram, or 0 where there is only one.
    segment: u16,
}

/// Groups `packets` into at most [`BATCH`] messages: runs to one shard, of equal size but for a
/// shorter last one. Headers and payloads stay where they lie.
fn group<'a>(
    engine: &'a Engine,
    packets: &'a [Transmit],
    segments: bool,
) -> (Vec<IoSlice<'a>>, Vec<Message>) {
    let mut parts = Vec::with_capacity(2 * packets.len());
    let mut messages: Vec<Message> = Vec::new();
    // Of the last message: size of a segment, bytes, datagrams, and whether it may go on.
    let (mut size, mut bytes, mut count, mut open) = (0, 0, 0, false);
    let mut skipped = 0;
    for packet in packets {
        let Some(payload) = engine.payload(packet) else {
            match messages.last_mut() {
                Some(message) => message.packets += 1,
                None => skipped += 1,
            }
            continue;
        };
        let len = packet.datagram_len();
        let slices = 1 + usize::from(!payload.is_empty());
        let joins = segments
            && open
            && len <= size
            && bytes + len <= MESSAGE_BYTES
            && count < SEGMENTS
            && messages.last().is_some_and(|m| m.shard == packet.shard);
        match messages.last_mut() {
            Some(message) if joins => {
                message.packets += 1;
                message.parts += slices;
                message.segment = size as u16;
                (bytes, count, open) = (bytes + len, count + 1, len == size);
            }
            _ => {
                if messages.len() == BATCH {
                    break;
                }
                let packets = 1 + std::mem::take(&mut skipped);
                messages.push(Message { shard: packet.shard, packets, parts: slices, segment: 0 });
                (size, bytes, count, open) = (len, len, 1, true);
            }
        }
        parts.push(IoSlice::new(packet.header.as_bytes()));
        if !payload.is_empty() {
            parts.push(IoSlice::new(payload));
        }
    }
    (parts, messages)
}

fn fatal(doing: &str, error: &io::Error, bytes: usize) -> Error {
    let hint = if error.raw_os_error() == Some(libc::EMSGSIZE) {
        format!(
            ": {bytes} bytes and IP and UDP headers do not fit into the MTU of the route to the box; raise it, or lower the box's `mtu`"
        )
    } else {
        String::new()
    };
    Error::Socket { doing: format!("{doing} on the data plane"), reason: format!("{error}{hint}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Config;
    use crate::tensor::Tensor;
    use gradbox_protocol::DType;
    use gradbox_protocol::layout::Layout;

    #[test]
    fn errors_are_sorted() {
        let of = |code, segments| sort(&io::Error::from_raw_os_error(code), segments);
        assert_eq!(of(libc::EAGAIN, true), Trouble::Full);
        assert_eq!(of(libc::ENOBUFS, true), Trouble::Full);
        assert_eq!(of(libc::EINVAL, true), Trouble::NoSegments);
        assert_eq!(of(libc::EINVAL, false), Trouble::Fatal);
        assert_eq!(of(libc::EHOSTUNREACH, true), Trouble::Passing);
        assert_eq!(of(libc::EMSGSIZE, true), Trouble::Fatal);
    }

    /// An engine with 100 full chunks and a short one to send to one shard.
    fn engine() -> (Engine, VecDeque<Transmit>) {
        let layout = Layout::new(DType::I32, [100 * 352 + 1], 1408, 1).unwrap();
        let mut engine = Engine::new(Config {
            job: 1,
            rank: 0,
            cookie: 2,
            layout,
            credit: 200,
            group_cookie: None,
            receive_packets: 1000,
            stamp_base: 0,
        });
        engine.submit(1, 0, vec![(0, Tensor::I32((0..35_201).collect()))]).unwrap();
        let mut out = Vec::new();
        engine.transmit(1, &mut out);
        (engine, out.into())
    }

    #[test]
    fn packets_are_grouped_within_the_kernels_bounds() {
        let (engine, mut queue) = engine();
        let (parts, messages) = group(&engine, queue.make_contiguous(), true);
        assert_eq!(parts.len(), 2 * queue.len());
        assert_eq!(messages.iter().map(|m| m.packets).sum::<usize>(), queue.len());
        assert!(messages.iter().all(|m| m.packets * 1440 <= MESSAGE_BYTES && m.segment == 1440));
        let (_, messages) = group(&engine, queue.make_contiguous(), false);
        assert!(messages.iter().all(|m| m.packets == 1 && m.segment == 0));
    }

    #[test]
    fn the_same_datagrams_come_with_segmentation_and_without() {
        for segments in [true, false] {
            let (mut engine, mut queue) = engine();
            let far = UdpSocket::bind("127.0.0.1:0").unwrap();
            far.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            let to = far.local_addr().unwrap();
            let near = socket::bind(to, None).unwrap();
            let (mut near, packets) =
                Transport::new(near, to.ip(), to.port(), 1, 1 << 20, 1440).unwrap();
            assert!(packets > 0);
            near.segments = segments;
            let expected: Vec<Vec<u8>> = queue
                .iter()
                .map(|t| [t.header.as_bytes(), engine.payload(t).unwrap()].concat())
                .collect();
            assert_eq!(near.flush(&engine, &mut queue).unwrap(), Flushed::All);
            assert_eq!(near.segments, segments);
            for expected in &expected {
                let mut buffer = [0; 2000];
                let len = far.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..len], expected);
            }
            // What a call no longer needs is not sent.
            let (_, mut queue) = self::engine();
            engine.cancel(0).unwrap();
            assert_eq!(near.flush(&engine, &mut queue).unwrap(), Flushed::All);
            assert!(queue.is_empty());
            far.set_nonblocking(true).unwrap();
            assert!(far.recv(&mut [0; 1]).is_err());
        }
    }

    /// Takes what comes within five seconds, up to `most` datagrams.
    fn take(transport: &mut Transport, most: usize) -> Vec<Vec<u8>> {
        let start = std::time::Instant::now();
        let mut taken = Vec::new();
        while taken.len() < most && start.elapsed().as_secs() < 5 {
            transport.receive(|bytes, _| taken.push(bytes.to_vec())).unwrap();
        }
        taken
    }

    #[test]
    fn every_worker_of_a_host_hears_the_box_in_the_group_and_nobody_else() {
        let ip = std::net::Ipv4Addr::LOCALHOST;
        let speaker = || {
            let socket = UdpSocket::bind((ip, 0)).unwrap();
            socket2::SockRef::from(&socket).set_multicast_if_v4(&ip).unwrap();
            socket
        };
        let (the_box, stranger) = (speaker(), speaker());
        let to = the_box.local_addr().unwrap();
        // The stranger's port is nobody else's now, so the group's is this test's own.
        let port = stranger.local_addr().unwrap().port();
        let group = SocketAddr::from(([239, 255, 71, 254], port));
        let mut workers = [(); 2].map(|()| {
            let near = socket::bind(to, None).unwrap();
            let (mut near, _) = Transport::new(near, to.ip(), to.port(), 1, 1 << 20, 1440).unwrap();
            assert!(near.listen(group, ip.into(), 1 << 20, 1440).unwrap() > 0);
            near
        });
        for i in 0..3u8 {
            stranger.send_to(b"forged", group).unwrap();
            the_box.send_to(&[i; 100], group).unwrap();
        }
        for worker in &mut workers {
            let own = worker.socket.local_addr().unwrap();
            the_box.send_to(b"for one", own).unwrap();
            let mut taken = take(worker, 4);
            taken.sort();
            let expected = [vec![0; 100], vec![1; 100], vec![2; 100], b"for one".to_vec()];
            assert_eq!(taken, expected);
        }
        let [mut near, _] = workers;
        let six = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 1));
        let error = near.listen(six, ip.into(), 1 << 20, 1440).unwrap_err().to_string();
        assert!(error.contains("joining the multicast group [::1]:1 from 127.0.0.1"), "{error}");
    }
}
