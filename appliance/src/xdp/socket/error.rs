//! Why there is no AF_XDP socket, in words for the operator.

use crate::dataplane::umem::UmemError;
use std::io;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A number that xsk-rs or the kernel does not take.
    #[error("queue {queue} of {interface}: {reason}")]
    Setting {
        /// Interface asked for.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// What is wrong with which number.
        reason: String,
    },
    /// The UMEM cannot be registered.
    #[error(
        "cannot make a UMEM of {bytes} bytes for queue {queue} of {interface}: {reason}; \
         AF_XDP needs CAP_IPC_LOCK or a memlock limit above that, \
         and data.huge_pages needs {pages} free 2 MiB pages (sysctl vm.nr_hugepages)"
    )]
    Umem {
        /// Interface asked for.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// Bytes asked for.
        bytes: u64,
        /// Huge pages that would be.
        pages: u64,
        /// What the kernel said.
        reason: String,
    },
    /// The memory has impossible numbers.
    #[error(transparent)]
    Frames(#[from] UmemError),
    /// Somebody else has the queue.
    #[error(
        "queue {queue} of {interface} is in use by another AF_XDP socket ({waited_ms} ms waited): \
         stop the other process (ss --xdp -p, or bpftool net, name it)"
    )]
    Busy {
        /// Interface asked for.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// How long it was waited for.
        waited_ms: u128,
    },
    /// The driver has no zero-copy, and nothing else was allowed.
    #[error(
        "{interface} refuses zero-copy on queue {queue} ({source}): \
         use a driver that has it, or set data.mode to \"auto\" or \"copy\""
    )]
    NoZeroCopy {
        /// Interface asked for.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The bind failed for another reason.
    #[error(
        "cannot bind AF_XDP to queue {queue} of {interface}: {source}; \
         does the interface have that queue (ethtool -l {interface}), \
         and this process CAP_NET_RAW?"
    )]
    Bind {
        /// Interface asked for.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The rings cannot be mapped or the mode cannot be read back.
    #[error("AF_XDP socket on queue {queue} of {interface}: {what}: {source}")]
    Socket {
        /// Interface asked for.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The system's error inside one of xsk-rs's.
pub(super) fn source_of(error: &dyn std::error::Error) -> io::Error {
    error
        .source()
        .and_then(|e| e.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error)
        .map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
