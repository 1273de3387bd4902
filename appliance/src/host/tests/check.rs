//! What checks find.

use super::super::change::governor_file;
use super::super::fake::{ALL, Fake, PROGRAM, machine, put};
use super::super::{Area, Severity, check};
use super::{about, found, needs};
use crate::nic::{Rule, UdpFlow};
use crate::privileges::NEEDED;

/// Configurations that ask for much or little.
const CONFIGS: [&str; 6] = [
    "",
    "queues = 2\ncpus = [2, 5]\nmtu = 3498\nmemory_mib = 130\nhuge_pages = true\n",
    "queues = 16\nmode = \"zerocopy\"\n",
    "mtu = 3700\nattach = \"skb\"\n",
    "queues = 2\ncpus = [6, 99]\nmemory_mib = 8192\nmode = \"copy\"\n",
    "fill_ring = 4096\nrx_ring = 4096\nmode = \"zerocopy\"\n",
];

#[test]
fn every_finding_says_what_is_and_what_to_do() {
    let mut faults = 0;
    for driver in ALL {
        for config in CONFIGS {
            for release in ["6.1.0-18-amd64", "6.18.2", "7.0.1"] {
                let (machine, dir) = machine(release);
                put(&dir, "proc/77/comm", "irqbalance\n");
                put(&dir, &governor_file(2), "powersave\n");
                let nic = Fake::new(driver);
                if config.is_empty() {
                    let mut state = nic.state.borrow_mut();
                    state.default_route = true;
                    state.link.xdp = Some(PROGRAM);
                    (state.link.up, state.link.mtu) = (true, 1280);
                    state.features.iter_mut().for_each(|f| (f.on, f.changeable) = (true, false));
                }
                let findings = check(&needs(config), Some(&nic), &machine, &NEEDED).unwrap();
                for f in &findings {
                    let said = [&f.thing, &f.found, &f.needed];
                    assert!(said.iter().all(|text| !text.trim().is_empty()), "{f:?}");
                    if f.severity > Severity::Ok {
                        assert!(!f.why.is_empty(), "{f:?}");
                    }
                    if f.severity == Severity::Fault {
                        faults += 1;
                        assert!(f.command.as_ref().is_some_and(|c| !c.is_empty()), "{f:?}");
                    }
                }
                assert!(findings.is_sorted_by_key(|f| f.area));
            }
        }
    }
    assert!(faults > 500, "{faults}");
}

#[test]
fn cards_are_told_apart() {
    let two = needs("queues = 2\nmtu = 3498\ncpus = [2, 3]\n");
    let commands = |driver| {
        let findings = found(&two, &Fake::new(driver));
        findings.into_iter().filter_map(|f| f.change.and(f.command)).collect::<Vec<_>>().join("\n")
    };
    // Rules where the driver can; other queues may stay.
    let mlx5 = commands("mlx5_core");
    for line in [
        "ip link set dev eth1 mtu 3498",
        "ip link set dev eth1 up",
        "ethtool -K eth1 rx-lro off",
        "ethtool -K eth1 rx-vlan-hw-parse off",
        "ethtool -G eth1 rx 2048",
        "ethtool -G eth1 tx 2048",
        "ethtool -K eth1 rx-ntuple-filter on",
        "ethtool -N eth1 flow-type udp4 dst-port 9100 action 0",
        "ethtool -N eth1 flow-type udp6 dst-port 9101 action 1",
        "echo 3 > /proc/irq/41/smp_affinity_list",
    ] {
        assert!(mlx5.lines().any(|l| l == line), "no {line:?} in\n{mlx5}");
    }
    assert!(!mlx5.contains("ethtool -L"), "{mlx5}");
    // Its rules do not reach sockets, though it has such.
    let i40e = commands("i40e");
    assert!(i40e.contains("ethtool -L eth1 combined 2") && !i40e.contains("flow-type"), "{i40e}");
    assert!(i40e.contains("ethtool -N eth1 rx-flow-hash udp4 sdfn"), "{i40e}");
    assert!(commands("veth").contains("ethtool -L eth1 rx 2 tx 2"));
    let ena = found(&needs("queues = 5\n"), &Fake::new("ena"));
    let queues = about(&ena, "queues of eth1");
    assert_eq!((queues.severity, queues.command.as_deref()), (Severity::Fault, Some("queues = 4")));
    let large = found(&needs("mtu = 3500\n"), &Fake::new("ena"));
    assert_eq!(about(&large, "data.mtu").command.as_deref(), Some("mtu = 3498"));
}

#[test]
fn zero_copy_is_believed_with_care() {
    let zero_copy = |driver, release: &str, mode: &str| {
        let (machine, _dir) = machine(release);
        let needs = needs(&format!("mode = \"{mode}\"\n"));
        let nic = Fake::new(driver);
        let findings = check(&needs, Some(&nic), &machine, &[]).unwrap();
        about(&findings, "zero-copy of eth1").severity
    };
    assert_eq!(zero_copy("mlx5_core", "6.6.0", "zerocopy"), Severity::Ok);
    assert_eq!(zero_copy("veth", "7.0.0", "zerocopy"), Severity::Fault);
    assert_eq!(zero_copy("veth", "7.0.0", "auto"), Severity::Note);
    assert_eq!(zero_copy("veth", "7.0.0", "copy"), Severity::Ok);
    assert_eq!(zero_copy("igb", "6.18.15", "auto"), Severity::Warning);
    assert_eq!(zero_copy("igb", "7.0.0", "auto"), Severity::Ok);
}

#[test]
fn a_machine_that_is_too_small_is_told_so() {
    let (machine, _dir) = machine("6.5.13-generic");
    let nic = Fake::new("ice");
    let huge = needs("queues = 2\nmemory_mib = 64\nhuge_pages = true\n");
    let findings = check(&huge, Some(&nic), &machine, &NEEDED).unwrap();
    for (thing, command) in [
        ("kernel", "linux-image"),
        ("capabilities", "AmbientCapabilities=CAP_NET_ADMIN"),
        ("locked memory", "LimitMEMLOCK=134217728"),
        // Of eight free ones three are promised; ten are there in all.
        ("huge pages of 2 MiB", "echo 69 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
    ] {
        let finding = about(&findings, thing);
        assert_eq!(finding.severity, Severity::Fault, "{finding:?}");
        assert!(finding.command.as_ref().unwrap().contains(command), "{finding:?}");
    }
    let small = check(&needs("memory_mib = 16384\n"), Some(&nic), &machine, &[]).unwrap();
    assert_eq!(about(&small, "memory for frames").command.as_deref(), Some("memory_mib = 6144"));
    // The limit will do where it is high enough.
    let little = check(
        &needs(
            "frames = 4096\nfill_ring = 1024\nrx_ring = 1024\ntx_ring = 512\n\
        completion_ring = 512\n",
        ),
        Some(&nic),
        &machine,
        &[NEEDED[4]],
    )
    .unwrap();
    assert_eq!(about(&little, "locked memory").severity, Severity::Ok);
}

#[test]
fn rules_of_others_are_seen() {
    let nic = Fake::new("ice");
    let rule =
        |location, port, queue| Rule { location, matches: Some((UdpFlow::Udp4, port)), queue };
    nic.state.borrow_mut().rules = Some(vec![
        rule(1, 9100, Some(0)),
        rule(2, 9101, Some(5)),
        rule(3, 9102, None),
        Rule { location: 4, matches: None, queue: Some(1) },
    ]);
    let findings = found(&needs("queues = 3\n"), &nic);
    let rules: Vec<_> = findings
        .iter()
        .filter(|f| f.thing.starts_with("rule for udp4"))
        .map(|f| (f.severity, f.command.as_deref().unwrap_or("")))
        .collect();
    assert_eq!(
        rules,
        [
            (Severity::Ok, ""),
            (Severity::Fault, "ethtool -N eth1 delete 2"),
            (Severity::Fault, "ethtool -N eth1 flow-type udp4 dst-port 9101 action 1"),
            (Severity::Fault, "ethtool -N eth1 delete 3"),
            (Severity::Fault, "ethtool -N eth1 flow-type udp4 dst-port 9102 action 2"),
        ]
    );
    // What drops our packets is for its maker to remove.
    assert!(findings.iter().any(|f| f.area == Area::Steering && f.forbids()));
}

#[test]
fn ordinary_sockets_need_the_machine_alone() {
    let config = crate::config::Config::parse("[data]\nport = \"udp\"\n", "x".as_ref()).unwrap();
    let needs = crate::host::Needs::from(&config);
    let (machine, _dir) = machine("5.10.0");
    let findings = check(&needs, None, &machine, &NEEDED).unwrap();
    assert!(findings.iter().all(|f| f.severity < Severity::Fault), "{findings:#?}");
    assert!(about(&findings, "interface").needed.contains("nothing to set"));
}

#[test]
fn a_machine_that_does_not_tell_is_an_error() {
    let (machine, dir) = machine("7.0.0");
    put(&dir, "proc/sys/kernel/osrelease", "none");
    let error = check(&needs(""), Some(&Fake::new("ice")), &machine, &[]).unwrap_err();
    assert!(error.to_string().contains("osrelease holds \"none\""), "{error}");
}
