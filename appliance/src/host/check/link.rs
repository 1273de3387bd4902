//! MTU, up or down, and the carrier.

use super::{Card, Host};
use crate::host::{Area, Change, Finding, HostError, Severity};

/// Bytes at the start of a frame that are the kernel's (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Bytes around an IP packet: Ethernet and one VLAN tag.
const ETHERNET: u32 = 18;

pub(super) fn mtu(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let (dev, needs) = (card.name(), host.needs);
    let link = card.link()?;
    let mut found = Vec::new();
    let most = [
        (card.known.xdp_mtu, "its driver takes no more with XDP"),
        (link.mtu_max.filter(|max| *max > 0), "the interface takes no more"),
    ];
    for (most, why) in most {
        if let Some(most) = most.filter(|most| *most < needs.mtu) {
            let why = format!("{why}; in the configuration:");
            found.push(
                Finding::new(
                    (Severity::Fault, Area::Mtu),
                    "data.mtu",
                    needs.mtu,
                    format!("{most} at most on {dev} ({})", card.driver.name),
                    why,
                )
                .command(format!("mtu = {most}")),
            );
            return Ok(found);
        }
    }
    let thing = format!("MTU of {dev}");
    let change = Change::Mtu { was: link.mtu, to: needs.mtu };
    let room = needs.frame_bytes.saturating_sub(HEADROOM + ETHERNET);
    let limit = card.known.xdp_mtu.unwrap_or(u32::MAX);
    let (severity, why) = if link.mtu == needs.mtu {
        return Ok(vec![Finding::good(Area::Mtu, thing, link.mtu, needs.mtu)]);
    } else if link.mtu < needs.mtu {
        (Severity::Fault, "workers' packets do not fit".to_owned())
    } else if link.mtu > limit {
        (Severity::Fault, format!("the driver takes no XDP program above {limit}"))
    } else if link.mtu > room {
        let why = "packets longer than a frame are dropped, and some drivers refuse zero-copy";
        (Severity::Warning, format!("{why} (frames of {} bytes)", needs.frame_bytes))
    } else {
        (Severity::Note, "larger packets than workers send only cost the driver memory".to_owned())
    };
    found.push(
        Finding::new((severity, Area::Mtu), thing, link.mtu, needs.mtu, why).change(dev, change),
    );
    Ok(found)
}

pub(super) fn up(card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let dev = card.name();
    Ok(vec![match card.link()?.up {
        true => Finding::good(Area::Up, dev, "up", "up"),
        false => {
            let why = "no packet comes";
            Finding::new((Severity::Fault, Area::Up), dev, "down", "up", why)
                .change(dev, Change::Up)
        }
    }])
}

pub(super) fn carrier(card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let dev = card.name();
    let link = card.link()?;
    let (thing, needed) = (format!("carrier of {dev}"), "there");
    Ok(vec![match (link.up, link.carrier) {
        (true, true) => {
            let speed = link.speed_mbps.map(|mbps| format!(", {mbps} Mbit/s")).unwrap_or_default();
            Finding::good(Area::Carrier, thing, format!("there{speed}"), needed)
        }
        (true, false) => {
            let why = "look at the cable and at the other end";
            Finding::new((Severity::Fault, Area::Carrier), thing, "missing", needed, why)
                .command(format!("ethtool {dev}"))
        }
        (false, _) => {
            let why = "it is known once the interface is up";
            Finding::new((Severity::Note, Area::Carrier), thing, "unknown", needed, why)
        }
    }])
}
