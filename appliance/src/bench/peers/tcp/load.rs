//! The workers: all connections in one thread, each a window of blocks ahead of its sums.

use super::{STALL, Settings, Side, TcpError, socket};
use crate::sum::reference;
use gradbox_protocol::{DType, Op};
use half::{bf16, f16};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, recv, send};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

const SIDE: Side = Side::Workers;

/// Every which block's sum is compared. The others' bytes are dropped by the kernel (`MSG_TRUNC`):
/// workers that are no bottleneck make a better aggregator.
const CHECKED: u64 = 61;

/// Streams the gradients of all workers and reads their sums until `stop`; gives the number of
/// blocks that were compared.
pub(super) fn run(
    connections: Vec<TcpStream>,
    settings: &Settings,
    stop: &AtomicBool,
) -> Result<u64, TcpError> {
    socket::pin(SIDE, settings.client_cpu)?;
    let variety = variety(settings.window);
    let gradients: Vec<_> =
        (0..connections.len()).map(|rank| gradient(settings, rank, variety)).collect();
    let inputs: Vec<&[u8]> = gradients.iter().map(Vec::as_slice).collect();
    let mut sums = vec![0; settings.block_bytes * variety];
    reference(settings.dtype, Op::Sum, &inputs, &mut sums);

    let failed = TcpError::system(SIDE, "wait for connections");
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| failed(e.into()))?;
    let both = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
    for connection in &connections {
        epoll.add(connection, EpollEvent::new(both, 0)).map_err(|e| failed(e.into()))?;
    }
    let mut workers: Vec<_> = (0..)
        .zip(&connections)
        .zip(&gradients)
        .map(|((rank, connection), gradient)| Worker {
            rank,
            connection,
            gradient,
            sums: &sums,
            block: settings.block_bytes,
            sent: 0,
            read: 0,
            checked: 0,
        })
        .collect();
    let mut scratch = vec![0; settings.block_bytes * CHECKED as usize];
    let timeout = EpollTimeout::try_from(STALL).unwrap_or(EpollTimeout::MAX);
    let mut events = [EpollEvent::empty(); 64];
    let (window, block) = (settings.window as u64, settings.block_bytes as u64);
    while !stop.load(Ordering::Acquire) {
        let mut moved = false;
        // A multicast would reach all of them.
        let heard = workers[0].read;
        for worker in &mut workers {
            let read = if settings.reply_all { worker.read } else { heard };
            match worker.step((read / block + window) * block, &mut scratch) {
                Ok(did) => moved |= did,
                // The aggregator closes when it has all its samples.
                Err(_) if stop.load(Ordering::Acquire) => break,
                Err(error) => return Err(error),
            }
        }
        if moved {
            continue;
        }
        match epoll.wait(&mut events, timeout) {
            Ok(0) => {
                let rank = workers.iter().min_by_key(|w| w.sent).map_or(0, |w| w.rank);
                let block = workers[rank].sent / block;
                return Err(TcpError::Stalled { side: SIDE, rank, block });
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(failed(e.into())),
        }
    }
    Ok(workers.iter().map(|w| w.checked).sum())
}

struct Worker<'a> {
    rank: usize,
    connection: &'a TcpStream,
    /// Blocks to send, and their sums.
    gradient: &'a [u8],
    sums: &'a [u8],
    /// Bytes of a block.
    block: usize,
    /// Bytes sent and read.
    sent: u64,
    read: u64,
    checked: u64,
}

impl Worker<'_> {
    /// Reads what there is to read, and sends what there is room for up to `limit` bytes of the
    /// stream. Whether there was any.
    fn step(&mut self, limit: u64, scratch: &mut [u8]) -> Result<bool, TcpError> {
        let read = self.receive(scratch)?;
        Ok(self.transmit(limit)? || read)
    }

    fn transmit(&mut self, limit: u64) -> Result<bool, TcpError> {
        let at = (self.sent % self.gradient.len() as u64) as usize;
        let room = limit.saturating_sub(self.sent) as usize;
        let end = self.gradient.len().min(at + room);
        if end == at {
            return Ok(false);
        }
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.connection.as_raw_fd(), &self.gradient[at..end], flags) {
            Ok(n) => self.sent += n as u64,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(e) => return Err(self.failed(e)),
        }
        Ok(true)
    }

    fn receive(&mut self, scratch: &mut [u8]) -> Result<bool, TcpError> {
        let (number, at) =
            (self.read / self.block as u64, (self.read % self.block as u64) as usize);
        let check = number.is_multiple_of(CHECKED);
        let (wanted, flags) = if check {
            (self.block - at, MsgFlags::MSG_DONTWAIT)
        } else {
            let blocks = (CHECKED - number % CHECKED) as usize;
            (blocks * self.block - at, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)
        };
        let got = match recv(self.connection.as_raw_fd(), &mut scratch[..wanted], flags) {
            Ok(0) => return Err(self.failed(Errno::ECONNRESET)),
            Ok(n) => n,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(e) => return Err(self.failed(e)),
        };
        if check {
            let first = (number * self.block as u64 % self.sums.len() as u64) as usize + at;
            if scratch[..got] != self.sums[first..first + got] {
                return Err(TcpError::Bits { rank: self.rank, block: number });
            }
            self.checked += u64::from(at + got == self.block);
        }
        self.read += got as u64;
        Ok(true)
    }

    fn failed(&self, errno: Errno) -> TcpError {
        TcpError::connection(SIDE, self.rank, self.sent / self.block as u64, errno.into())
    }
}

/// Number of different blocks of a worker, which come again and again, so that the sum of another
/// block is not taken for the right one. It does not divide the window: that would hide sums that
/// were overwritten by those of a window later.
fn variety(window: usize) -> usize {
    (3..).find(|&variety| !window.is_multiple_of(variety)).unwrap_or(window + 1)
}

/// The different blocks of a worker: finite numbers of either sign whose sums round.
fn gradient(settings: &Settings, rank: usize, variety: usize) -> Vec<u8> {
    let mut seed = rank as u32 + 1;
    let size = settings.dtype.size();
    let mut bytes = Vec::with_capacity(settings.block_bytes * variety);
    for _ in 0..settings.block_bytes * variety / size {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = (seed >> 8) as f32 / 8_388_608.0 - 1.0;
        match settings.dtype {
            DType::F32 => bytes.extend(x.to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
            DType::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
            DType::I32 => bytes.extend(seed.to_le_bytes()),
        }
    }
    bytes
}
