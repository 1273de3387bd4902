//! The connections between the two ends of a pair.

use super::{CONGESTION, STALL, Side, TcpError};
use crate::bench::network::{BOX_ADDRESS, MAX_WORKERS, Pair, worker_address};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Connections by rank, at both their ends.
pub(super) struct Connections {
    /// The aggregator's ends.
    pub(super) servers: Vec<TcpStream>,
    /// The workers' ends.
    pub(super) clients: Vec<TcpStream>,
}

/// A connection for each worker.
pub(super) fn connect(pair: &Pair, workers: u8) -> Result<Connections, TcpError> {
    let listener = pair.boxes.run(|| listen(BOX_ADDRESS))??;
    let address = local_address(&listener)?;
    let dial = || (0..workers).map(|rank| dial(worker_address(rank), address)).collect();
    let clients: Result<_, TcpError> = pair.workers.run(dial)?;
    accept(&listener, clients?)
}

/// A listening socket, on any free port.
pub(super) fn listen(address: Ipv4Addr) -> Result<TcpListener, TcpError> {
    let listen = || {
        let socket = tcp()?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        socket.listen(i32::from(MAX_WORKERS))?;
        Ok(socket.into())
    };
    listen().map_err(TcpError::system(Side::Aggregator, "listen"))
}

/// Where a listening socket is.
pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr, TcpError> {
    listener.local_addr().map_err(TcpError::system(Side::Aggregator, "tell the address"))
}

/// A worker's connection.
pub(super) fn dial(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream, TcpError> {
    let dial = || {
        let socket = tcp()?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&to.into(), STALL)?;
        Ok(socket.into())
    };
    dial().map_err(TcpError::system(Side::Workers, "connect"))
}

/// Accepts what `clients` have dialled.
pub(super) fn accept(
    listener: &TcpListener,
    clients: Vec<TcpStream>,
) -> Result<Connections, TcpError> {
    let failed = TcpError::system(Side::Aggregator, "accept");
    let mut servers: Vec<Option<TcpStream>> = clients.iter().map(|_| None).collect();
    for _ in 0..clients.len() {
        let (connection, peer) = listener.accept().map_err(failed)?;
        let rank = clients.iter().position(|c| c.local_addr().is_ok_and(|a| a == peer));
        let place = rank.and_then(|rank| servers.get_mut(rank));
        *place.ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))? = Some(connection);
    }
    Ok(Connections { servers: servers.into_iter().flatten().collect(), clients })
}

/// A socket with all options; those of a listening one go to the connections that it accepts.
///
/// The buffers' sizes are the kernel's to find: a fixed size was no faster, and its limit
/// (`net.core.rmem_max`) is far too small on many machines.
fn tcp() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    setsockopt(&socket, sockopt::TcpCongestion, &CONGESTION.into())?;
    socket.set_tcp_nodelay(true)?;
    socket.set_read_timeout(Some(STALL))?;
    socket.set_write_timeout(Some(STALL))?;
    Ok(socket)
}

/// Keeps this thread on `cpu`.
pub(super) fn pin(side: Side, cpu: usize) -> Result<(), TcpError> {
    let mut set = CpuSet::new();
    let pinned = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    pinned.map_err(|_| TcpError::Cpu { side, cpu })
}
