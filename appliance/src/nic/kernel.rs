//! The kernel as it is.

use std::{fs, io};

use super::netlink::Complaint;
use super::{
    Channels, Driver, Feature, HashFields, Interrupt, Link, Nic, NicError, Rings, Rule, UdpFlow,
    XdpFeatures, features, interrupts, ioctl, link, queues, route, rules, xdp,
};

/// An interface of the calling thread's network namespace, as the kernel has it.
///
/// Nothing is kept open between calls. A call lasts as long as the driver works at it: setting
/// rings, queues or the MTU may reset the link.
#[derive(Clone, Debug)]
pub struct KernelNic {
    name: String,
}

impl KernelNic {
    /// The interface of this name.
    ///
    /// # Errors
    /// [`NicError::Missing`] where there is none, [`NicError::Read`] where the kernel does not say.
    pub fn open(name: &str) -> Result<Self, NicError> {
        let nic = Self { name: name.to_owned() };
        // Longer ones, and those with a zero in them, would be cut on the way to the kernel.
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(NicError::Missing { interface: nic.name });
        }
        nic.facts()?;
        Ok(nic)
    }

    /// Whether the interface is why the kernel complains. Drivers say ENODEV while they reset a card
    /// that is still there.
    fn is_gone(&self, complaint: &Complaint) -> bool {
        complaint.is(libc::ENODEV)
            && link::facts(&self.name).is_err_and(|again| again.is(libc::ENODEV))
    }

    fn facts(&self) -> Result<link::Facts, NicError> {
        self.read("the link", link::facts(&self.name))
    }

    /// What was read, or why not.
    fn read<T>(
        &self,
        what: &'static str,
        answer: Result<T, impl Into<Complaint>>,
    ) -> Result<T, NicError> {
        answer.map_err(|complaint| {
            let (interface, complaint) = (self.name.clone(), complaint.into());
            if self.is_gone(&complaint) {
                return NicError::Missing { interface };
            }
            NicError::Read { interface, what, source: complaint.source }
        })
    }

    /// What was read, if this kind of interface has such.
    fn read_if_any<T>(
        &self,
        what: &'static str,
        answer: Result<T, impl Into<Complaint>>,
    ) -> Result<Option<T>, NicError> {
        match answer.map_err(Into::into) {
            Err(complaint) if complaint.is_unsupported() => Ok(None),
            other => self.read(what, other.map(Some)),
        }
    }

    /// What was set, or who is against it.
    fn set<T>(
        &self,
        what: impl Into<String>,
        value: impl Into<String>,
        answer: Result<T, impl Into<Complaint>>,
    ) -> Result<T, NicError> {
        answer.map_err(|complaint| {
            let (interface, complaint) = (self.name.clone(), complaint.into());
            if self.is_gone(&complaint) {
                return NicError::Missing { interface };
            }
            let Complaint { source, explanation } = complaint;
            let (what, value) = (what.into(), value.into());
            NicError::Refused { interface, what, value, source, explanation }
        })
    }

    /// The NUMA node of a PCI device, on machines with several.
    fn numa_node(&self, bus: &str) -> Result<Option<u32>, NicError> {
        let says = |path: &str| match fs::read_to_string(path) {
            // Not on the PCI bus, or a kernel without NUMA.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            other => self.read("the NUMA node", other),
        };
        if says("/sys/devices/system/node/online")?.trim() == "0" {
            return Ok(None);
        }
        // -1: not known.
        Ok(says(&format!("/sys/bus/pci/devices/{bus}/numa_node"))?.trim().parse().ok())
    }

    /// RX and TX queues in use.
    fn queue_counts(&self, facts: &link::Facts) -> Result<(u32, u32), NicError> {
        if let Some(counts) = link::queues_in_use(&self.name, facts) {
            return Ok(counts);
        }
        Ok(match self.channels()? {
            Some(c) => (c.combined + c.rx, c.combined + c.tx),
            None => (facts.rx_queues, facts.tx_queues),
        })
    }
}

impl Nic for KernelNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> Result<Driver, NicError> {
        let Some(info) = self.read_if_any("the driver", ioctl::driver(&self.name))? else {
            return Ok(Driver { name: String::new(), bus: None, firmware: None });
        };
        let some = |text: &[u8]| Some(text_of(text)).filter(|t| !t.is_empty() && t != "N/A");
        let (bus, firmware) = (some(&info.bus_info), some(&info.fw_version));
        Ok(Driver { name: text_of(&info.driver), bus, firmware })
    }

    fn link(&self) -> Result<Link, NicError> {
        let facts = self.facts()?;
        let (rx_queues, tx_queues) = self.queue_counts(&facts)?;
        let numa_node = match self.driver()?.bus {
            Some(bus) => self.numa_node(&bus)?,
            None => None,
        };
        let link::Facts { index, mtu, mtu_min, mtu_max, up, carrier, xdp, .. } = facts;
        let speed_mbps = self.read_if_any("the speed", queues::speed(&self.name))?.flatten();
        Ok(Link {
            index,
            mtu,
            mtu_min,
            mtu_max,
            up,
            carrier,
            speed_mbps,
            rx_queues,
            tx_queues,
            numa_node,
            xdp,
        })
    }

    fn xdp_features(&self) -> Result<XdpFeatures, NicError> {
        let index = self.facts()?.index;
        self.read("the XDP features (Linux tells them since 6.3)", xdp::features(index))
    }

    fn rings(&self) -> Result<Option<Rings>, NicError> {
        self.read_if_any("the rings", queues::rings(&self.name))
    }

    fn channels(&self) -> Result<Option<Channels>, NicError> {
        self.read_if_any("the numbers of queues", queues::channels(&self.name))
    }

    fn features(&self) -> Result<Vec<Feature>, NicError> {
        self.read("the offloads", features::list(&self.name))
    }

    fn rules(&self) -> Result<Option<Vec<Rule>>, NicError> {
        self.read_if_any("the rules", rules::list(&self.name))
    }

    fn hash_fields(&self, flow: UdpFlow) -> Result<Option<HashFields>, NicError> {
        self.read_if_any("the hashed fields", rules::hash_fields(&self.name, flow))
    }

    fn interrupts(&self) -> Result<Vec<Interrupt>, NicError> {
        match self.driver()?.bus {
            Some(bus) => self.read("the interrupts", interrupts::list(&bus)),
            None => Ok(Vec::new()),
        }
    }

    fn has_default_route(&self) -> Result<bool, NicError> {
        let index = self.facts()?.index;
        self.read("the default routes", route::is_default(index))
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), NicError> {
        self.set("mtu", mtu.to_string(), link::set_mtu(&self.name, mtu))
    }

    fn set_up(&self, up: bool) -> Result<(), NicError> {
        let value = if up { "up" } else { "down" };
        self.set("state", value, link::set_up(&self.name, up))
    }

    fn set_rings(&self, rx: Option<u32>, tx: Option<u32>) -> Result<(), NicError> {
        let value = numbers(&[("rx", rx), ("tx", tx)]);
        self.set("rings", value, queues::set_rings(&self.name, rx, tx))
    }

    fn set_channels(
        &self,
        combined: Option<u32>,
        rx: Option<u32>,
        tx: Option<u32>,
    ) -> Result<(), NicError> {
        let value = numbers(&[("combined", combined), ("rx", rx), ("tx", tx)]);
        self.set("queues", value, queues::set_channels(&self.name, combined, rx, tx))
    }

    fn set_feature(&self, name: &str, on: bool) -> Result<(), NicError> {
        let value = if on { "on" } else { "off" };
        self.set(name, value, features::set(&self.name, name, on))?;
        if self.features()?.iter().any(|feature| feature.name == name && feature.on == on) {
            return Ok(());
        }
        let unchanged = io::Error::other(format!("it does not go {value}"));
        self.set(name, value, Err(unchanged))
    }

    fn add_rule(
        &self,
        flow: UdpFlow,
        port: u16,
        queue: u32,
        location: Option<u32>,
    ) -> Result<u32, NicError> {
        let what = format!("a rule for {} port {port}", flow.name());
        let value = format!("queue {queue}");
        self.set(what, value, rules::add(&self.name, flow, port, queue, location))
    }

    fn remove_rule(&self, location: u32) -> Result<(), NicError> {
        self.set(format!("rule {location}"), "none", rules::remove(&self.name, location))
    }

    fn set_hash_fields(&self, flow: UdpFlow, fields: HashFields) -> Result<(), NicError> {
        let what = format!("hashed fields of {}", flow.name());
        let value = match (fields.addresses, fields.ports) {
            (true, true) => "addresses and ports",
            (true, false) => "addresses",
            (false, true) => "ports",
            (false, false) => "none",
        };
        self.set(what, value, rules::set_hash_fields(&self.name, flow, fields))
    }

    fn set_interrupt_cpus(&self, irq: u32, cpus: &str) -> Result<(), NicError> {
        self.set(format!("CPUs of interrupt {irq}"), cpus, interrupts::set_cpus(irq, cpus))
    }
}

/// Text of the kernel, up to its first zero.
fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Those that are given, as in `rx 512, tx 512`.
fn numbers(all: &[(&str, Option<u32>)]) -> String {
    let given = all.iter().filter_map(|(name, n)| n.map(|n| format!("{name} {n}")));
    given.collect::<Vec<_>>().join(", ")
}
