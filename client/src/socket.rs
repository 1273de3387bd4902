//! The sockets of a worker: bound, with their options set, in the job's group.

use crate::error::Error;
use crate::sys;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;

/// ECN-capable transport (RFC 3168).
const ECT0: i32 = 0b10;
/// `IPV6_MULTICAST_ALL` (`include/uapi/linux/in6.h`).
const IPV6_MULTICAST_ALL: i32 = 29;
/// What the kernel charges for a received packet of up to about 1800 bytes, and for a larger one.
const TRUESIZE: [usize; 2] = [2304, 4352];

fn failed(doing: String, error: &io::Error) -> Error {
    Error::Socket { doing, reason: error.to_string() }
}

/// Binds the socket that this worker's packets come from, `local` or the address that the kernel
/// routes to `remote`.
pub(crate) fn bind(remote: SocketAddr, local: Option<IpAddr>) -> Result<UdpSocket, Error> {
    let local = match local {
        Some(ip) if ip.is_ipv4() == remote.is_ipv4() => ip,
        Some(ip) => {
            return Err(Error::Option {
                option: "bind",
                found: ip.to_string(),
                needs: "an address of the same family as the box's data plane",
            });
        }
        None => routed(remote).map_err(|e| failed(format!("finding a route to {remote}"), &e))?,
    };
    let doing = || format!("binding UDP to {local}");
    let domain = Domain::for_address(remote);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))
        .and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.bind(&SocketAddr::new(local, 0).into())?;
            Ok(socket)
        })
        .map_err(|e| failed(doing(), &e))?;
    Ok(socket.into())
}

/// The local address of the route to `remote`; nothing is sent.
fn routed(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = if remote.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let probe = UdpSocket::bind(any)?;
    probe.connect(remote)?;
    Ok(probe.local_addr()?.ip())
}

/// Sets the options of a `socket` that takes packets of `datagram` bytes. Returns the number of
/// packets that its receive buffer has room for.
pub(crate) fn prepare(socket: &UdpSocket, v4: bool, receive_buffer: usize, datagram: usize) -> u32 {
    let fd = socket.as_fd();
    let wanted = i32::try_from(receive_buffer).unwrap_or(i32::MAX);
    // Forcing needs CAP_NET_ADMIN; without it net.core.rmem_max is the bound.
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted).is_err() {
        note(sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, wanted), "SO_RCVBUF");
    }
    if v4 {
        note(sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1), "IP_RECVTOS");
    } else {
        let ip = libc::IPPROTO_IPV6;
        note(sys::set_option(fd, ip, libc::IPV6_RECVTCLASS, 1), "IPV6_RECVTCLASS");
        // The box may answer without a checksum.
        let zero = sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
        note(zero, "UDP_NO_CHECK6_RX");
    }
    note(sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1), "UDP_GRO");
    let granted = socket2::SockRef::from(socket).recv_buffer_size().unwrap_or(0);
    let truesize = if datagram <= 1800 { TRUESIZE[0] } else { TRUESIZE[1] };
    let packets = (granted / 2 / truesize) as u32;
    tracing::debug!(wanted, granted, packets, "receive buffer");
    packets
}

/// Makes a `socket` send as ECN-capable, and never fragments, which would pass the box's XDP
/// program by: failing is louder.
pub(crate) fn never_fragment(socket: &UdpSocket, v4: bool) {
    let fd = socket.as_fd();
    if v4 {
        let ip = libc::IPPROTO_IP;
        note(sys::set_option(fd, ip, libc::IP_TOS, ECT0), "IP_TOS");
        let pmtu = sys::set_option(fd, ip, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
        note(pmtu, "IP_MTU_DISCOVER");
    } else {
        let ip = libc::IPPROTO_IPV6;
        note(sys::set_option(fd, ip, libc::IPV6_TCLASS, ECT0), "IPV6_TCLASS");
        let pmtu = sys::set_option(fd, ip, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO);
        note(pmtu, "IPV6_MTU_DISCOVER");
    }
}

/// A socket that gets what is sent to `group`, address and port, on the interface that has the
/// address `local`. Several workers of one host may have one each.
pub(crate) fn join(group: SocketAddr, local: IpAddr) -> Result<UdpSocket, Error> {
    let try_join = || {
        let socket = Socket::new(Domain::for_address(group), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        // Else what others of this host have joined on other interfaces would come, too.
        let only_ours = |level, name| sys::set_option(socket.as_fd(), level, name, 0);
        match (group, local) {
            (SocketAddr::V4(group), IpAddr::V4(local)) => {
                only_ours(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL)?;
                socket.bind(&SocketAddr::V4(group).into())?;
                socket.join_multicast_v4(group.ip(), &local)?;
            }
            (SocketAddr::V6(group), IpAddr::V6(local)) => {
                let interface = interface_of(local)?;
                only_ours(libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL)?;
                // Groups of link-local scope are bound with their interface.
                let to = SocketAddrV6::new(*group.ip(), group.port(), 0, interface);
                socket.bind(&SocketAddr::V6(to).into())?;
                socket.join_multicast_v6(group.ip(), interface)?;
            }
            _ => return Err(io::Error::other("the group is of another address family")),
        }
        Ok(socket.into())
    };
    try_join().map_err(|e| failed(format!("joining the multicast group {group} from {local}"), &e))
}

/// Index of the interface that has the address `ip`, as the kernel lists them.
fn interface_of(ip: Ipv6Addr) -> io::Result<u32> {
    let list = std::fs::read_to_string("/proc/net/if_inet6")?;
    let wanted = format!("{:032x}", ip.to_bits());
    let found = list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(&wanted)).then(|| words.next())?
    });
    found
        .and_then(|index| u32::from_str_radix(index, 16).ok())
        .ok_or_else(|| io::Error::other(format!("no interface has the address {ip}")))
}

fn note(result: io::Result<()>, option: &str) {
    if let Err(error) = result {
        tracing::info!(%error, option, "the kernel refuses a socket option; going on without");
    }
}
