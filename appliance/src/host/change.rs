//! One change of the machine, with what was before.

use crate::nic::{HashFields, UdpFlow};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Directory of the numbers of 2 MiB pages, below the root.
pub(super) const HUGE_PAGES: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";

/// File of a CPU's frequency governor, below the root.
pub(super) fn governor_file(cpu: usize) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")
}

/// Numbers of queues; `None` for kinds that are left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// For both directions.
    pub combined: Option<u32>,
    /// RX alone.
    pub rx: Option<u32>,
    /// TX alone.
    pub tx: Option<u32>,
}

impl Queues {
    /// As ethtool takes and a person reads it: `rx 2 tx 2`.
    fn words(self) -> String {
        let kinds = [("combined", self.combined), ("rx", self.rx), ("tx", self.tx)];
        let mut out = String::new();
        for (kind, count) in kinds {
            if let Some(count) = count {
                let space = if out.is_empty() { "" } else { " " };
                // Writing to a string cannot fail.
                let _ = write!(out, "{space}{kind} {count}");
            }
        }
        out
    }
}

/// One change of the machine, with what was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// MTU, bytes.
    Mtu {
        /// Before.
        was: u32,
        /// After.
        to: u32,
    },
    /// Set up; it was down.
    Up,
    /// An offload is switched; it was the other way round.
    Feature {
        /// The kernel's name.
        name: String,
        /// On or off.
        to: bool,
    },
    /// The card's RX rings, entries.
    RxRing {
        /// Before.
        was: u32,
        /// After.
        to: u32,
    },
    /// The card's TX rings, entries.
    TxRing {
        /// Before.
        was: u32,
        /// After.
        to: u32,
    },
    /// Numbers of queues.
    Queues {
        /// Before: the same kinds as after.
        was: Queues,
        /// After.
        to: Queues,
    },
    /// A rule that is in the way is removed.
    RemoveRule {
        /// The card's number of it.
        location: u32,
        /// What it matches: UDP over which IP.
        flow: UdpFlow,
        /// Destination port.
        port: u16,
        /// Where it steers to.
        queue: u32,
    },
    /// A rule that was not there is added.
    AddRule {
        /// UDP over which IP.
        flow: UdpFlow,
        /// Destination port.
        port: u16,
        /// Where it steers to.
        queue: u32,
    },
    /// What the card hashes to choose a queue.
    Hash {
        /// UDP over which IP.
        flow: UdpFlow,
        /// Before.
        was: HashFields,
        /// After.
        to: HashFields,
    },
    /// Where an interrupt goes.
    Interrupt {
        /// Number of the interrupt.
        irq: u32,
        /// RX queue that it is of.
        queue: u32,
        /// CPUs before.
        was: String,
        /// CPUs after.
        to: String,
    },
    /// How the frequency of a CPU is chosen.
    Governor {
        /// Number of the CPU.
        cpu: usize,
        /// Governor before.
        was: String,
        /// Governor after.
        to: String,
    },
    /// Reserved pages of 2 MiB. What is taken back is the difference.
    HugePages {
        /// Before.
        was: u64,
        /// After.
        to: u64,
    },
}

impl Change {
    /// Whether both set the same thing.
    #[must_use]
    pub fn same_thing(&self, other: &Self) -> bool {
        use Change as C;
        match (self, other) {
            (C::Mtu { .. }, C::Mtu { .. })
            | (C::Up, C::Up)
            | (C::RxRing { .. }, C::RxRing { .. })
            | (C::TxRing { .. }, C::TxRing { .. })
            | (C::HugePages { .. }, C::HugePages { .. }) => true,
            (C::Queues { was: a, .. }, C::Queues { was: b, .. }) => {
                let kinds = |q: &Queues| [q.combined, q.rx, q.tx].map(|n| n.is_some());
                kinds(a) == kinds(b)
            }
            (C::Feature { name: a, .. }, C::Feature { name: b, .. }) => a == b,
            (C::Hash { flow: a, .. }, C::Hash { flow: b, .. }) => a == b,
            (C::Interrupt { irq: a, .. }, C::Interrupt { irq: b, .. }) => a == b,
            (C::Governor { cpu: a, .. }, C::Governor { cpu: b, .. }) => a == b,
            (C::AddRule { .. }, C::AddRule { .. })
            | (C::RemoveRule { .. }, C::RemoveRule { .. }) => self == other,
            _ => false,
        }
    }

    /// What is changed, in words.
    #[must_use]
    pub fn thing(&self, interface: &str) -> String {
        match self {
            Self::Mtu { .. } => format!("MTU of {interface}"),
            Self::Up => interface.to_owned(),
            Self::Feature { name, .. } => format!("{name} of {interface}"),
            Self::RxRing { .. } => format!("rx ring of {interface}"),
            Self::TxRing { .. } => format!("tx ring of {interface}"),
            Self::Queues { .. } => format!("queues of {interface}"),
            Self::RemoveRule { flow, port, .. } | Self::AddRule { flow, port, .. } => {
                format!("rule for {} port {port} of {interface}", flow.name())
            }
            Self::Hash { flow, .. } => format!("hash of {} of {interface}", flow.name()),
            Self::Interrupt { irq, queue, .. } => {
                format!("CPU of interrupt {irq} (queue {queue} of {interface})")
            }
            Self::Governor { cpu, .. } => format!("frequency governor of CPU {cpu}"),
            Self::HugePages { .. } => "huge pages of 2 MiB".to_owned(),
        }
    }

    /// Value before, in words.
    #[must_use]
    pub fn before(&self) -> String {
        match self {
            Self::Mtu { was, .. } | Self::RxRing { was, .. } | Self::TxRing { was, .. } => {
                was.to_string()
            }
            Self::Up => "down".to_owned(),
            Self::Feature { to, .. } => on(!to).to_owned(),
            Self::Queues { was, .. } => was.words(),
            Self::RemoveRule { queue, .. } => format!("queue {queue}"),
            Self::AddRule { .. } => "none".to_owned(),
            Self::Hash { was, .. } => hashed(*was).to_owned(),
            Self::Interrupt { was, .. } | Self::Governor { was, .. } => was.clone(),
            Self::HugePages { was, .. } => was.to_string(),
        }
    }

    /// Value after, in words.
    #[must_use]
    pub fn after(&self) -> String {
        match self {
            Self::Mtu { to, .. } | Self::RxRing { to, .. } | Self::TxRing { to, .. } => {
                to.to_string()
            }
            Self::Up => "up".to_owned(),
            Self::Feature { to, .. } => on(*to).to_owned(),
            Self::Queues { to, .. } => to.words(),
            Self::RemoveRule { .. } => "none".to_owned(),
            Self::AddRule { queue, .. } => format!("queue {queue}"),
            Self::Hash { to, .. } => hashed(*to).to_owned(),
            Self::Interrupt { to, .. } | Self::Governor { to, .. } => to.clone(),
            Self::HugePages { to, .. } => to.to_string(),
        }
    }

    /// The command that does it, for a root's shell.
    #[must_use]
    pub fn command(&self, interface: &str) -> String {
        match self {
            Self::Mtu { to, .. } => format!("ip link set dev {interface} mtu {to}"),
            Self::Up => format!("ip link set dev {interface} up"),
            Self::Feature { name, to } => format!("ethtool -K {interface} {name} {}", on(*to)),
            Self::RxRing { to, .. } => format!("ethtool -G {interface} rx {to}"),
            Self::TxRing { to, .. } => format!("ethtool -G {interface} tx {to}"),
            Self::Queues { to, .. } => format!("ethtool -L {interface} {}", to.words()),
            Self::RemoveRule { location, .. } => {
                format!("ethtool -N {interface} delete {location}")
            }
            Self::AddRule { flow, port, queue } => format!(
                "ethtool -N {interface} flow-type {} dst-port {port} action {queue}",
                flow.name()
            ),
            Self::Hash { flow, to, .. } => {
                format!("ethtool -N {interface} rx-flow-hash {} {}", flow.name(), letters(*to))
            }
            Self::Interrupt { irq, to, .. } => {
                format!("echo {to} > /proc/irq/{irq}/smp_affinity_list")
            }
            Self::Governor { cpu, to, .. } => format!("echo {to} > /{}", governor_file(*cpu)),
            Self::HugePages { to, .. } => format!("echo {to} > /{HUGE_PAGES}/nr_hugepages"),
        }
    }
}

/// A switch in words.
pub(super) const fn on(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// What is hashed, in words.
pub(super) const fn hashed(fields: HashFields) -> &'static str {
    match (fields.addresses, fields.ports) {
        (true, true) => "addresses and ports",
        (true, false) => "addresses",
        (false, true) => "ports",
        (false, false) => "nothing",
    }
}

/// What is hashed, as ethtool takes it.
const fn letters(fields: HashFields) -> &'static str {
    match (fields.addresses, fields.ports) {
        (true, true) => "sdfn",
        (true, false) => "sd",
        (false, true) => "fn",
        (false, false) => "r",
    }
}
