//! One network interface: what it is, how it is set, and setting it otherwise.
//!
//! [`Nic`] is the seam between what the box wants of an interface and the kernel that has it, so
//! that the first can be tested with cards that are not there. [`KernelNic`] is the kernel.
#![deny(unsafe_code)]

mod error;
mod ethtool;
mod features;
mod interrupts;
mod ioctl;
mod kernel;
mod link;
mod netlink;
mod queues;
mod route;
mod rules;
mod types;
mod xdp;

pub use error::NicError;
pub use kernel::KernelNic;
pub use types::{
    Channels, Driver, Feature, HashFields, Interrupt, Link, Rings, Rule, UdpFlow, XdpAttached,
    XdpFeatures,
};

/// One network interface of the calling thread's network namespace. Every call asks the kernel
/// anew.
///
/// # Errors
/// All calls: [`NicError`]. Something that this kind of interface does not have is `Ok(None)` or
/// empty where it is asked for, and [`NicError::Refused`] where it is set.
pub trait Nic {
    /// Name of the interface.
    fn name(&self) -> &str;

    /// Its driver.
    fn driver(&self) -> Result<Driver, NicError>;

    /// The link: MTU, state, queues, what is attached.
    fn link(&self) -> Result<Link, NicError>;

    /// What the driver says that it can do with XDP (family `netdev` of generic netlink).
    fn xdp_features(&self) -> Result<XdpFeatures, NicError>;

    /// Sizes of the RX and TX rings, where the driver has such.
    fn rings(&self) -> Result<Option<Rings>, NicError>;

    /// Numbers of queues, where the driver tells.
    fn channels(&self) -> Result<Option<Channels>, NicError>;

    /// All offloads, in the kernel's order.
    fn features(&self) -> Result<Vec<Feature>, NicError>;

    /// Rules that steer UDP packets to queues; `None` where the driver has no such rules.
    fn rules(&self) -> Result<Option<Vec<Rule>>, NicError>;

    /// What the card hashes to spread packets of this kind over its queues; `None` where it cannot
    /// tell.
    fn hash_fields(&self, flow: UdpFlow) -> Result<Option<HashFields>, NicError>;

    /// Interrupts of its RX queues, by queue; empty for interfaces without any.
    fn interrupts(&self) -> Result<Vec<Interrupt>, NicError>;

    /// Whether a default route goes by it.
    fn has_default_route(&self) -> Result<bool, NicError>;

    /// Sets the MTU.
    fn set_mtu(&self, mtu: u32) -> Result<(), NicError>;

    /// Sets it up or down.
    fn set_up(&self, up: bool) -> Result<(), NicError>;

    /// Sets the sizes of rings; `None` leaves one as it is.
    fn set_rings(&self, rx: Option<u32>, tx: Option<u32>) -> Result<(), NicError>;

    /// Sets numbers of queues; `None` leaves one as it is.
    fn set_channels(
        &self,
        combined: Option<u32>,
        rx: Option<u32>,
        tx: Option<u32>,
    ) -> Result<(), NicError>;

    /// Switches an offload, by the kernel's name (`rx-gro`, `rx-lro`, `rx-ntuple-filter`).
    fn set_feature(&self, name: &str, on: bool) -> Result<(), NicError>;

    /// Adds a rule and returns its number: one that the card chooses, where `location` is `None`.
    fn add_rule(
        &self,
        flow: UdpFlow,
        port: u16,
        queue: u32,
        location: Option<u32>,
    ) -> Result<u32, NicError>;

    /// Removes a rule by its number. One that is gone already is as good as removed.
    fn remove_rule(&self, location: u32) -> Result<(), NicError>;

    /// Sets what is hashed.
    fn set_hash_fields(&self, flow: UdpFlow, fields: HashFields) -> Result<(), NicError>;

    /// Sends an interrupt to these CPUs (a list as in `0-3,7`).
    fn set_interrupt_cpus(&self, irq: u32, cpus: &str) -> Result<(), NicError>;
}
