//! Looks at machine and interface, and changes nothing.

mod cpus;
mod driver;
mod link;
mod machine;
mod offloads;
mod queues;
mod rings;
mod steering;

use super::{Area, Driver, Finding, HostError, Machine, Needs, Xdp, driver as known};
use crate::nic::{self, Link, Nic, XdpFeatures};
use caps::Capability;

/// How packets are to reach their core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// A rule for each shard's port.
    Rules,
    /// The card's hash over exactly the box's queues.
    Hash,
}

/// What the checks look at.
pub(super) struct Host<'a> {
    pub(super) needs: &'a Needs,
    pub(super) machine: &'a Machine,
    /// Capabilities that this process lacks.
    pub(super) missing: &'a [Capability],
}

/// An interface, with what does not change while it is set.
pub(super) struct Card<'a> {
    pub(super) nic: &'a dyn Nic,
    pub(super) xdp: &'a Xdp,
    pub(super) driver: nic::Driver,
    pub(super) known: Driver,
    pub(super) features: XdpFeatures,
    pub(super) steering: Steering,
}

impl<'a> Card<'a> {
    /// Looks at `nic`, which is to be used as in `xdp`.
    ///
    /// # Errors
    /// Where it does not tell.
    pub(super) fn look(nic: &'a dyn Nic, xdp: &'a Xdp) -> Result<Self, HostError> {
        let driver = nic.driver()?;
        let known = known(&driver.name);
        let steering = match known.steers && steering::has_rules(nic)? {
            true => Steering::Rules,
            false => Steering::Hash,
        };
        Ok(Self { nic, xdp, driver, known, features: nic.xdp_features()?, steering })
    }

    fn name(&self) -> &str {
        self.nic.name()
    }

    fn link(&self) -> Result<Link, HostError> {
        Ok(self.nic.link()?)
    }
}

/// Checks everything: the machine alone where there is no interface (`nic` is `None`).
/// `missing` are the capabilities that the box will lack. Findings are in the order of [`Area`].
///
/// # Errors
/// Where machine or interface do not tell.
pub fn check(
    needs: &Needs,
    nic: Option<&dyn Nic>,
    machine: &Machine,
    missing: &[Capability],
) -> Result<Vec<Finding>, HostError> {
    let host = Host { needs, machine, missing };
    let mut found = Vec::new();
    let card = match (nic, &needs.xdp) {
        (Some(nic), Some(xdp)) => Some(Card::look(nic, xdp)?),
        _ => None,
    };
    found.extend(machine::check(&host)?);
    found.extend(of_machine(&host)?);
    found.extend(cpus::check(&host, card.as_ref())?);
    match &card {
        Some(card) => {
            found.extend(driver::check(&host, card)?);
            found.extend(link::carrier(card)?);
            for area in Area::OF_CARD {
                found.extend(of_card(area, &host, card)?);
            }
        }
        None => found.push(Finding::good(
            Area::Driver,
            "interface",
            "ordinary UDP sockets",
            "nothing to set on a NIC",
        )),
    }
    found.sort_by_key(|finding| finding.area);
    Ok(found)
}

/// What there is to say of one area in which a card has something to set.
pub(super) fn of_card(
    area: Area,
    host: &Host<'_>,
    card: &Card<'_>,
) -> Result<Vec<Finding>, HostError> {
    match area {
        Area::Mtu => link::mtu(host, card),
        Area::Up => link::up(card),
        Area::Offloads => offloads::check(card),
        Area::Rings => rings::check(host, card),
        Area::Queues => queues::check(host, card),
        Area::Steering => steering::check(host, card),
        Area::Interrupts => cpus::interrupts(host, card),
        Area::Machine
        | Area::Driver
        | Area::Cpus
        | Area::Governor
        | Area::HugePages
        | Area::Carrier => Ok(Vec::new()),
    }
}

/// What there is to say of what can be set on the machine: governors and reserved pages.
pub(super) fn of_machine(host: &Host<'_>) -> Result<Vec<Finding>, HostError> {
    let mut found = cpus::governors(host)?;
    found.extend(machine::huge_pages(host)?);
    Ok(found)
}
