//! The server: one thread, blocking reads and writes.
//!
//! The sum needs a block of every rank anyway, so it waits for them in rank order: meanwhile the
//! others' blocks gather in their sockets. A call reads or writes a whole block, which takes fewer
//! system calls than any event loop, and where nobody waits for the thread it never sleeps.

use super::replies::Replies;
use super::{STALL, Settings, Side, TcpError, socket};
use crate::sum::Reduce;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use nix::time::{ClockId, clock_gettime};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIDE: Side = Side::Aggregator;

/// Before the first sample: congestion windows open, caches and buffers get warm.
const WARM_UP: Duration = Duration::from_millis(200);

/// Figures of every sample.
#[derive(Default)]
pub(super) struct Figures {
    /// Payload in 1e9 bits per second.
    pub(super) gbps: Vec<f64>,
    /// CPU seconds per 1e9 bytes.
    pub(super) cpu_s_per_gb: Vec<f64>,
}

/// Serves on a pinned thread until all samples are taken, says so in `stop`, and then closes the
/// connections, which are by rank.
pub(super) fn run(
    connections: Vec<TcpStream>,
    settings: &Settings,
    reduce: &Reduce,
    stop: &AtomicBool,
) -> Result<Figures, TcpError> {
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            socket::pin(SIDE, settings.server_cpu)?;
            let figures = serve(&connections, settings, reduce)?;
            stop.store(true, Ordering::Release);
            drop(connections);
            Ok(figures)
        });
        server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn serve(
    connections: &[TcpStream],
    settings: &Settings,
    reduce: &Reduce,
) -> Result<Figures, TcpError> {
    let size = settings.block_bytes;
    let mut memory = vec![0; size * connections.len()];
    let mut blocks: Vec<&mut [u8]> = memory.chunks_exact_mut(size).collect();
    let receivers = if settings.reply_all { connections } else { &connections[..1] };
    let replies = Replies::new(settings)?;
    let mut figures = Figures::default();
    let (mut block, mut first) = (0, None);
    let (mut start, mut length) = (Clocks::now()?, WARM_UP);
    while figures.gbps.len() < settings.samples {
        for (rank, (connection, part)) in connections.iter().zip(&mut blocks).enumerate() {
            read(connection, part).map_err(|e| failed(rank, block, e))?;
        }
        reduce.slices(&mut blocks, &[], false);
        replies.send(receivers, block, blocks[0])?;
        block += 1;
        if start.wall.elapsed() < length {
            continue;
        }
        let end = Clocks::now()?;
        if let Some(first) = first {
            let bytes = (size * connections.len()) as f64 * (block - first) as f64;
            let wall = (end.wall - start.wall).as_secs_f64();
            figures.gbps.push(bytes * 8.0 / 1e9 / wall);
            figures.cpu_s_per_gb.push((end.cpu - start.cpu).as_secs_f64() / (bytes / 1e9));
        }
        (start, first, length) = (end, Some(block), settings.time);
    }
    Ok(figures)
}

/// Reads a whole block.
fn read(connection: &TcpStream, block: &mut [u8]) -> Result<(), Errno> {
    let deadline = Instant::now() + STALL;
    let mut have = 0;
    while have < block.len() {
        match recv(connection.as_raw_fd(), &mut block[have..], MsgFlags::MSG_WAITALL) {
            Ok(0) => return Err(Errno::ECONNRESET),
            Ok(n) => have += n,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        // The socket's own time limit begins anew with every call.
        if have < block.len() && Instant::now() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
    }
    Ok(())
}

/// What became of the connection of `rank`.
pub(super) fn failed(rank: usize, block: u64, errno: Errno) -> TcpError {
    TcpError::connection(SIDE, rank, block, errno.into())
}

/// A moment, by the wall and by this thread's work.
struct Clocks {
    wall: Instant,
    cpu: Duration,
}

impl Clocks {
    fn now() -> Result<Self, TcpError> {
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        let failed = TcpError::system(SIDE, "read the thread's CPU time");
        Ok(Self { wall: Instant::now(), cpu: cpu.map_err(|e| failed(e.into()))?.into() })
    }
}
