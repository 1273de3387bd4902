//! Puts back what was changed, as the record has it.

use super::{Change, HostError, Machine, Record, Store};
use crate::nic::{Nic, NicError};

/// What became of one change.
#[derive(Debug)]
pub enum Undone {
    /// It is as it was.
    Restored(Change),
    /// It was as it had been.
    Already(Change),
    /// It is not, and stays in the record.
    Failed(Change, HostError),
}

/// Undoes what the record of `store` has, the last change first; `nic` is `None` where the
/// interface is not there. Says each to `said`. What could not be restored stays in the record,
/// which otherwise is removed. May be interrupted at any time and done again.
///
/// # Errors
/// Where the record cannot be read or written.
pub fn undo(
    nic: Option<&dyn Nic>,
    machine: &Machine,
    store: &Store,
    said: &mut dyn FnMut(Undone),
) -> Result<(), HostError> {
    let mut record = store.load()?;
    for place in (0..record.changes.len()).rev() {
        let done = at(place, &mut record, nic, machine, store)?;
        said(done);
    }
    Ok(())
}

/// Undoes one change and takes it out of the record.
pub(super) fn at(
    place: usize,
    record: &mut Record,
    nic: Option<&dyn Nic>,
    machine: &Machine,
    store: &Store,
) -> Result<Undone, HostError> {
    let change = record.changes[place].clone();
    let outcome = match (&change, nic) {
        (Change::HugePages { was, to }, _) => {
            let now = machine.huge_pages().map(|pages| pages.total);
            let back = now.map(|now| (now, now - (to - was).min(now.saturating_sub(*was))));
            match back {
                Ok((now, target)) if now != target => {
                    // So that doing it again after a crash takes back none of anybody else's.
                    record.changes[place] =
                        Change::HugePages { was: target, to: target + (to - was) };
                    store.save(record)?;
                    machine.set_huge_pages(target).map(|()| true)
                }
                other => other.map(|_| false),
            }
        }
        (Change::Governor { cpu, was, .. }, _) => match machine.governor(*cpu) {
            // A CPU that was taken off has none to restore.
            Ok(now) if now.as_ref().is_some_and(|now| now != was) => {
                machine.set_governor(*cpu, was).map(|()| true)
            }
            other => other.map(|_| false),
        },
        (_, Some(nic)) => take_back(&change, nic).map_err(HostError::from),
        (_, None) => Err(HostError::Gone { interface: record.interface.clone() }),
    };
    Ok(match outcome {
        Err(e) => Undone::Failed(change, e),
        Ok(changed) => {
            // As it was taken back: reserved pages that others added stay.
            let change = record.changes.remove(place);
            store.save(record)?;
            if changed { Undone::Restored(change) } else { Undone::Already(change) }
        }
    })
}

/// Sets one thing of an interface as it was before `change`; false where it is so already.
fn take_back(change: &Change, nic: &dyn Nic) -> Result<bool, NicError> {
    let set = |differs: bool, set: &dyn Fn() -> Result<(), NicError>| match differs {
        true => set().map(|()| true),
        false => Ok(false),
    };
    match change {
        Change::Mtu { was, .. } => set(nic.link()?.mtu != *was, &|| nic.set_mtu(*was)),
        Change::Up => set(nic.link()?.up, &|| nic.set_up(false)),
        Change::Feature { name, to } => {
            let features = nic.features()?;
            let now = features.iter().find(|feature| feature.name == *name);
            set(now.is_some_and(|now| now.on == *to), &|| nic.set_feature(name, !to))
        }
        Change::RxRing { was, .. } => {
            let now = nic.rings()?.map(|rings| rings.rx);
            set(now != Some(*was), &|| nic.set_rings(Some(*was), None))
        }
        Change::TxRing { was, .. } => {
            let now = nic.rings()?.map(|rings| rings.tx);
            set(now != Some(*was), &|| nic.set_rings(None, Some(*was)))
        }
        Change::Queues { was, .. } => {
            let now = nic.channels()?.unwrap_or_default();
            let same = |was: Option<u32>, now: u32| was.is_none_or(|was| was == now);
            let already =
                same(was.combined, now.combined) && same(was.rx, now.rx) && same(was.tx, now.tx);
            set(!already, &|| nic.set_channels(was.combined, was.rx, was.tx))
        }
        Change::RemoveRule { location, flow, port, queue } => {
            let rules = nic.rules()?.unwrap_or_default();
            let is_it = |rule: &crate::nic::Rule| {
                rule.matches == Some((*flow, *port)) && rule.queue == Some(*queue)
            };
            set(!rules.iter().any(is_it), &|| {
                nic.add_rule(*flow, *port, *queue, Some(*location)).map(drop)
            })
        }
        Change::AddRule { flow, port, queue } => {
            let rules = nic.rules()?.unwrap_or_default();
            // There was none such before.
            let ours: Vec<_> = rules
                .iter()
                .filter(|r| r.matches == Some((*flow, *port)) && r.queue == Some(*queue))
                .collect();
            for rule in &ours {
                nic.remove_rule(rule.location)?;
            }
            Ok(!ours.is_empty())
        }
        Change::Hash { flow, was, .. } => {
            set(nic.hash_fields(*flow)? != Some(*was), &|| nic.set_hash_fields(*flow, *was))
        }
        Change::Interrupt { irq, queue, was, .. } => {
            let interrupts = nic.interrupts()?;
            // A number that is not this queue's any more is somebody else's.
            let now = interrupts.iter().find(|now| now.irq == *irq && now.queue == *queue);
            set(now.is_some_and(|now| now.cpus.trim() != was), &|| {
                nic.set_interrupt_cpus(*irq, was)
            })
        }
        Change::Governor { .. } | Change::HugePages { .. } => Ok(false),
    }
}
