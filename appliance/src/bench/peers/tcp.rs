//! A TCP aggregator, as good as we could make it: what the box is compared with.
//!
//! One thread on one CPU has a connection per worker. It reads a block of every worker's gradient,
//! in rank order, sums them with the box's own kernels, and writes the sum back. The workers stream:
//! each has a window of several blocks on the way, so nobody waits for a round trip.
//!
//! `aggregator` and `replies` are the server, which is what is measured; `load` is the workers,
//! `socket` the connections.

mod aggregator;
mod error;
mod load;
mod replies;
mod socket;
#[cfg(test)]
mod tests;

pub use error::{Side, TcpError};

use crate::bench::network::{MAX_WORKERS, Pair};
use crate::sum::{Isa, Reduce};
use aggregator::Figures;
use gradbox_protocol::{DType, Op};
use socket::Connections;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

/// Longest wait for a peer.
pub const STALL: Duration = Duration::from_secs(5);

/// The congestion control of all connections.
pub const CONGESTION: &str = "cubic";

/// What is measured, and how.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Workers: 1 to 32.
    pub workers: u8,
    /// Element type of the gradients; they are summed.
    pub dtype: DType,
    /// Whether every worker gets the sum. Otherwise it is written once, to rank 0: what is left of
    /// the work where the network could multicast.
    pub reply_all: bool,
    /// Bytes of a block: whole elements, up to 1 MiB.
    pub block_bytes: usize,
    /// Blocks that a worker sends ahead of the sums that it has read: 2 to 64.
    pub window: usize,
    /// Whether replies are sent from one copy in memory (sendfile) instead of a copy for each.
    pub zero_copy: bool,
    /// How long each sample takes, above zero.
    pub time: Duration,
    /// Samples, 1 or more, after a fifth of a second to warm up.
    pub samples: usize,
    /// CPU of the aggregator.
    pub server_cpu: usize,
    /// CPU of all workers.
    pub client_cpu: usize,
}

impl Settings {
    /// The block, the window and the way to reply that were the fastest of those that we tried, with
    /// `offloads` on or off; and five samples of a second each, on CPUs 0 and 1.
    ///
    /// A block is one or two of the longest segments that a MTU of 1500 allows (45 x 1448 bytes): with
    /// 64 KiB, each would drag a tiny one behind it. Without offloads, copies are cheaper than pages
    /// (which the kernel then copies itself), and many replies on the way at once cost more.
    #[must_use]
    pub const fn tuned(workers: u8, dtype: DType, reply_all: bool, offloads: bool) -> Self {
        const SEGMENT: usize = 45 * 1448;
        let (block_bytes, window) = match (offloads || !reply_all, workers) {
            (true, ..=8) => (2 * SEGMENT, 8),
            (true, _) => (SEGMENT, 8),
            (false, ..=8) => (SEGMENT, 4),
            (false, _) => (SEGMENT / 2, 4),
        };
        Self {
            workers,
            dtype,
            reply_all,
            block_bytes,
            window,
            zero_copy: offloads && reply_all,
            time: Duration::from_secs(1),
            samples: 5,
            server_cpu: 0,
            client_cpu: 1,
        }
    }
}

/// What was measured, a value per sample.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Payload that was summed and answered, of all workers together, in 1e9 bits per second.
    pub gbps: Vec<f64>,
    /// CPU seconds of the aggregator's thread per 1e9 bytes of that payload. As everywhere in Linux,
    /// this has the kernel's work for what the thread sends, and on a veth link that is also the
    /// receiving of it at the other end.
    pub cpu_s_per_gb: Vec<f64>,
    /// Blocks of which every bit was compared with [`crate::sum::reference()`].
    pub checked: u64,
    /// The vector unit of the sums.
    pub isa: Isa,
}

/// Measures the aggregator between the ends of `pair`, whose offloads are as the caller left them.
///
/// # Errors
/// A setting out of range, a CPU that is not there, a peer that is gone or does nothing for
/// [`STALL`], or wrong bits.
pub fn measure(pair: &Pair, settings: &Settings) -> Result<Samples, TcpError> {
    check(settings)?;
    between(socket::connect(pair, settings.workers)?, settings)
}

/// Measures the aggregator over connections that are there.
fn between(connections: Connections, settings: &Settings) -> Result<Samples, TcpError> {
    let Connections { servers, clients } = connections;
    let isa = Isa::detect();
    let reduce = Reduce::select(isa, settings.dtype, Op::Sum, servers.len())?;
    let stop = AtomicBool::new(false);
    let (served, loaded) = thread::scope(|scope| {
        let load = scope.spawn(|| load::run(clients, settings, &stop));
        let served = aggregator::run(servers, settings, &reduce, &stop);
        let loaded = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (served, loaded)
    });
    // Who ends early closes the connections of the other: that says less than why it ended.
    match (served, loaded) {
        (Ok(Figures { gbps, cpu_s_per_gb }), Ok(checked)) => {
            Ok(Samples { gbps, cpu_s_per_gb, checked, isa })
        }
        (Err(TcpError::Closed { .. }) | Ok(_), Err(error)) | (Err(error), _) => Err(error),
    }
}

fn check(settings: &Settings) -> Result<(), TcpError> {
    let Settings { workers, block_bytes, .. } = *settings;
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(TcpError::workers(workers));
    }
    if !(1..=1 << 20).contains(&block_bytes) || !block_bytes.is_multiple_of(settings.dtype.size()) {
        return Err(TcpError::setting("block_bytes", block_bytes, "whole elements, up to 1 MiB"));
    }
    if !(2..=64).contains(&settings.window) {
        return Err(TcpError::setting("window", settings.window, "2 to 64 blocks"));
    }
    if settings.samples == 0 {
        return Err(TcpError::setting("samples", 0, "1 or more"));
    }
    if settings.time.is_zero() {
        return Err(TcpError::setting("time", "0", "above zero"));
    }
    Ok(())
}
