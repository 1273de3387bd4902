//! Cards that are not there, which may be killed at any call, and machines that are directories.

use super::Machine;
use crate::nic::{
    Channels, Driver, Feature, HashFields, Interrupt, Link, Nic, NicError, Rings, Rule, UdpFlow,
    XdpAttached, XdpFeatures,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::resume_unwind;
use tempfile::TempDir;

/// Everything about a card that can be seen from outside.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) driver: &'static str,
    pub(super) link: Link,
    pub(super) xdp: XdpFeatures,
    pub(super) rings: Option<Rings>,
    pub(super) channels: Option<Channels>,
    pub(super) features: Vec<Feature>,
    pub(super) rules: Option<Vec<Rule>>,
    pub(super) hash: Option<HashFields>,
    pub(super) interrupts: Vec<Interrupt>,
    pub(super) default_route: bool,
}

/// A card.
pub(super) struct Fake {
    pub(super) state: RefCell<State>,
    /// Calls until it is killed.
    pub(super) life: Cell<Option<u32>>,
    /// Whether the call at which it is killed still takes effect.
    pub(super) last_call_counts: bool,
    /// Setting anything of this name is refused.
    pub(super) refuses: Option<&'static str>,
}

/// What a killed process "returns".
pub(super) struct Killed;

/// Names of all kinds of cards.
pub(super) const ALL: [&str; 7] = ["mlx5_core", "ice", "i40e", "ena", "igb", "virtio_net", "veth"];

fn feature(name: &str, on: bool, changeable: bool) -> Feature {
    Feature { name: name.to_owned(), on, changeable }
}

impl Fake {
    /// A card of that driver, as it comes out of the box.
    pub(super) fn new(driver: &'static str) -> Self {
        let veth = driver == "veth";
        let steers = !matches!(driver, "virtio_net" | "veth" | "ena");
        let queues = if veth { 4 } else { 8 };
        let combined = Channels { combined: 8, combined_max: 8, ..Channels::default() };
        let apart = Channels { rx: 4, rx_max: 4, tx: 4, tx_max: 4, ..Channels::default() };
        let card = State {
            driver,
            link: Link {
                index: 3,
                mtu: 9000,
                mtu_min: Some(68),
                mtu_max: Some(9710),
                up: false,
                carrier: false,
                speed_mbps: None,
                rx_queues: queues,
                tx_queues: queues,
                numa_node: Some(0),
                xdp: None,
            },
            xdp: XdpFeatures {
                basic: true,
                redirect: true,
                zero_copy: !veth && driver != "ena",
                ..XdpFeatures::default()
            },
            rings: (!veth).then_some(Rings { rx: 512, rx_max: 4096, tx: 512, tx_max: 4096 }),
            channels: Some(if veth { apart } else { combined }),
            features: vec![
                feature("rx-vlan-hw-parse", true, true),
                feature("rx-gro", true, true),
                feature("rx-lro", driver == "mlx5_core", true),
                feature("rx-gro-hw", driver == "virtio_net", true),
                feature("rx-ntuple-filter", driver == "i40e", steers),
            ],
            rules: steers.then(Vec::new),
            hash: steers.then_some(HashFields { addresses: true, ports: false }),
            interrupts: (0..if veth { 0 } else { 8 })
                .map(|queue| Interrupt { queue, irq: 40 + queue, cpus: "0-7".to_owned() })
                .collect(),
            default_route: false,
        };
        let state = RefCell::new(card);
        Self { state, life: Cell::new(None), last_call_counts: false, refuses: None }
    }

    /// One call: `work` is what it does.
    fn call<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        if let Some(left) = self.life.get() {
            self.life.set(left.checked_sub(1));
            if left == 0 {
                if self.last_call_counts {
                    work(&mut self.state.borrow_mut());
                }
                resume_unwind(Box::new(Killed));
            }
        }
        work(&mut self.state.borrow_mut())
    }

    fn set(&self, what: &str, work: impl FnOnce(&mut State)) -> Result<(), NicError> {
        if self.refuses.is_some_and(|refused| what.contains(refused)) {
            return Err(NicError::Refused {
                interface: self.name().to_owned(),
                what: what.to_owned(),
                value: "that".to_owned(),
                source: io::Error::from_raw_os_error(95),
                explanation: None,
            });
        }
        self.call(work);
        Ok(())
    }
}

impl Nic for Fake {
    fn name(&self) -> &str {
        "eth1"
    }

    fn driver(&self) -> Result<Driver, NicError> {
        let name = self.call(|s| s.driver.to_owned());
        Ok(Driver { name, bus: None, firmware: None })
    }

    fn link(&self) -> Result<Link, NicError> {
        Ok(self.call(|s| s.link.clone()))
    }

    fn xdp_features(&self) -> Result<XdpFeatures, NicError> {
        Ok(self.call(|s| s.xdp))
    }

    fn rings(&self) -> Result<Option<Rings>, NicError> {
        Ok(self.call(|s| s.rings))
    }

    fn channels(&self) -> Result<Option<Channels>, NicError> {
        Ok(self.call(|s| s.channels))
    }

    fn features(&self) -> Result<Vec<Feature>, NicError> {
        Ok(self.call(|s| s.features.clone()))
    }

    fn rules(&self) -> Result<Option<Vec<Rule>>, NicError> {
        Ok(self.call(|s| s.rules.clone()))
    }

    fn hash_fields(&self, _: UdpFlow) -> Result<Option<HashFields>, NicError> {
        Ok(self.call(|s| s.hash))
    }

    fn interrupts(&self) -> Result<Vec<Interrupt>, NicError> {
        Ok(self.call(|s| s.interrupts.clone()))
    }

    fn has_default_route(&self) -> Result<bool, NicError> {
        Ok(self.call(|s| s.default_route))
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), NicError> {
        self.set("mtu", |s| s.link.mtu = mtu)
    }

    fn set_up(&self, up: bool) -> Result<(), NicError> {
        self.set("up", |s| (s.link.up, s.link.carrier) = (up, up))
    }

    fn set_rings(&self, rx: Option<u32>, tx: Option<u32>) -> Result<(), NicError> {
        self.set("rings", |s| {
            let rings = s.rings.as_mut().expect("a card with rings");
            rings.rx = rx.unwrap_or(rings.rx);
            rings.tx = tx.unwrap_or(rings.tx);
        })
    }

    fn set_channels(
        &self,
        combined: Option<u32>,
        rx: Option<u32>,
        tx: Option<u32>,
    ) -> Result<(), NicError> {
        self.set("queues", |s| {
            let channels = s.channels.as_mut().expect("a card with queues");
            channels.combined = combined.unwrap_or(channels.combined);
            channels.rx = rx.unwrap_or(channels.rx);
            channels.tx = tx.unwrap_or(channels.tx);
            s.link.rx_queues = channels.combined + channels.rx;
            s.link.tx_queues = channels.combined + channels.tx;
        })
    }

    fn set_feature(&self, name: &str, on: bool) -> Result<(), NicError> {
        self.set(name, |s| {
            let feature = s.features.iter_mut().find(|f| f.name == name).expect("a feature");
            assert!(feature.changeable, "{name}");
            feature.on = on;
        })
    }

    fn add_rule(
        &self,
        flow: UdpFlow,
        port: u16,
        queue: u32,
        location: Option<u32>,
    ) -> Result<u32, NicError> {
        let mut taken = 0;
        self.set(&format!("rule {}", flow.name()), |s| {
            assert!(queue < s.link.rx_queues);
            let rules = s.rules.as_mut().expect("a card with rules");
            let free = (0..).find(|n| rules.iter().all(|rule| rule.location != *n));
            taken = location.or(free).expect("a free place");
            rules.push(Rule { location: taken, matches: Some((flow, port)), queue: Some(queue) });
            rules.sort_by_key(|rule| rule.location);
        })?;
        Ok(taken)
    }

    fn remove_rule(&self, location: u32) -> Result<(), NicError> {
        self.set("removal", |s| {
            s.rules.as_mut().expect("rules").retain(|rule| rule.location != location);
        })
    }

    fn set_hash_fields(&self, _: UdpFlow, fields: HashFields) -> Result<(), NicError> {
        self.set("hash", |s| s.hash = Some(fields))
    }

    fn set_interrupt_cpus(&self, irq: u32, cpus: &str) -> Result<(), NicError> {
        self.set("interrupt", |s| {
            let found = s.interrupts.iter_mut().find(|i| i.irq == irq).expect("an interrupt");
            found.cpus = cpus.to_owned();
        })
    }
}

/// An XDP program.
pub(super) const PROGRAM: XdpAttached = XdpAttached { program: 7, generic: false };

/// A machine of eight CPUs in a directory, on which everything is good.
pub(super) fn machine(release: &str) -> (Machine, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let cpu = "sys/devices/system/cpu";
    let huge = super::change::HUGE_PAGES;
    for (path, text) in [
        ("proc/sys/kernel/osrelease", release),
        ("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 8388608 kB\n"),
        ("proc/self/limits", "Max locked memory         8388608  8388608  bytes\n"),
        ("proc/1/comm", "init\n"),
        (&format!("{cpu}/online"), "0-7\n"),
        (&format!("{cpu}/isolated"), "\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        (&super::change::governor_file(2), "performance\n"),
        (&super::change::governor_file(3), "performance\n"),
        (&format!("{huge}/nr_hugepages"), "10\n"),
        (&format!("{huge}/free_hugepages"), "8\n"),
        (&format!("{huge}/resv_hugepages"), "3\n"),
    ] {
        put(&dir, path, text);
    }
    (Machine::at(dir.path()), dir)
}

/// Governor of a CPU of that machine, as its file has it.
pub(super) fn governor(machine: &Machine, cpu: usize) -> String {
    machine.governor(cpu).expect("a file").expect("a governor")
}

/// Writes a file of a machine.
pub(super) fn put(machine: &TempDir, path: &str, text: &str) {
    let path = machine.path().join(path);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    std::fs::write(path, text).expect("a file");
}
