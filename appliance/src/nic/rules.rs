//! Rules that steer UDP packets to queues, and what is hashed for the rest.

use std::collections::BTreeSet;
use std::io;

use super::ioctl::{Command, FlowSpec, RxFlow, rule_locations, rx_flow};
use super::{HashFields, Rule, UdpFlow};

// All of linux/ethtool.h.

/// `UDP_V4_FLOW`, `UDP_V6_FLOW`.
const UDP4: u32 = 0x02;
const UDP6: u32 = 0x06;

/// `FLOW_EXT`, `FLOW_MAC_EXT`: the rule may match VLAN tags and MAC addresses, too.
const EXTENDED: u32 = 0x8000_0000 | 0x4000_0000;

/// `RX_CLS_LOC_SPECIAL`: the driver takes special locations.
const TAKES_SPECIAL: u64 = 0x8000_0000;

/// `RX_CLS_LOC_ANY`: the special location that leaves the choice to the driver.
const ANY: u32 = 0xffff_ffff;

/// `ETHTOOL_RX_FLOW_SPEC_RING`: the part of the cookie that is the queue. The rest is set for
/// packets that are dropped or go to virtual functions.
const QUEUE: u64 = 0xffff_ffff;

/// Where the destination port is in `struct ethtool_tcpip4_spec` and `ethtool_tcpip6_spec`.
const PORT4: usize = 10;
const PORT6: usize = 34;

/// `RXH_IP_SRC`, `RXH_IP_DST`.
const ADDRESSES: u64 = 1 << 4 | 1 << 5;

/// `RXH_L4_B_0_1`, `RXH_L4_B_2_3`.
const PORTS: u64 = 1 << 6 | 1 << 7;

/// All rules of the card.
pub(super) fn list(interface: &str) -> io::Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for location in table(interface)?.taken {
        let mut flow = RxFlow::new();
        flow.fs.location = location;
        match rx_flow(interface, Command::Rule, &mut flow) {
            // Gone since it was listed.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e),
            Ok(()) => rules.push(rule(location, &flow.fs)),
        }
    }
    Ok(rules)
}

/// Adds a rule and returns its number.
pub(super) fn add(
    interface: &str,
    flow: UdpFlow,
    port: u16,
    queue: u32,
    location: Option<u32>,
) -> io::Result<u32> {
    let before = table(interface)?;
    let mut request = RxFlow::new();
    steer(&mut request.fs, flow, port, queue);
    request.fs.location = location.map_or_else(|| before.choice(), Ok)?;
    rx_flow(interface, Command::AddRule, &mut request)?;
    let added = request.fs.location;
    if added != ANY {
        return Ok(added);
    }
    // A driver that chose and does not say what.
    let wanted = Rule { location: added, matches: Some((flow, port)), queue: Some(queue) };
    let found = location_of(&wanted, &list(interface)?, &before.taken);
    found.ok_or_else(|| io::Error::other("it was taken, but is not in the card's list"))
}

/// Where a rule like `wanted` is that was not there `before`.
fn location_of(wanted: &Rule, rules: &[Rule], before: &BTreeSet<u32>) -> Option<u32> {
    let mut new = rules.iter().filter(|rule| !before.contains(&rule.location));
    let found = new.find(|rule| (rule.matches, rule.queue) == (wanted.matches, wanted.queue));
    found.map(|rule| rule.location)
}

/// Removes a rule, if there is one of that number.
pub(super) fn remove(interface: &str, location: u32) -> io::Result<()> {
    let mut flow = RxFlow::new();
    flow.fs.location = location;
    match rx_flow(interface, Command::RemoveRule, &mut flow) {
        // Drivers have several words for what is not there.
        Err(refused) => match table(interface) {
            Ok(table) if !table.taken.contains(&location) => Ok(()),
            _ => Err(refused),
        },
        Ok(()) => Ok(()),
    }
}

/// What is hashed of this kind of packets.
pub(super) fn hash_fields(interface: &str, flow: UdpFlow) -> io::Result<HashFields> {
    let mut request = RxFlow::new();
    request.flow_type = flow_type(flow);
    rx_flow(interface, Command::HashFields, &mut request)?;
    let all = |fields| request.data & fields == fields;
    Ok(HashFields { addresses: all(ADDRESSES), ports: all(PORTS) })
}

/// Sets what is hashed of this kind of packets: these fields and no others.
pub(super) fn set_hash_fields(
    interface: &str,
    flow: UdpFlow,
    fields: HashFields,
) -> io::Result<()> {
    let mut request = RxFlow::new();
    request.flow_type = flow_type(flow);
    request.data |= if fields.addresses { ADDRESSES } else { 0 };
    request.data |= if fields.ports { PORTS } else { 0 };
    rx_flow(interface, Command::SetHashFields, &mut request)
}

/// The card's table of rules.
struct Table {
    /// Numbers that it has, from 0.
    size: u64,
    /// Numbers of rules.
    taken: BTreeSet<u32>,
    /// Whether the driver chooses a number if left to.
    chooses: bool,
}

impl Table {
    /// A number for one more rule. Rules of low numbers win over others, so where the driver does
    /// not choose, it is the highest that is free.
    fn choice(&self) -> io::Result<u32> {
        if self.chooses {
            return Ok(ANY);
        }
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let free = (0..size).rev().find(|location| !self.taken.contains(location));
        let taken = self.taken.len();
        free.ok_or_else(|| io::Error::other(format!("its {size} rules are taken ({taken})")))
    }
}

fn table(interface: &str) -> io::Result<Table> {
    let mut flow = RxFlow::new();
    rx_flow(interface, Command::CountRules, &mut flow)?;
    let (size, taken) = rule_locations(interface, flow.rule_cnt)?;
    let taken = taken.into_iter().collect();
    Ok(Table { size, taken, chooses: flow.data & TAKES_SPECIAL != 0 })
}

const fn flow_type(flow: UdpFlow) -> u32 {
    match flow {
        UdpFlow::Udp4 => UDP4,
        UdpFlow::Udp6 => UDP6,
    }
}

const fn port_at(flow: UdpFlow) -> usize {
    match flow {
        UdpFlow::Udp4 => PORT4,
        UdpFlow::Udp6 => PORT6,
    }
}

/// Makes `spec` send UDP packets for `port` to `queue`.
fn steer(spec: &mut FlowSpec, flow: UdpFlow, port: u16, queue: u32) {
    let at = port_at(flow);
    spec.flow_type = flow_type(flow);
    spec.h_u[at..at + 2].copy_from_slice(&port.to_be_bytes());
    spec.m_u[at..at + 2].fill(0xff);
    spec.ring_cookie = queue.into();
}

/// What the rule at `location` says.
fn rule(location: u32, spec: &FlowSpec) -> Rule {
    let queue = (spec.ring_cookie & !QUEUE == 0).then_some((spec.ring_cookie & QUEUE) as u32);
    Rule { location, matches: matches(spec), queue }
}

/// What a rule matches, where that is UDP with a destination port and nothing else. A rule with
/// `FLOW_RSS` spreads packets over queues, which is something else, too.
fn matches(spec: &FlowSpec) -> Option<(UdpFlow, u16)> {
    let flow = UdpFlow::ALL.into_iter().find(|f| flow_type(*f) == spec.flow_type & !EXTENDED)?;
    let at = port_at(flow);
    let mut wanted = [0; 52];
    wanted[at..at + 2].fill(0xff);
    let extended = spec.flow_type & EXTENDED != 0 && spec.m_ext.iter().any(|byte| *byte != 0);
    if spec.m_u != wanted || extended {
        return None;
    }
    Some((flow, u16::from_be_bytes([spec.h_u[at], spec.h_u[at + 1]])))
}

#[cfg(test)]
mod tests {
    use super::{ANY, EXTENDED, Rule, RxFlow, Table, UdpFlow, location_of, rule, steer};

    fn spec(flow: UdpFlow) -> super::FlowSpec {
        let mut spec = RxFlow::new().fs;
        steer(&mut spec, flow, 0x1b58, 3);
        spec
    }

    #[test]
    fn rules_are_read_as_they_are_written() {
        for flow in UdpFlow::ALL {
            let wanted = Rule { location: 9, matches: Some((flow, 7000)), queue: Some(3) };
            assert_eq!(rule(9, &spec(flow)), wanted);
        }
    }

    /// Where tcp_ip4_spec and tcp_ip6_spec of linux/ethtool.h have `pdst`, in network byte order.
    #[test]
    fn the_port_is_where_the_kernel_looks_for_it() {
        for (flow, number, at) in [(UdpFlow::Udp4, 2, 10), (UdpFlow::Udp6, 6, 34)] {
            let spec = spec(flow);
            assert_eq!(spec.flow_type, number);
            let set = |bytes: &[u8]| -> Vec<_> {
                bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
            };
            assert_eq!(set(&spec.h_u), [(at, 0x1b), (at + 1, 0x58)]);
            assert_eq!(set(&spec.m_u), [(at, 0xff), (at + 1, 0xff)]);
            assert_eq!(spec.ring_cookie, 3);
        }
    }

    #[test]
    fn rules_that_match_more_are_not_taken_for_ours() {
        let mut source_too = spec(UdpFlow::Udp4);
        source_too.m_u[0] = 0xff;
        let mut some_ports = spec(UdpFlow::Udp6);
        some_ports.m_u[35] = 0xf0;
        let mut vlan_too = spec(UdpFlow::Udp4);
        vlan_too.flow_type |= EXTENDED;
        assert_ne!(rule(0, &vlan_too).matches, None, "extended, but matches nothing there");
        vlan_too.m_ext[10] = 0xff;
        let mut spread = spec(UdpFlow::Udp4);
        spread.flow_type |= 0x2000_0000;
        let mut tcp = spec(UdpFlow::Udp4);
        tcp.flow_type = 1;
        for other in [source_too, some_ports, vlan_too, spread, tcp] {
            assert_eq!(rule(0, &other).matches, None);
        }
    }

    #[test]
    fn dropped_packets_have_no_queue() {
        let mut spec = spec(UdpFlow::Udp4);
        spec.ring_cookie = u64::MAX;
        assert_eq!(rule(0, &spec).queue, None);
        // Queue 2 of a virtual function.
        spec.ring_cookie = 1 << 32 | 2;
        assert_eq!(rule(0, &spec).queue, None);
    }

    #[test]
    fn the_driver_chooses_or_else_the_highest_free_number() {
        let table = |size, taken: &[u32], chooses| Table {
            size,
            taken: taken.iter().copied().collect(),
            chooses,
        };
        assert_eq!(table(8, &[7, 6], true).choice().unwrap(), ANY);
        assert_eq!(table(8, &[], false).choice().unwrap(), 7);
        assert_eq!(table(8, &[0, 6, 7], false).choice().unwrap(), 5);
        assert!(table(2, &[0, 1], false).choice().is_err());
        assert!(table(0, &[], false).choice().is_err());
    }

    #[test]
    fn a_rule_whose_number_is_not_told_is_found() {
        let rule = |location, port, queue| Rule {
            location,
            matches: Some((UdpFlow::Udp4, port)),
            queue: Some(queue),
        };
        let rules = [rule(1, 7000, 0), rule(2, 7001, 0), rule(3, 7000, 1), rule(4, 7000, 0)];
        let wanted = rule(ANY, 7000, 0);
        assert_eq!(location_of(&wanted, &rules, &[1].into()), Some(4));
        assert_eq!(location_of(&wanted, &rules, &[1, 4].into()), None);
    }
}
