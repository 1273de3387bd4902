//! What an interface tells of itself.

use serde::{Deserialize, Serialize};

/// Who drives the interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// Name of the driver, as `ethtool -i` says it (`mlx5_core`, `ice`, `veth`); empty where the
    /// kernel names none, as for loopback.
    pub name: String,
    /// Place on the bus (`0000:3b:00.0`), where there is one.
    pub bus: Option<String>,
    /// Version of the card's firmware, where the driver tells.
    pub firmware: Option<String>,
}

/// An XDP program that is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct XdpAttached {
    /// The kernel's number of the program.
    pub program: u32,
    /// Whether it runs in the network stack ("generic") rather than in the driver.
    pub generic: bool,
}

/// State of the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Index of the interface.
    pub index: u32,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Smallest MTU that the driver takes, where it tells.
    pub mtu_min: Option<u32>,
    /// Largest MTU that the driver takes, where it tells.
    pub mtu_max: Option<u32>,
    /// Administratively up.
    pub up: bool,
    /// The other end is there.
    pub carrier: bool,
    /// Megabits per second, where known.
    pub speed_mbps: Option<u32>,
    /// RX queues in use (directories `rx-*` in sysfs).
    pub rx_queues: u32,
    /// TX queues in use.
    pub tx_queues: u32,
    /// NUMA node of the card, on machines with several.
    pub numa_node: Option<u32>,
    /// The XDP program, if there is one.
    pub xdp: Option<XdpAttached>,
}

/// What the driver says of XDP; see `Documentation/netlink/specs/netdev.yaml` in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct XdpFeatures {
    /// Programs run in the driver.
    pub basic: bool,
    /// Programs may redirect, as AF_XDP needs.
    pub redirect: bool,
    /// AF_XDP zero-copy. The bind may refuse it all the same.
    pub zero_copy: bool,
    /// Packets in several buffers.
    pub rx_sg: bool,
    /// Buffers of one packet in zero-copy mode, where the kernel tells.
    pub zero_copy_max_segments: Option<u32>,
}

/// Entries of the card's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    /// RX ring of each queue.
    pub rx: u32,
    /// The largest that can be set.
    pub rx_max: u32,
    /// TX ring of each queue.
    pub tx: u32,
    /// The largest that can be set.
    pub tx_max: u32,
}

/// Queues, as `ethtool -l` counts them. A maximum of 0: there is none of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// For both directions.
    pub combined: u32,
    /// The most that can be set.
    pub combined_max: u32,
    /// RX alone.
    pub rx: u32,
    /// The most that can be set.
    pub rx_max: u32,
    /// TX alone.
    pub tx: u32,
    /// The most that can be set.
    pub tx_max: u32,
}

/// An offload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// The kernel's name: `rx-gro`, `rx-lro`, `rx-gro-hw`, `rx-vlan-hw-parse`, `rx-ntuple-filter`.
    pub name: String,
    /// In effect.
    pub on: bool,
    /// Whether it can be switched.
    pub changeable: bool,
}

/// UDP over which IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UdpFlow {
    /// IPv4.
    Udp4,
    /// IPv6.
    Udp6,
}

impl UdpFlow {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Udp4, Self::Udp6];

    /// Name, as ethtool knows it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp4 => "udp4",
            Self::Udp6 => "udp6",
        }
    }
}

/// A rule that steers packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The card's number of it.
    pub location: u32,
    /// What it matches, where that is UDP with a destination port and nothing else.
    pub matches: Option<(UdpFlow, u16)>,
    /// Queue that such packets go to; `None` where they are dropped or go to a virtual function.
    pub queue: Option<u32>,
}

/// What is hashed to choose a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashFields {
    /// Both IP addresses.
    pub addresses: bool,
    /// Both UDP ports.
    pub ports: bool,
}

/// Interrupt of an RX queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupt {
    /// Queue.
    pub queue: u32,
    /// Number of the interrupt.
    pub irq: u32,
    /// CPUs that it may go to, a list as in `0-3,7`.
    pub cpus: String,
}
