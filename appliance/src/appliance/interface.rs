//! What the box must know of its network interface before it starts.

use crate::host;
use crate::nic::{KernelNic, Nic, NicError};
use nix::ifaddrs::getifaddrs;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long a link that an attached program has reset may take to come back.
const CARRIER_WAIT: Duration = Duration::from_secs(10);

/// What is wrong with the interface.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// There is none of that name.
    #[error("data.interface = \"{0}\": no such interface here (ip -br link lists them)")]
    Missing(String),
    /// Fewer queues than cores.
    #[error(
        "{interface} has {found} RX queues, data.queues = {needed} needs as many: \
         ethtool -L {interface} combined {needed}, or lower data.queues"
    )]
    Queues {
        /// Interface.
        interface: String,
        /// Queues that it has.
        found: usize,
        /// Queues that the configuration wants.
        needed: u16,
    },
    /// Packets of the configured size do not pass.
    #[error(
        "{interface} has MTU {found}, data.mtu = {needed} needs as much: \
         ip link set dev {interface} mtu {needed}, or lower data.mtu"
    )]
    Mtu {
        /// Interface.
        interface: String,
        /// Its MTU.
        found: u32,
        /// MTU of the configuration.
        needed: u16,
    },
    /// No address that workers could send to.
    #[error(
        "{interface} has no IP address: ip address add A.B.C.D/N dev {interface}, \
         or set data.addresses"
    )]
    NoAddress {
        /// Interface.
        interface: String,
    },
    /// The link is down.
    #[error(
        "{interface} has no carrier after {waited_s} s: ip link set dev {interface} up, and look at the cable"
    )]
    NoCarrier {
        /// Interface.
        interface: String,
        /// Seconds that it was waited for.
        waited_s: u64,
    },
    /// Zero-copy would cut packets.
    #[error(
        "{interface} ({driver}) fills {room} bytes of a frame of {frame_bytes} in zero-copy mode, \
         and packets have up to {needed}: in [data], set {setting}, or mode = \"copy\""
    )]
    FrameRoom {
        /// Interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// Bytes of a frame that the driver fills.
        room: u32,
        /// Bytes of a frame.
        frame_bytes: u32,
        /// Bytes of the longest packet, with its Ethernet header.
        needed: u32,
        /// What to set so that they fit.
        setting: String,
    },
    /// The interface's driver cannot be told.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The system does not tell.
    #[error("cannot read {what} of {interface}: {source}")]
    Read {
        /// Interface.
        interface: String,
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// The sysfs directory of an interface.
fn sysfs(interface: &str) -> PathBuf {
    PathBuf::from("/sys/class/net").join(interface)
}

/// Refuses an interface that does not exist, has too few queues or too small an MTU.
pub(super) fn check(interface: &str, mtu: u16, queues: u16) -> Result<(), InterfaceError> {
    let dir = sysfs(interface);
    if !dir.is_dir() {
        return Err(InterfaceError::Missing(interface.to_owned()));
    }
    let read = |what| {
        let interface = interface.to_owned();
        move |source| InterfaceError::Read { interface, what, source }
    };
    let found = fs::read_to_string(dir.join("mtu")).map_err(read("mtu"))?;
    let found = found.trim().parse().unwrap_or(0);
    if found < u32::from(mtu) {
        let interface = interface.to_owned();
        return Err(InterfaceError::Mtu { interface, found, needed: mtu });
    }
    let entries = fs::read_dir(dir.join("queues")).map_err(read("queues"))?;
    let found = entries
        .filter_map(Result::ok)
        .filter(|e| e.file_name().to_string_lossy().starts_with("rx-"))
        .count();
    if found < usize::from(queues) {
        let interface = interface.to_owned();
        return Err(InterfaceError::Queues { interface, found, needed: queues });
    }
    if found > usize::from(queues) {
        warn!(
            interface,
            found,
            used = queues,
            "more RX queues than cores: packets on the others never reach the box; \
             steer each shard's port to its queue (ethtool -N) or reduce the queues (ethtool -L)"
        );
    }
    Ok(())
}

/// Refuses a driver that in zero-copy mode fills less of a frame than a packet needs: it would
/// give such packets in pieces.
pub(super) fn check_room(
    interface: &str,
    mtu: u16,
    frame_bytes: u32,
) -> Result<(), InterfaceError> {
    let driver = KernelNic::open(interface)?.driver()?.name;
    let known = host::driver(&driver);
    let room = known.zero_copy_room(frame_bytes);
    let needed = u32::from(mtu) + host::LINK_BYTES;
    if room < needed {
        let (interface, setting) = (interface.to_owned(), known.zero_copy_setting(mtu.into()));
        return Err(InterfaceError::FrameRoom {
            interface,
            driver,
            room,
            frame_bytes,
            needed,
            setting,
        });
    }
    Ok(())
}

/// The interface's first global address of each family.
pub(super) fn addresses(interface: &str) -> Result<Vec<IpAddr>, InterfaceError> {
    let all = getifaddrs().map_err(|e| InterfaceError::Read {
        interface: interface.to_owned(),
        what: "addresses",
        source: e.into(),
    })?;
    let (mut v4, mut v6) = (None, None);
    for entry in all.filter(|a| a.interface_name == interface) {
        let Some(address) = entry.address else { continue };
        if let Some(ip) = address.as_sockaddr_in() {
            v4.get_or_insert(IpAddr::V4(ip.ip()));
        } else if let Some(ip) = address.as_sockaddr_in6().map(|a| a.ip())
            && !ip.is_unicast_link_local()
        {
            v6.get_or_insert(IpAddr::V6(ip));
        }
    }
    let found: Vec<_> = v4.into_iter().chain(v6).collect();
    if found.is_empty() {
        return Err(InterfaceError::NoAddress { interface: interface.to_owned() });
    }
    Ok(found)
}

/// Waits until the link is up: attaching a program resets it with some drivers.
pub(super) fn wait_for_carrier(interface: &str) -> Result<(), InterfaceError> {
    let started = Instant::now();
    let carrier = sysfs(interface).join("carrier");
    // Reading it fails while the interface is down.
    while fs::read_to_string(&carrier).map_or(true, |c| c.trim() != "1") {
        if started.elapsed() > CARRIER_WAIT {
            let waited_s = CARRIER_WAIT.as_secs();
            return Err(InterfaceError::NoCarrier { interface: interface.to_owned(), waited_s });
        }
        thread::sleep(Duration::from_millis(20));
    }
    let waited_ms = started.elapsed().as_millis();
    if waited_ms > 50 {
        info!(interface, waited_ms, "carrier is back");
    }
    Ok(())
}
