//! Numbers of queues. With rules, other queues go on serving the rest of the traffic; without, the
//! box must have every queue.

use super::{Card, Host, Steering};
use crate::host::{Area, Change, Finding, HostError, Queues, Severity};
use crate::nic::Channels;

pub(super) fn check(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let (dev, want) = (card.name(), host.needs.queues);
    let now = card.link()?.rx_queues;
    let channels = card.nic.channels()?;
    let share = card.known.queues_for_xdp;
    let most = channels.map_or(now, most) / share;
    let thing = format!("queues of {dev}");
    if want > most {
        let needed = format!("data.queues of {most} at most; it is {want}");
        let why = match share {
            1 => format!("{dev} has {most} at most for XDP; in the configuration:"),
            _ => format!(
                "{dev} has {most} at most for XDP, one in {share} ({}); in the configuration:",
                card.driver.name
            ),
        };
        return Ok(vec![
            Finding::new((Severity::Fault, Area::Queues), thing, now, needed, why)
                .command(format!("queues = {}", most.max(1))),
        ]);
    }
    let exactly = card.steering == Steering::Hash;
    let needed = match (exactly, share) {
        (true, _) => format!("exactly {want}"),
        (false, 1) => format!("{want} or more"),
        (false, _) => format!("{want} to {most}"),
    };
    let target = match exactly {
        true => want,
        false => now.max(want).min(if share > 1 { most } else { u32::MAX }),
    };
    if now == target {
        return Ok(vec![Finding::good(Area::Queues, thing, now, needed)]);
    }
    let why = if now > most && share > 1 {
        "the driver takes no XDP program while more queues than that are in use"
    } else if now > want {
        "the card cannot steer a port to a queue, and packets on queues without a core are lost"
    } else {
        "each core has a queue of its own"
    };
    let finding = Finding::new((Severity::Fault, Area::Queues), thing, now, needed, why);
    Ok(vec![match channels {
        Some(channels) => {
            let (was, to) = set(&channels, target);
            let mut finding = finding.change(dev, Change::Queues { was, to });
            if let Some(busy) = card.known.when_busy {
                finding.why = format!("{}; where the driver says busy: {busy}", finding.why);
            }
            finding
        }
        None => finding.command(format!("queues = {now}")),
    }])
}

/// The most RX queues.
fn most(channels: Channels) -> u32 {
    if channels.combined_max > 0 { channels.combined_max } else { channels.rx_max }
}

/// Which kinds to set for `target` RX queues, before and after.
fn set(now: &Channels, target: u32) -> (Queues, Queues) {
    if now.combined_max == 0 {
        let was = Queues { combined: None, rx: Some(now.rx), tx: Some(now.tx) };
        // As many for answers as for packets.
        let tx = target.min(now.tx_max).max(1);
        return (was, Queues { combined: None, rx: Some(target), tx: Some(tx) });
    }
    // Queues of one direction alone would count too.
    let none = |count: u32| (count > 0).then_some(0);
    let only = |count: u32| (count > 0).then_some(count);
    (
        Queues { combined: Some(now.combined), rx: only(now.rx), tx: only(now.tx) },
        Queues { combined: Some(target), rx: none(now.rx), tx: none(now.tx) },
    )
}
