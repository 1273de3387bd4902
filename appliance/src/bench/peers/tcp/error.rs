//! Why a TCP aggregator was not measured.

use super::STALL;
use crate::bench::network::{MAX_WORKERS, NetworkError};
use crate::sum::SumError;
use std::io;

/// Why a TCP aggregator was not measured.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// A setting out of its range.
    #[error("{name} = {found}: must be {needed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        needed: String,
    },
    /// The network is not there.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// There is no kernel for the sum.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// The system refuses something.
    #[error("TCP {side}: cannot {what}: {source}")]
    System {
        /// `aggregator` or `workers`.
        side: Side,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A CPU that a thread cannot be pinned to.
    #[error("TCP {side}: cannot run on CPU {cpu}: is it online, and allowed here (taskset -p $$)?")]
    Cpu {
        /// Whose thread.
        side: Side,
        /// The CPU.
        cpu: usize,
    },
    /// Nothing moves any more.
    #[error("TCP {side}: nothing from or to worker {rank} for {} s, in block {block}", STALL.as_secs())]
    Stalled {
        /// Who waits.
        side: Side,
        /// Rank of the connection; with the workers, the first that is behind.
        rank: usize,
        /// The block that is waited for.
        block: u64,
    },
    /// The other end is gone.
    #[error("TCP {side}: the connection of worker {rank} was closed in block {block}")]
    Closed {
        /// Who found it.
        side: Side,
        /// Rank of the connection.
        rank: usize,
        /// The block that was on its way.
        block: u64,
    },
    /// A sum that is not that of the reference.
    #[error("TCP: block {block} came back to worker {rank} with other bits than the reference has")]
    Bits {
        /// Rank of the connection.
        rank: usize,
        /// The block.
        block: u64,
    },
}

/// An end of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server.
    Aggregator,
    /// The clients.
    Workers,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Aggregator => "aggregator",
            Self::Workers => "workers",
        })
    }
}

impl TcpError {
    /// A setting out of its range.
    pub(super) fn setting(name: &'static str, found: impl ToString, needed: &str) -> Self {
        Self::Setting { name, found: found.to_string(), needed: needed.to_owned() }
    }

    /// The number of workers out of its range.
    pub(super) fn workers(found: u8) -> Self {
        Self::setting("workers", found, &format!("1 to {MAX_WORKERS}"))
    }

    /// What the system refused to `side`.
    pub(super) fn system(side: Side, what: &'static str) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::System { side, what, source }
    }

    /// What became of a connection.
    pub(super) fn connection(side: Side, rank: usize, block: u64, source: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, WouldBlock};
        match source.kind() {
            WouldBlock | TimedOut => Self::Stalled { side, rank, block },
            BrokenPipe | ConnectionAborted | ConnectionReset => Self::Closed { side, rank, block },
            _ => Self::System { side, what: "read or write a connection", source },
        }
    }
}
