//! The card's own rings, which the box's must match.

use super::{Card, Host};
use crate::config::XdpMode;
use crate::host::{Area, Change, Finding, HostError, Severity};

/// Smaller rings than this are not worth setting.
const LEAST: u32 = 64;

pub(super) fn check(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let (dev, needs) = (card.name(), host.needs);
    let Some(rings) = card.nic.rings()? else {
        let thing = format!("rings of {dev}");
        return Ok(vec![Finding::good(Area::Rings, thing, "none of its own", "nothing to set")]);
    };
    let mut found = Vec::new();
    // Zero-copy wants the fill ring to hold the card's ring and the RX ring.
    let room = needs.fill_ring.saturating_sub(needs.rx_ring);
    let want = power_of_two_below(room).min(rings.rx_max);
    let thing = format!("rx ring of {dev}");
    let dry = room < rings.rx;
    let zero_copy = card.xdp.mode != XdpMode::Copy && card.features.zero_copy;
    let severity = if dry && zero_copy { Severity::Warning } else { Severity::Note };
    let why = "with zero-copy the fill ring must hold the card's ring and data.rx_ring, or it may \
               run dry";
    if want >= LEAST {
        if rings.rx == want {
            found.push(Finding::good(Area::Rings, thing, rings.rx, want));
        } else {
            found.push(
                Finding::new((severity, Area::Rings), thing, rings.rx, want, why)
                    .change(dev, Change::RxRing { was: rings.rx, to: want }),
            );
        }
    } else if dry {
        let needed = format!(
            "data.fill_ring of {} or more ({} + data.rx_ring {}); it is {}",
            (rings.rx + needs.rx_ring).next_power_of_two(),
            rings.rx,
            needs.rx_ring,
            needs.fill_ring
        );
        let why = format!("{why}; in the configuration:");
        found
            .push(Finding::new((severity, Area::Rings), thing, rings.rx, needed, why).command(
                format!("fill_ring = {}", (rings.rx + needs.rx_ring).next_power_of_two()),
            ));
    } else {
        found.push(Finding::good(Area::Rings, thing, rings.rx, format!("{room} or less")));
    }
    let want = needs.tx_ring.min(rings.tx_max);
    let thing = format!("tx ring of {dev}");
    found.push(if rings.tx >= want {
        Finding::good(Area::Rings, thing, rings.tx, format!("{want} or more"))
    } else {
        let why = "a burst of answers waits for room";
        Finding::new((Severity::Note, Area::Rings), thing, rings.tx, want, why)
            .change(dev, Change::TxRing { was: rings.tx, to: want })
    });
    Ok(found)
}

/// The largest power of two that is not above `n`; 0 for 0.
const fn power_of_two_below(n: u32) -> u32 {
    match n.checked_ilog2() {
        Some(log) => 1 << log,
        None => 0,
    }
}
