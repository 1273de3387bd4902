//! Why there is no network.

use super::MAX_WORKERS;
use std::io;

/// Why there is no network, or a command in it failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Namespaces are for root.
    #[error("cannot {what}: {source}; network namespaces need root (CAP_SYS_ADMIN, CAP_NET_ADMIN)")]
    Namespace {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program that is not installed.
    #[error("{program} is not installed: apt-get install {package}")]
    Missing {
        /// The program.
        program: String,
        /// Debian's package that has it.
        package: String,
    },
    /// A program that does not start.
    #[error("cannot run `{command}`: {source}")]
    Start {
        /// The command.
        command: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A command that failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it complained of.
        stderr: String,
    },
    /// A command that did not end, and was killed.
    #[error("`{command}` has not ended after {seconds} s and was killed")]
    Slow {
        /// The command.
        command: String,
        /// Seconds that it was waited for.
        seconds: u64,
    },
    /// A number of workers that has no addresses.
    #[error("{found} workers: a network has 1 to {MAX_WORKERS}")]
    Workers {
        /// Workers asked for.
        found: u8,
    },
    /// An interface that does not come up.
    #[error("{interface} has no carrier after {seconds} s: is the kernel's veth driver in order?")]
    NoCarrier {
        /// The interface.
        interface: String,
        /// Seconds that it was waited for.
        seconds: u64,
    },
}
