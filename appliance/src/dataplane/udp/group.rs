//! What a socket must be told to send to multicast groups as the `xdp` port would: on its own
//! interface, one hop far, and to workers of the same host as well.

use gradbox_protocol::envelope::GROUP_HOPS;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use socket2::Socket;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

/// Prepares a socket that is bound to `address`.
pub(super) fn prepare(socket: &Socket, address: IpAddr) -> io::Result<()> {
    match address {
        IpAddr::V4(ip) => {
            socket.set_multicast_if_v4(&ip)?;
            socket.set_multicast_ttl_v4(GROUP_HOPS.into())?;
            socket.set_multicast_loop_v4(true)
        }
        IpAddr::V6(ip) => {
            socket.set_multicast_if_v6(interface_of(ip)?)?;
            socket.set_multicast_hops_v6(GROUP_HOPS.into())?;
            socket.set_multicast_loop_v6(true)
        }
    }
}

/// Index of the interface that has the address `ip`.
fn interface_of(ip: Ipv6Addr) -> io::Result<u32> {
    let found = getifaddrs()?.find(|i| {
        let address = i.address.as_ref().and_then(|a| a.as_sockaddr_in6());
        address.is_some_and(|a| a.ip() == ip)
    });
    match found {
        Some(interface) => Ok(if_nametoindex(interface.interface_name.as_str())?),
        None => Err(io::Error::other("no interface has this address")),
    }
}
