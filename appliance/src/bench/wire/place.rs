//! Where a box and its load meet.

use crate::bench::network::{
    BOX_INTERFACE, Namespace, NetworkError, Pair, WORKERS_INTERFACE, Wire,
};
use crate::bench::wire::Port;
use gradbox_protocol::envelope::Link;
use nix::ifaddrs::getifaddrs;
use std::io;

/// Why there is no such place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The network cannot be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The system does not list its interfaces.
    #[error("cannot list interfaces: {0}")]
    Interfaces(#[source] io::Error),
    /// An interface has no Ethernet address.
    #[error("{0}: no such interface with an Ethernet address (ip -br link lists them)")]
    NoAddress(String),
}

/// The two ends of a link: the box at one, the load at the other.
#[derive(Debug)]
pub struct Place {
    ends: Ends,
    link: Link,
}

#[derive(Debug)]
enum Ends {
    /// A veth pair of our own.
    Own(Pair),
    /// Interfaces of this machine, with a cable between them.
    Given { here: Namespace, interface: String, load: String },
}

impl Place {
    /// A veth pair in namespaces of its own, for `workers` workers and packets of `mtu` bytes.
    ///
    /// # Errors
    /// Where the network cannot be made.
    pub fn own(port: Port, workers: u8, mtu: u16) -> Result<Self, PlaceError> {
        let pair = Pair::new(workers, Wire { mtu, queues: 1 })?;
        if port == Port::Udp {
            // What the load sends are no skbs: without an XDP program, this is what takes them.
            pair.boxes.command("ethtool", &["-K", BOX_INTERFACE, "gro", "on"])?;
        }
        let to = pair.boxes.run(|| address(BOX_INTERFACE))??;
        let from = pair.workers.run(|| address(WORKERS_INTERFACE))??;
        let link = Link { destination: to, source: from, vlan: None };
        Ok(Self { ends: Ends::Own(pair), link })
    }

    /// The box on `interface`, the load from `load`: two interfaces of this machine with a cable
    /// between them. Only an XDP program is put on the one and a classifier on the other, and both
    /// go with the process.
    ///
    /// # Errors
    /// Where one of them does not exist.
    pub fn given(interface: &str, load: &str) -> Result<Self, PlaceError> {
        let link = Link { destination: address(interface)?, source: address(load)?, vlan: None };
        let here = Namespace::here()?;
        let (interface, load) = (interface.to_owned(), load.to_owned());
        Ok(Self { ends: Ends::Given { here, interface, load }, link })
    }

    /// Where the box runs.
    pub(super) const fn boxes(&self) -> &Namespace {
        match &self.ends {
            Ends::Own(pair) => &pair.boxes,
            Ends::Given { here, .. } => here,
        }
    }

    /// Where the load runs.
    pub(super) const fn workers(&self) -> &Namespace {
        match &self.ends {
            Ends::Own(pair) => &pair.workers,
            Ends::Given { here, .. } => here,
        }
    }

    pub(super) fn box_interface(&self) -> &str {
        match &self.ends {
            Ends::Own(_) => BOX_INTERFACE,
            Ends::Given { interface, .. } => interface,
        }
    }

    pub(super) fn load_interface(&self) -> &str {
        match &self.ends {
            Ends::Own(_) => WORKERS_INTERFACE,
            Ends::Given { load, .. } => load,
        }
    }

    /// Ethernet addresses, from the load to the box.
    pub(super) const fn link(&self) -> Link {
        self.link
    }
}

/// The Ethernet address of an interface of this thread's namespace.
fn address(interface: &str) -> Result<[u8; 6], PlaceError> {
    let all = getifaddrs().map_err(|e| PlaceError::Interfaces(e.into()))?;
    all.filter(|a| a.interface_name == interface)
        .find_map(|a| a.address.as_ref()?.as_link_addr()?.addr())
        .ok_or_else(|| PlaceError::NoAddress(interface.to_owned()))
}
