//! Sets machine and interface as the box needs them, and writes down how they were.

use super::check::{self, Card, Host, Steering};
use super::{Area, Change, Finding, HostError, Machine, Needs, Record, Severity, Store, undo};
use crate::nic::{Nic, Rule, UdpFlow};
use caps::Capability;
use std::thread;
use std::time::{Duration, Instant};

/// What is looked at and set.
#[derive(Clone, Copy)]
pub struct Applying<'a> {
    /// What the configuration needs.
    pub needs: &'a Needs,
    /// The interface; `None` with ordinary sockets.
    pub nic: Option<&'a dyn Nic>,
    /// The machine.
    pub machine: &'a Machine,
    /// Capabilities that the box will lack.
    pub missing: &'a [Capability],
    /// Where is written what was; `None` for a dry run, which changes nothing.
    pub store: Option<&'a Store>,
    /// How long to wait for the carrier.
    pub carrier_wait: Duration,
}

/// What came of it.
#[derive(Debug)]
pub enum Applied {
    /// Everything is as needed, but for what was said.
    Done,
    /// These faults, which only a person can do away with; nothing was changed.
    Refused(Vec<Finding>),
}

/// Sets what can be set, in the order of [`Area`]; each change is in the record before it is made.
/// `say` is told of each change, and of what is left to the user.
///
/// # Errors
/// Where something does not tell, or something that the box cannot do without is refused. What was
/// set until then is in the record, to be undone.
pub fn apply(
    what: Applying<'_>,
    say: &mut dyn FnMut(Severity, &str),
) -> Result<Applied, HostError> {
    let Applying { needs, nic, machine, missing, .. } = what;
    let findings = check::check(needs, nic, machine, missing)?;
    let forbids: Vec<_> = findings.iter().filter(|f| f.forbids()).cloned().collect();
    if !forbids.is_empty() {
        return Ok(Applied::Refused(forbids));
    }
    for finding in findings {
        if !finding.why.is_empty() && finding.change.is_none() {
            say(finding.severity, &finding.to_string());
        }
    }
    let record = what.store.map(Store::load).transpose()?.unwrap_or_default();
    let host = Host { needs, machine, missing };
    let mut run = Run { what, host, record, say };
    if let (Some(nic), Some(xdp)) = (nic, &needs.xdp) {
        let mut card = Card::look(nic, xdp)?;
        for area in Area::OF_CARD {
            match area {
                Area::Steering => run.steer(&mut card)?,
                _ => run.area(check::of_card(area, &run.host, &card)?)?,
            }
        }
    }
    run.area(check::of_machine(&run.host)?)?;
    if let (Some(nic), Some(_)) = (nic, what.store) {
        wait_for_carrier(nic, what.carrier_wait)?;
    }
    Ok(Applied::Done)
}

/// An apply that is under way.
struct Run<'a, 's> {
    what: Applying<'a>,
    host: Host<'a>,
    record: Record,
    say: &'s mut dyn FnMut(Severity, &str),
}

impl Run<'_, '_> {
    fn interface(&self) -> &str {
        self.host.needs.interface().unwrap_or_default()
    }

    /// Makes the changes of these findings. What is refused is fatal for faults alone.
    fn area(&mut self, findings: Vec<Finding>) -> Result<(), HostError> {
        for finding in findings {
            let Some(change) = &finding.change else { continue };
            match self.make(change) {
                Ok(()) => {}
                Err(e) if finding.severity < Severity::Fault => {
                    (self.say)(Severity::Warning, &e.to_string());
                }
                Err(e) => {
                    // With what is known of the driver.
                    (self.say)(Severity::Fault, &finding.to_string());
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Rules, or exactly the box's queues where the card refuses a rule.
    fn steer(&mut self, card: &mut Card<'_>) -> Result<(), HostError> {
        let findings = check::of_card(Area::Steering, &self.host, card)?;
        if card.steering == Steering::Hash {
            return self.area(findings);
        }
        let before = self.record.changes.clone();
        for finding in findings {
            let Some(change) = &finding.change else { continue };
            let Err(e) = self.make(change) else { continue };
            (self.say)(Severity::Warning, &e.to_string());
            if matches!(change, Change::AddRule { flow: UdpFlow::Udp6, .. }) {
                let words = "packets over IPv6 go to any queue: to a core of the box where it has \
                             all queues, and else they are lost";
                (self.say)(Severity::Warning, words);
                continue;
            }
            self.take_back_since(&before)?;
            card.steering = Steering::Hash;
            self.area(check::of_card(Area::Queues, &self.host, card)?)?;
            return self.area(check::of_card(Area::Steering, &self.host, card)?);
        }
        Ok(())
    }

    /// Undoes what is in the record and was not `before`.
    fn take_back_since(&mut self, before: &[Change]) -> Result<(), HostError> {
        let Some(store) = self.what.store else { return Ok(()) };
        for place in (0..self.record.changes.len()).rev() {
            if before.contains(&self.record.changes[place]) {
                continue;
            }
            let (nic, machine) = (self.what.nic, self.what.machine);
            if let undo::Undone::Failed(change, e) =
                undo::at(place, &mut self.record, nic, machine, store)?
            {
                let thing = change.thing(self.interface());
                (self.say)(Severity::Warning, &format!("{thing} is not as it was: {e}"));
            }
        }
        Ok(())
    }

    fn make(&mut self, change: &Change) -> Result<(), HostError> {
        let (thing, before, after) =
            (change.thing(self.interface()), change.before(), change.after());
        let Some(store) = self.what.store else {
            (self.say)(Severity::Ok, &format!("would set {thing}: {after} (now {before})"));
            return Ok(());
        };
        let place = self.record.add(change);
        store.save(&self.record)?;
        match (change, self.what.nic) {
            (Change::HugePages { to, .. }, _) => self.huge_pages(place, *to, store)?,
            (Change::Governor { cpu, to, .. }, _) => self.what.machine.set_governor(*cpu, to)?,
            (_, Some(nic)) => set(change, nic)?,
            (_, None) => {
                return Err(HostError::Gone { interface: self.interface().to_owned() });
            }
        }
        (self.say)(Severity::Ok, &format!("{thing}: {after} (was {before})"));
        Ok(())
    }

    /// The kernel takes the number and reserves as many as it finds.
    fn huge_pages(&mut self, place: usize, to: u64, store: &Store) -> Result<(), HostError> {
        self.what.machine.set_huge_pages(to)?;
        let now = self.what.machine.huge_pages()?;
        if let Change::HugePages { was, to: recorded } = &mut self.record.changes[place] {
            *recorded = recorded.saturating_sub(to.saturating_sub(now.total)).max(*was);
        }
        store.save(&self.record)?;
        let needed = self.host.needs.huge_pages;
        match now.free < needed {
            true => Err(HostError::HugePages { found: now.free, needed }),
            false => Ok(()),
        }
    }
}

/// Makes one change of an interface.
fn set(change: &Change, nic: &dyn Nic) -> Result<(), HostError> {
    match change {
        Change::Mtu { to, .. } => nic.set_mtu(*to)?,
        Change::Up => nic.set_up(true)?,
        Change::Feature { name, to } => nic.set_feature(name, *to)?,
        Change::RxRing { to, .. } => nic.set_rings(Some(*to), None)?,
        Change::TxRing { to, .. } => nic.set_rings(None, Some(*to))?,
        Change::Queues { to, .. } => nic.set_channels(to.combined, to.rx, to.tx)?,
        Change::RemoveRule { location, .. } => nic.remove_rule(*location)?,
        Change::AddRule { flow, port, queue } => add_rule(nic, *flow, *port, *queue)?,
        Change::Hash { flow, to, .. } => nic.set_hash_fields(*flow, *to)?,
        Change::Interrupt { irq, to, .. } => nic.set_interrupt_cpus(*irq, to)?,
        Change::Governor { .. } | Change::HugePages { .. } => {}
    }
    Ok(())
}

/// Adds a rule, and makes sure that it can be found again.
fn add_rule(nic: &dyn Nic, flow: UdpFlow, port: u16, queue: u32) -> Result<(), HostError> {
    let location = nic.add_rule(flow, port, queue, None)?;
    let added = Rule { location, matches: Some((flow, port)), queue: Some(queue) };
    if nic.rules()?.is_some_and(|rules| rules.contains(&added)) {
        return Ok(());
    }
    nic.remove_rule(location)?;
    let interface = nic.name().to_owned();
    Err(HostError::RuleUnseen { interface, flow: flow.name(), port, queue })
}

fn wait_for_carrier(nic: &dyn Nic, wait: Duration) -> Result<(), HostError> {
    let start = Instant::now();
    while !nic.link()?.carrier {
        if start.elapsed() >= wait {
            let interface = nic.name().to_owned();
            return Err(HostError::NoCarrier { interface, seconds: wait.as_secs() });
        }
        thread::sleep(Duration::from_millis(100).min(wait));
    }
    Ok(())
}
