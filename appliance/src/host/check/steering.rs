//! Which packet goes to which queue: a rule for each shard's port, or the card's hash.

use super::{Card, Host, Steering};
use crate::host::change::hashed;
use crate::host::{Area, Change, Finding, HostError, Severity};
use crate::nic::{HashFields, Nic, Rule, UdpFlow};

/// The switch for rules.
const NTUPLE: &str = "rx-ntuple-filter";

/// Whether the card has rules, or could have them once they are switched on.
pub(super) fn has_rules(nic: &dyn Nic) -> Result<bool, HostError> {
    let feature = nic.features()?.into_iter().find(|feature| feature.name == NTUPLE);
    let usable = feature.is_some_and(|feature| feature.on || feature.changeable);
    Ok(usable && nic.rules()?.is_some())
}

pub(super) fn check(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    match card.steering {
        Steering::Rules => rules(host, card),
        Steering::Hash => hash(host, card),
    }
}

fn rules(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let dev = card.name();
    let mut found = Vec::new();
    let features = card.nic.features()?;
    if !features.iter().any(|feature| feature.name == NTUPLE && feature.on) {
        let thing = format!("{NTUPLE} of {dev}");
        let why = "rules steer each shard's port to its queue";
        found.push(
            Finding::new((Severity::Fault, Area::Steering), thing, "off", "on", why)
                .change(dev, Change::Feature { name: NTUPLE.to_owned(), to: true }),
        );
    }
    let there = card.nic.rules()?.unwrap_or_default();
    let others = card.link()?.rx_queues > host.needs.queues;
    for (queue, port) in (0..host.needs.queues).zip(host.needs.port_base..=u16::MAX) {
        for flow in UdpFlow::ALL {
            found.extend(rule(card, &there, others, (flow, port, queue)));
        }
    }
    Ok(found)
}

/// What there is to say of one rule. `others`: there are queues that are not the box's.
fn rule(
    card: &Card<'_>,
    there: &[Rule],
    others: bool,
    (flow, port, queue): (UdpFlow, u16, u32),
) -> Vec<Finding> {
    let dev = card.name();
    let thing = format!("rule for {} port {port} of {dev}", flow.name());
    let needed = format!("queue {queue}");
    let same: Vec<_> = there.iter().filter(|r| r.matches == Some((flow, port))).collect();
    let mut found = Vec::new();
    for other in same.iter().filter(|rule| rule.queue != Some(queue)) {
        let location = other.location;
        found.push(match other.queue {
            Some(at) => {
                let why = "packets for this shard go to another core's queue";
                let at_queue = format!("queue {at} (rule {location})");
                Finding::new((Severity::Fault, Area::Steering), &thing, at_queue, &needed, why)
                    .change(dev, Change::RemoveRule { location, flow, port, queue: at })
            }
            None => {
                let why = "the card drops packets for this shard or gives them to a guest; whoever \
                           made that rule should remove it";
                let away = format!("away from the box (rule {location})");
                Finding::new((Severity::Fault, Area::Steering), &thing, away, &needed, why)
                    .command(format!("ethtool -N {dev} delete {location}"))
            }
        });
    }
    if same.iter().any(|rule| rule.queue == Some(queue)) {
        found.push(Finding::good(Area::Steering, thing, &needed, &needed));
        return found;
    }
    let (severity, why) = match (others, flow) {
        (true, UdpFlow::Udp4) => {
            (Severity::Fault, "packets go to queues without a core, and are lost there")
        }
        (true, UdpFlow::Udp6) => (
            Severity::Warning,
            "packets go to queues without a core, and are lost there, if workers use IPv6",
        ),
        (false, _) => (Severity::Warning, "the box's cores hand packets to each other, slower"),
    };
    found.push(
        Finding::new((severity, Area::Steering), thing, "none", needed, why)
            .change(dev, Change::AddRule { flow, port, queue }),
    );
    found
}

fn hash(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    if host.needs.queues == 1 {
        return Ok(Vec::new());
    }
    let dev = card.name();
    let mut found = vec![Finding::new(
        (Severity::Note, Area::Steering),
        format!("rules of {dev}"),
        "none that steer to AF_XDP sockets",
        "a queue for each port",
        "the box's cores hand packets to each other, slower",
    )];
    for flow in UdpFlow::ALL {
        let Some(was) = card.nic.hash_fields(flow)? else { continue };
        let to = HashFields { addresses: true, ports: true };
        let thing = format!("hash of {} of {dev}", flow.name());
        found.push(if was.ports {
            Finding::good(Area::Steering, thing, hashed(was), hashed(to))
        } else {
            let why = "all packets of one worker go to one queue";
            Finding::new((Severity::Warning, Area::Steering), thing, hashed(was), hashed(to), why)
                .change(dev, Change::Hash { flow, was, to })
        });
    }
    Ok(found)
}
