//! The driver, what it can do with XDP, and what is in the way.

use super::{Card, Host};
use crate::config::{Attach, XdpMode};
use crate::host::{Area, Finding, HostError, Kernel, LINK_BYTES, Severity};

const AREA: Area = Area::Driver;

pub(super) fn check(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let mut found = vec![name(card)];
    found.extend(xdp(card));
    found.push(zero_copy(card, &host.machine.kernel()?));
    found.extend(frame(host, card));
    if card.known.resets_link {
        found.push(Finding::new(
            (Severity::Note, AREA),
            format!("link of {}", card.name()),
            "taken down for some seconds when the XDP program is attached",
            "a carrier",
            "the box waits for it; switches with spanning tree may take half a minute",
        ));
    }
    found.push(program(card)?);
    found.push(default_route(card)?);
    Ok(found)
}

fn name(card: &Card<'_>) -> Finding {
    let thing = format!("driver of {}", card.name());
    let severity = if card.known.name.is_empty() { Severity::Note } else { Severity::Ok };
    let name = if card.driver.name.is_empty() { "none" } else { &card.driver.name };
    Finding::new((severity, AREA), thing, name, "one with XDP", card.known.hint)
}

fn xdp(card: &Card<'_>) -> Option<Finding> {
    let thing = format!("XDP of {}", card.name());
    let needed = "programs in the driver that redirect";
    if card.xdp.attach == Attach::Skb {
        let why = "attach = \"skb\": any interface, several times slower, never zero-copy; in the \
                   configuration";
        let found = "in the network stack";
        return Some(
            Finding::new((Severity::Note, AREA), thing, found, needed, why)
                .command("attach = \"driver\""),
        );
    }
    if card.features.basic && card.features.redirect {
        return Some(Finding::good(AREA, thing, "in the driver, with redirect", needed));
    }
    let found = match card.features.basic {
        true => "in the driver, without redirect",
        false => "not in the driver",
    };
    let why = "the driver gives no packets to AF_XDP; another NIC, or in the configuration, \
               several times slower:";
    let finding = Finding::new((Severity::Fault, AREA), thing, found, needed, why);
    Some(finding.command("attach = \"skb\""))
}

fn zero_copy(card: &Card<'_>, kernel: &Kernel) -> Finding {
    let thing = format!("zero-copy of {}", card.name());
    let needed = match card.xdp.mode {
        XdpMode::Auto => "where the driver can (mode = \"auto\")",
        XdpMode::Zerocopy => "zero-copy (mode = \"zerocopy\")",
        XdpMode::Copy => "none (mode = \"copy\")",
    };
    let can = card.features.zero_copy && card.xdp.attach == Attach::Driver;
    let says = if can { "offered by the driver" } else { "not offered by the driver" };
    let known = &card.known;
    let early = known.zero_copy_since.filter(|since| kernel.version < *since);
    match (card.xdp.mode, can, early) {
        (XdpMode::Copy, ..) => Finding::good(AREA, thing, says, needed),
        (XdpMode::Zerocopy, false, _) => {
            let why = match early {
                Some(_) => known.zero_copy_before,
                None => "the box does not start",
            };
            let why = format!("{why}; copy mode, in the configuration:");
            Finding::new((Severity::Fault, AREA), thing, says, needed, why)
                .command("mode = \"auto\"")
        }
        (XdpMode::Auto, false, _) => {
            let why = "the kernel copies each packet: copy mode, 2-3 us for each";
            Finding::new((Severity::Note, AREA), thing, says, needed, why)
        }
        (_, true, Some((major, minor))) => {
            let found = format!("offered by the driver, on Linux {}", kernel.release);
            let why = format!(
                "{}: use Linux {major}.{minor} or newer, or copy mode, in the configuration:",
                known.zero_copy_before
            );
            Finding::new((Severity::Warning, AREA), thing, found, needed, why)
                .command("mode = \"copy\"")
        }
        (_, true, None) => Finding::good(AREA, thing, says, needed),
    }
}

/// Whether a packet fits what zero-copy fills of a frame.
fn frame(host: &Host<'_>, card: &Card<'_>) -> Option<Finding> {
    let zero_copy = card.xdp.mode != XdpMode::Copy && card.features.zero_copy;
    let (room, needed) =
        (card.known.zero_copy_room(host.needs.frame_bytes), host.needs.mtu + LINK_BYTES);
    let thing = format!("frame for zero-copy of {}", card.name());
    let found = format!("{room} bytes of {} are filled", host.needs.frame_bytes);
    let needed_words = format!("{needed} bytes for MTU {} and Ethernet", host.needs.mtu);
    if !zero_copy {
        return None;
    }
    if room >= needed {
        return Some(Finding::good(AREA, thing, found, needed_words));
    }
    let why = "the driver fills whole multiples of its buffer size, so longer packets come in \
               pieces and are lost; in the configuration:";
    Some(
        Finding::new((Severity::Fault, AREA), thing, found, needed_words, why)
            .command(card.known.zero_copy_setting(host.needs.mtu)),
    )
}

fn program(card: &Card<'_>) -> Result<Finding, HostError> {
    let dev = card.name();
    let thing = format!("XDP program on {dev}");
    let Some(xdp) = card.link()?.xdp else {
        return Ok(Finding::good(AREA, thing, "none", "none"));
    };
    let place = if xdp.generic { " in the network stack" } else { "" };
    let found = format!("program {}{place}", xdp.program);
    let why = format!(
        "there is room for one: stop its owner (bpftool prog show id {} names it), or take it off",
        xdp.program
    );
    let off = if xdp.generic { "xdpgeneric" } else { "xdp" };
    Ok(Finding::new((Severity::Fault, AREA), thing, found, "none", why)
        .command(format!("ip link set dev {dev} {off} off")))
}

fn default_route(card: &Card<'_>) -> Result<Finding, HostError> {
    let dev = card.name();
    let thing = format!("default route over {dev}");
    if !card.nic.has_default_route()? {
        return Ok(Finding::good(AREA, thing, "none", "none"));
    }
    let why = "a session through it may stall while the link resets: use a NIC of the box's own";
    Ok(Finding::new((Severity::Warning, AREA), thing, "there", "none", why)
        .command(format!("ip route show default dev {dev}")))
}
