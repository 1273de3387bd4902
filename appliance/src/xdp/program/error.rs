//! What can go wrong with the XDP program, and what to do about it.

use std::{error::Error as StdError, io, net::IpAddr};

use aya::{maps::MapError, programs::ProgramError};

use super::Mode;

/// Why the program could not be loaded, attached or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ports of the settings are not a range.
    #[error(
        "shard ports {base} + {count}: needed at least one port, and none above 65535; \
         lower the port base or the number of shards"
    )]
    Ports {
        /// `port_base` of the settings.
        base: u16,
        /// `port_count` of the settings.
        count: u16,
    },
    /// The kernel refused for want of a capability.
    #[error(
        "{doing}: permission denied; needed CAP_BPF and CAP_NET_ADMIN: run as root, or give the \
         service AmbientCapabilities=CAP_BPF CAP_NET_ADMIN"
    )]
    Permission {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The kernel does not take the program.
    #[error(
        "the kernel refused the XDP program: {}; needed Linux 6.6 or newer with CONFIG_BPF_SYSCALL \
         and CONFIG_XDP_SOCKETS: compare `uname -r`, and report this if it is newer",
        chain(source.as_ref())
    )]
    Refused {
        /// The kernel's answer, with the verifier's log where it gave one.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The committed object lacks something that this loader needs.
    #[error(
        "the built-in XDP object has no {kind} named {name}: it is older than this binary's \
         source; run xdp-redirect/rebuild.sh and build again"
    )]
    Object {
        /// "program" or "map".
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// No such interface in this network namespace.
    #[error(
        "interface {interface:?}: found none of that name in this network namespace; \
         `ip -br link` lists those there are"
    )]
    NoInterface {
        /// The name asked for.
        interface: String,
    },
    /// Another XDP program is on the interface.
    #[error(
        "interface {interface}: another XDP program is attached, and only one can be; \
         `ip -d link show {interface}` names it, `ip link set dev {interface} xdp off` removes it \
         (or ending the process that attached it, if that holds it by a BPF link)"
    )]
    Busy {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        #[source]
        source: ProgramError,
    },
    /// The driver has no XDP in this mode.
    #[error(
        "interface {interface}: its driver cannot run XDP in {mode} mode with packets of several \
         buffers; `ethtool -i {interface}` names the driver; choose skb mode explicitly if slow is \
         better than nothing"
    )]
    Unsupported {
        /// The interface.
        interface: String,
        /// The mode asked for.
        mode: Mode,
        /// The kernel's answer.
        #[source]
        source: ProgramError,
    },
    /// The kernel attached, but not by a link, so a killed process would leave the program behind.
    #[error(
        "interface {interface}: the kernel has no BPF links for XDP, so nothing was attached; \
         needed Linux 6.6 or newer, compare `uname -r`"
    )]
    NoLink {
        /// The interface.
        interface: String,
    },
    /// The kernel did not attach, for another reason.
    #[error(
        "interface {interface}: attaching in {mode} mode failed: {}; the driver's reason may be \
         in `dmesg` (an MTU too large for XDP and too few queues are usual ones)",
        chain(source)
    )]
    Attach {
        /// The interface.
        interface: String,
        /// The mode asked for.
        mode: Mode,
        /// The kernel's answer.
        #[source]
        source: ProgramError,
    },
    /// The socket map has no place for this queue.
    #[error(
        "queue {queue}: found no place for its socket, the program serves queues 0 to {}; \
         use fewer: `ethtool -L INTERFACE combined {limit}`",
        limit - 1
    )]
    Queue {
        /// The queue asked for.
        queue: u32,
        /// Number of queues that the program serves.
        limit: u32,
    },
    /// The kernel did not take the socket.
    #[error(
        "queue {queue}: the kernel refused its socket: {}; needed an AF_XDP one",
        chain(source)
    )]
    Socket {
        /// The queue.
        queue: u32,
        /// The kernel's answer.
        #[source]
        source: MapError,
    },
    /// The allow-list is full.
    #[error(
        "address {address}: the allow-list is full with {held} addresses; \
         end a job, or use another box for this one"
    )]
    Full {
        /// The address that found no place.
        address: IpAddr,
        /// Addresses in the list.
        held: usize,
    },
    /// The address was revoked more often than allowed.
    #[error("address {address}: not in the allow-list, so it cannot be revoked")]
    NotAllowed {
        /// The address.
        address: IpAddr,
    },
    /// Another operation on a map failed.
    #[error("{doing}: the kernel refused: {}", chain(source))]
    Map {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        #[source]
        source: MapError,
    },
    /// The kernel did not run the program on a test packet.
    #[error(
        "running the XDP program on a packet of {len} bytes failed: {}; needed 14 bytes or more",
        chain(source)
    )]
    Run {
        /// Length of the packet.
        len: usize,
        /// The kernel's answer.
        #[source]
        source: ProgramError,
    },
}

/// The error for `source`, the kernel's answer to attaching.
pub(super) fn attach_error(interface: String, mode: Mode, source: ProgramError) -> Error {
    if matches!(source, ProgramError::UnknownInterface { .. }) {
        return Error::NoInterface { interface };
    }
    match errno(&source) {
        Some(libc::EPERM) => {
            Error::Permission { doing: "attaching the XDP program", source: source.into() }
        }
        // EEXIST: the one attached is in the other mode (`dev_xdp_attach`, net/core/dev.c).
        Some(libc::EBUSY | libc::EEXIST) => Error::Busy { interface, source },
        Some(libc::EOPNOTSUPP) => Error::Unsupported { interface, mode, source },
        _ => Error::Attach { interface, mode, source },
    }
}

/// The error for `error`, the kernel's answer to creating maps or loading.
pub(super) fn refused(doing: &'static str, error: impl StdError + Send + Sync + 'static) -> Error {
    if errno(&error) == Some(libc::EPERM) {
        Error::Permission { doing, source: error.into() }
    } else {
        Error::Refused { source: error.into() }
    }
}

/// The kernel's error number, wherever it is in the chain of causes.
pub(super) fn errno(error: &(dyn StdError + 'static)) -> Option<i32> {
    causes(error).find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
}

/// All causes in one line: aya's own messages name the call, not the reason.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut line = String::new();
    for cause in causes(error).map(ToString::to_string) {
        // Some messages already end with their cause.
        if !line.ends_with(&cause) {
            let separator = if line.is_empty() { "" } else { ": " };
            line = line + separator + &cause;
        }
    }
    line
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&cause| cause.source())
}
