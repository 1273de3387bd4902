//! The configuration file as it is written: what may be absent, and where each value stands.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use toml::Spanned;

/// A value that may be absent, with its place in the file.
pub(super) type Field<T> = Option<Spanned<T>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) control: Control,
    pub(super) data: Spanned<Data>,
    pub(super) faults: Option<Faults>,
    #[serde(default)]
    pub(super) log: Log,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Control {
    pub(super) listen: Field<SocketAddr>,
    pub(super) token: Field<String>,
    pub(super) idle_timeout_s: Field<u64>,
    pub(super) join_timeout_s: Field<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Data {
    pub(super) port: Field<Port>,
    pub(super) interface: Field<String>,
    pub(super) mode: Field<XdpMode>,
    pub(super) attach: Field<Attach>,
    pub(super) transmit: Field<Transmit>,
    pub(super) udp_checksum: Field<UdpChecksum>,
    pub(super) addresses: Field<Vec<Spanned<IpAddr>>>,
    pub(super) multicast: Field<Vec<Spanned<String>>>,
    pub(super) port_base: Field<u16>,
    pub(super) queues: Field<u16>,
    pub(super) cpus: Field<Vec<Spanned<usize>>>,
    pub(super) mtu: Field<u16>,
    pub(super) frames: Field<u64>,
    pub(super) frame_bytes: Field<u32>,
    pub(super) memory_mib: Field<u64>,
    pub(super) fill_ring: Field<u32>,
    pub(super) rx_ring: Field<u32>,
    pub(super) tx_ring: Field<u32>,
    pub(super) completion_ring: Field<u32>,
    pub(super) huge_pages: Field<bool>,
    pub(super) idle: Field<Idle>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Faults {
    pub(super) loss: Field<f64>,
    pub(super) duplicate: Field<f64>,
    pub(super) reorder: Field<f64>,
    pub(super) seed: Field<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    pub(super) level: Field<Level>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Port {
    Xdp,
    Udp,
}

/// Which AF_XDP mode is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Zero-copy where the driver can, else copy.
    #[default]
    Auto,
    /// Zero-copy or nothing.
    Zerocopy,
    /// Copy.
    Copy,
}

/// Where in the kernel the XDP program runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// In the driver.
    #[default]
    Driver,
    /// In the network stack: any interface, several times slower.
    Skb,
}

/// What sends the answers of the `xdp` port.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Transmit {
    /// The ring in zero-copy mode; in copy mode sockets where they can be had, else the ring.
    #[default]
    Auto,
    /// The AF_XDP socket's TX ring.
    Ring,
    /// Ordinary UDP sockets, many answers to one worker in one message.
    Socket,
}

impl Transmit {
    /// Name in configuration and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ring => "ring",
            Self::Socket => "socket",
        }
    }
}

impl std::str::FromStr for Transmit {
    type Err = &'static str;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let of_name = |t: &Self| t.name() == name;
        let all = [Self::Auto, Self::Ring, Self::Socket];
        all.into_iter().find(of_name).ok_or("needs auto, ring or socket")
    }
}

/// What a core does when it has nothing to do.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Looks again at once: the CPU is always busy, the latency least.
    #[default]
    Spin,
    /// Sleeps in poll(2) until a packet comes.
    Poll,
}

/// The UDP checksum of what the box sends over IPv4. Over IPv6 it is always full.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum UdpChecksum {
    /// None: zero, which IPv4 allows.
    #[default]
    Zero,
    /// Computed.
    Full,
}

/// Least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Errors alone.
    Error,
    /// And warnings.
    Warn,
    /// And one line for each join, leave and change.
    #[default]
    Info,
    /// And details.
    Debug,
    /// And everything.
    Trace,
}

impl Level {
    /// Name, as `tracing` knows it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
