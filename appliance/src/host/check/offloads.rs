//! What alters packets before the box sees them: merged ones, and VLAN tags taken off.

use super::Card;
use crate::config::Attach;
use crate::host::change::on;
use crate::host::{Area, Change, Finding, HostError, Severity};

pub(super) fn check(card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let dev = card.name();
    let mut names = vec!["rx-lro", "rx-gro-hw", "rx-vlan-hw-parse"];
    // The XDP program of the network stack comes after GRO.
    if card.xdp.attach == Attach::Skb {
        names.push("rx-gro");
    }
    let features = card.nic.features()?;
    let mut found = Vec::new();
    for name in names {
        let Some(feature) = features.iter().find(|feature| feature.name == name) else { continue };
        let thing = format!("{name} of {dev}");
        if !feature.on {
            found.push(Finding::good(Area::Offloads, thing, on(false), on(false)));
            continue;
        }
        let vlan = name == "rx-vlan-hw-parse";
        let severity = if vlan { Severity::Warning } else { Severity::Fault };
        let at = (severity, Area::Offloads);
        found.push(match (feature.changeable, vlan) {
            (true, _) => {
                let why = match vlan {
                    true => "tags are taken off, and answers go without",
                    false => "merged packets are none of Gradbox's: they are dropped",
                };
                Finding::new(at, thing, "on", "off", why)
                    .change(dev, Change::Feature { name: name.to_owned(), to: false })
            }
            (false, true) => {
                let why = "tags are always taken off, and answers go without: use an untagged \
                           network";
                Finding::new(at, thing, "on, fixed", "off", why)
            }
            (false, false) => {
                let why = "this interface always merges packets, and is not usable with XDP: use \
                           another one, in the configuration:";
                Finding::new(at, thing, "on, fixed", "off", why)
                    .command("interface = \"...\" (ip -br link lists them)")
            }
        });
    }
    Ok(found)
}
