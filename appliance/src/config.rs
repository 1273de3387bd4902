//! The configuration of the box: one TOML file, read once at start.
//!
//! Every field, with its meaning, unit, range and default, is in `configs/reference.toml`.
//! A field that is unknown or impossible is refused with file, line and reason.
#![forbid(unsafe_code)]

mod check;
mod error;
mod file;
mod groups;
#[cfg(test)]
mod tests;

pub use crate::dataplane::faults::Faults;
pub use error::ConfigError;
pub use file::{Attach, Idle, Level, Transmit, UdpChecksum, XdpMode};
pub use groups::Groups;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Most queues (cores, shards) of one box.
pub const MAX_QUEUES: u16 = 64;

/// Frames of a core that are on their way between two rings, beyond what the rings hold.
const BATCH_FRAMES: u64 = 256;

/// The whole configuration, checked, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Control plane.
    pub control: ControlConfig,
    /// Data plane.
    pub data: DataConfig,
    /// Fault injector, where one is asked for.
    pub faults: Option<Faults>,
    /// Least severe level that is logged.
    pub level: Level,
}

/// Section `[control]`.
#[derive(Clone, PartialEq, Eq)]
pub struct ControlConfig {
    /// Where HTTP is served.
    pub listen: SocketAddr,
    /// What a join must bring, if anything. Never shown.
    pub token: Option<String>,
    /// A job without a packet for so long is removed.
    pub idle_timeout: Duration,
    /// A member of a forming generation that does not repeat its join for so long is dropped.
    pub join_timeout: Duration,
}

impl std::fmt::Debug for ControlConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlConfig")
            .field("listen", &self.listen)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("idle_timeout", &self.idle_timeout)
            .field("join_timeout", &self.join_timeout)
            .finish()
    }
}

/// Section `[data]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataConfig {
    /// How packets reach the box.
    pub port: PortConfig,
    /// Addresses that workers send to, at most one of each family. Empty for XDP where they are
    /// to be taken from the interface.
    pub addresses: Vec<IpAddr>,
    /// Multicast groups for the results of jobs that want them.
    pub groups: Groups,
    /// UDP port of shard 0; shard `s` has `port_base + s`, and groups have the one behind the last,
    /// at most 65535.
    pub port_base: u16,
    /// Cores, 1 to [`MAX_QUEUES`]: each has one queue, one UMEM and one shard.
    pub queues: u16,
    /// CPUs that the cores are pinned to, in order: none, or `queues` of them.
    pub cpus: Vec<usize>,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// Payload bytes of a full chunk, from the MTU.
    pub chunk_bytes: u16,
    /// Bytes of one frame, 2048 or 4096: at least what the MTU needs.
    pub frame_bytes: u32,
    /// Frames of each core.
    pub frames: u64,
    /// Sizes of the rings.
    pub rings: Rings,
    /// Whether the UMEM is to lie in reserved 2 MiB pages.
    pub huge_pages: bool,
    /// What a core does when it has nothing to do.
    pub idle: Idle,
    /// UDP checksum of what the box sends over IPv4 by XDP.
    pub udp_checksum: UdpChecksum,
}

/// How packets reach the box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortConfig {
    /// AF_XDP.
    Xdp {
        /// Network interface.
        interface: String,
        /// Zero-copy, copy, or the better one that the driver can do.
        mode: XdpMode,
        /// Where the XDP program runs.
        attach: Attach,
        /// What sends the answers.
        transmit: Transmit,
    },
    /// Ordinary UDP sockets.
    Udp,
}

/// Entries of each ring of a core, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Fill ring: frames lent to the kernel for packets to come.
    pub fill: u32,
    /// RX ring.
    pub rx: u32,
    /// TX ring.
    pub tx: u32,
    /// Completion ring.
    pub completion: u32,
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// Where it cannot be read, is not TOML, or asks for something unknown or impossible. The
    /// message has the file, the line and what to change.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Checks `text`, the content of the file at `path`; `path` is for messages only.
    ///
    /// # Errors
    /// As [`load`](Self::load), without those of reading.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        check::config(text, path)
    }

    /// Bytes of one frame: 2048 or 4096.
    #[must_use]
    pub const fn frame_bytes(&self) -> u32 {
        self.data.frame_bytes
    }

    /// Frames of each core's UMEM.
    #[must_use]
    pub const fn frames_per_core(&self) -> u64 {
        self.data.frames
    }

    /// Frames of each core that jobs may reserve: all but [`Rings::reserve`]. At least 1.
    #[must_use]
    pub const fn job_frames_per_core(&self) -> u64 {
        self.data.frames - self.data.rings.reserve()
    }
}

impl Rings {
    /// Frames that a core keeps from its jobs, so that packets can always come and answers go:
    /// a full fill ring, a full TX ring and a batch between them.
    #[must_use]
    pub const fn reserve(&self) -> u64 {
        self.fill as u64 + self.tx as u64 + BATCH_FRAMES
    }
}
