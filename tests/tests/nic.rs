//! What the kernel says of an interface and takes for it, on veth links in namespaces without a
//! name, and on loopback.
//!
//! Most need root; without it each says so and passes.

use std::{fs, io};

use gradbox::bench::network::Namespace;
use gradbox::nic::{
    Channels, Driver, HashFields, KernelNic, Nic, NicError, UdpFlow, XdpAttached, XdpFeatures,
};
use gradbox::xdp::program::{Mode, Program, Settings};

const SETTINGS: Settings = Settings { port_base: 7000, port_count: 1, mode: Mode::Driver };

/// A namespace with a veth link of two queues, both of whose ends, `name` and `far0`, are down.
fn veth(name: &str) -> Option<Namespace> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let namespace = Namespace::new().unwrap();
    let queues = ["numtxqueues", "2", "numrxqueues", "2"];
    let mut args = vec!["link", "add", name];
    args.extend(queues);
    args.extend(["type", "veth", "peer", "name", "far0"]);
    args.extend(queues);
    namespace.command("ip", &args).unwrap();
    Some(namespace)
}

/// Does something with the interface `near0` of such a namespace.
fn with_veth(test: impl FnOnce(&Namespace, &KernelNic) + Send) {
    let Some(namespace) = veth("near0") else { return };
    namespace.run(|| test(&namespace, &KernelNic::open("near0").unwrap())).unwrap();
}

/// What the kernel says of a refused setting: the number of the error, and its words.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, NicError>) -> (i32, Option<String>) {
    match result.unwrap_err() {
        NicError::Refused { source, explanation, .. } => {
            (source.raw_os_error().unwrap_or(0), explanation)
        }
        other => panic!("not refused: {other}"),
    }
}

#[test]
fn what_is_not_there_is_missing() {
    for name in ["nosuch0", "", "0123456789abcdef", "lo\0", "lo\0x", "../lo", "lo/", "l o"] {
        let error = KernelNic::open(name).unwrap_err();
        assert!(matches!(&error, NicError::Missing { interface } if interface == name), "{error}");
    }
}

#[test]
fn an_interface_that_goes_away_is_missing_from_then_on() {
    with_veth(|namespace, nic| {
        namespace.command("ip", &["link", "delete", "near0"]).unwrap();
        let errors = [
            nic.driver().unwrap_err(),
            nic.link().unwrap_err(),
            nic.xdp_features().unwrap_err(),
            nic.rings().unwrap_err(),
            nic.channels().unwrap_err(),
            nic.features().unwrap_err(),
            nic.rules().unwrap_err(),
            nic.hash_fields(UdpFlow::Udp4).unwrap_err(),
            nic.interrupts().unwrap_err(),
            nic.has_default_route().unwrap_err(),
            nic.set_mtu(1500).unwrap_err(),
            nic.set_up(true).unwrap_err(),
            nic.set_rings(Some(64), None).unwrap_err(),
            nic.set_channels(None, Some(1), None).unwrap_err(),
            nic.set_feature("rx-gro", true).unwrap_err(),
            nic.add_rule(UdpFlow::Udp4, 7000, 0, Some(0)).unwrap_err(),
            nic.remove_rule(0).unwrap_err(),
        ];
        for (at, error) in errors.iter().enumerate() {
            assert!(matches!(error, NicError::Missing { .. }), "{at}: {error}");
        }
    });
}

#[test]
fn loopback_has_little_to_tell() {
    let nic = KernelNic::open("lo").unwrap();
    assert_eq!(nic.name(), "lo");
    assert_eq!(nic.driver().unwrap(), Driver { name: String::new(), bus: None, firmware: None });
    let link = nic.link().unwrap();
    assert_eq!((link.index, link.mtu_max, link.rx_queues, link.tx_queues), (1, None, 1, 1));
    assert_eq!((link.speed_mbps, link.numa_node, link.xdp), (None, None, None));
    assert!(!nic.xdp_features().unwrap().zero_copy);
    assert_eq!(nic.rings().unwrap(), None);
    assert_eq!(nic.channels().unwrap(), None);
    assert!(nic.features().unwrap().iter().any(|f| f.name == "loopback" && f.on));
    assert_eq!(nic.rules().unwrap(), None);
    assert_eq!(nic.hash_fields(UdpFlow::Udp6).unwrap(), None);
    assert_eq!(nic.interrupts().unwrap(), []);
    nic.has_default_route().unwrap();
}

#[test]
fn veth_tells_what_it_is() {
    with_veth(|_, nic| {
        let driver = nic.driver().unwrap();
        assert_eq!(driver, Driver { name: "veth".into(), bus: None, firmware: None });
        let link = nic.link().unwrap();
        assert_eq!((link.mtu, link.mtu_min, link.mtu_max), (1500, Some(68), Some(65535)));
        assert_eq!((link.up, link.carrier), (false, false));
        assert_eq!((link.rx_queues, link.tx_queues), (2, 2));
        assert_eq!((link.speed_mbps, link.numa_node, link.xdp), (Some(10_000), None, None));
        let XdpFeatures { basic, redirect, zero_copy, .. } = nic.xdp_features().unwrap();
        assert_eq!((basic, redirect, zero_copy), (true, true, false));
        assert_eq!(nic.rings().unwrap(), None);
        assert_eq!(nic.rules().unwrap(), None);
        assert_eq!(nic.hash_fields(UdpFlow::Udp4).unwrap(), None);
        assert_eq!(nic.interrupts().unwrap(), []);
    });
}

/// `/sys` shows the interfaces of the namespace that it was mounted in: it is not to be believed
/// of one here that has the same name.
#[test]
fn queues_are_those_of_this_namespace() {
    let outside = fs::read_dir("/sys/class/net").unwrap().map(|e| e.unwrap().file_name());
    let mut names = outside.map(|name| name.into_string().unwrap());
    let name = names.find(|name| name != "lo").unwrap_or_else(|| "near0".into());
    let Some(namespace) = veth(&name) else { return };
    let queues = || {
        let link = KernelNic::open(&name).unwrap().link().unwrap();
        (link.rx_queues, link.tx_queues)
    };
    assert_eq!(namespace.run(queues).unwrap(), (2, 2));
    assert_eq!(namespace.run_with_sysfs(queues).unwrap(), (2, 2));
    namespace.command("ethtool", &["-L", &name, "rx", "1", "tx", "1"]).unwrap();
    assert_eq!(namespace.run(queues).unwrap(), (1, 1));
    assert_eq!(namespace.run_with_sysfs(queues).unwrap(), (1, 1));
}

#[test]
fn the_link_goes_up_and_down() {
    with_veth(|namespace, nic| {
        namespace.command("ip", &["link", "set", "far0", "up"]).unwrap();
        nic.set_up(true).unwrap();
        let link = nic.link().unwrap();
        assert_eq!((link.up, link.carrier), (true, true));
        assert!(namespace.command("ip", &["link", "show", "near0"]).unwrap().contains(",UP"));
        // Done already is done.
        nic.set_up(true).unwrap();
        nic.set_up(false).unwrap();
        assert!(!nic.link().unwrap().up);
    });
}

#[test]
fn the_mtu_is_set_or_refused_with_the_kernels_words() {
    with_veth(|namespace, nic| {
        nic.set_mtu(3498).unwrap();
        assert_eq!(nic.link().unwrap().mtu, 3498);
        assert!(namespace.command("ip", &["link", "show", "near0"]).unwrap().contains("mtu 3498"));
        let error = nic.set_mtu(70_000).unwrap_err();
        let words = "near0 does not take mtu = 70000";
        assert!(error.to_string().starts_with(words), "{error}");
        let (number, explanation) = refused(Err::<(), _>(error));
        assert_eq!(number, libc::EINVAL);
        assert_eq!(explanation.as_deref(), Some("mtu greater than device maximum"));
        assert_eq!(nic.link().unwrap().mtu, 3498);
    });
}

#[test]
fn queues_are_counted_and_set() {
    with_veth(|namespace, nic| {
        let two = Channels { rx: 2, rx_max: 2, tx: 2, tx_max: 2, ..Channels::default() };
        assert_eq!(nic.channels().unwrap(), Some(two));
        nic.set_channels(None, Some(1), Some(1)).unwrap();
        assert_eq!(nic.channels().unwrap(), Some(Channels { rx: 1, tx: 1, ..two }));
        let link = nic.link().unwrap();
        assert_eq!((link.rx_queues, link.tx_queues), (1, 1));
        let shown = namespace.command("ethtool", &["-l", "near0"]).unwrap();
        assert_eq!(shown.split("Current").nth(1).unwrap().matches("\t1\n").count(), 2, "{shown}");
        nic.set_channels(None, Some(2), None).unwrap();
        assert_eq!(nic.channels().unwrap(), Some(Channels { tx: 1, ..two }));
        let (_, explanation) = refused(nic.set_channels(None, Some(3), None));
        assert!(explanation.unwrap().contains("exceeds maximum"));
        refused(nic.set_channels(Some(1), None, None));
        assert_eq!(nic.channels().unwrap(), Some(Channels { tx: 1, ..two }));
    });
}

#[test]
fn offloads_are_the_same_as_ethtool_shows() {
    with_veth(|namespace, nic| {
        let compare = || {
            let shown = namespace.command("ethtool", &["-k", "near0"]).unwrap();
            let state = |name: &str| {
                let line = shown.lines().find_map(|l| l.trim().strip_prefix(&format!("{name}: ")));
                line.unwrap_or_else(|| panic!("{name} in {shown}")).to_owned()
            };
            let features = nic.features().unwrap();
            // Old names of ethtool, and some that it has in common with the kernel.
            for (name, ethtool) in [
                ("rx-gro", "generic-receive-offload"),
                ("rx-lro", "large-receive-offload"),
                ("rx-vlan-hw-parse", "rx-vlan-offload"),
                ("rx-ntuple-filter", "ntuple-filters"),
                ("rx-gro-hw", "rx-gro-hw"),
                ("tx-udp-segmentation", "tx-udp-segmentation"),
                ("rx-udp-gro-forwarding", "rx-udp-gro-forwarding"),
                ("hw-tc-offload", "hw-tc-offload"),
            ] {
                let feature = features.iter().find(|f| f.name == name);
                let feature = feature.unwrap_or_else(|| panic!("no {name} in {features:?}"));
                let on = if feature.on { "on" } else { "off" };
                let fixed = if feature.changeable { "" } else { " [fixed]" };
                assert_eq!(format!("{on}{fixed}"), state(ethtool), "{name}");
            }
        };
        compare();
        for on in [true, false, true] {
            nic.set_feature("rx-gro", on).unwrap();
            let features = nic.features().unwrap();
            assert_eq!(features.iter().find(|f| f.name == "rx-gro").unwrap().on, on);
            compare();
        }
        nic.set_feature("rx-vlan-hw-parse", false).unwrap();
        compare();
    });
}

#[test]
fn offloads_that_cannot_be_switched_are_refused() {
    with_veth(|_, nic| {
        let before = nic.features().unwrap();
        refused(nic.set_feature("rx-lro", true));
        refused(nic.set_feature("rx-ntuple-filter", true));
        let (_, explanation) = refused(nic.set_feature("rx-teapot", true));
        assert!(explanation.is_some());
        assert_eq!(nic.features().unwrap(), before);
        // As they are already.
        nic.set_feature("rx-lro", false).unwrap();
    });
}

#[test]
fn what_veth_has_not_is_refused_where_it_is_set() {
    with_veth(|_, nic| {
        for (number, _) in [
            refused(nic.add_rule(UdpFlow::Udp4, 7000, 1, None)),
            refused(nic.add_rule(UdpFlow::Udp6, 7000, 1, Some(3))),
            refused(nic.remove_rule(3)),
            refused(
                nic.set_hash_fields(UdpFlow::Udp4, HashFields { addresses: true, ports: true }),
            ),
        ] {
            assert_eq!(number, libc::EOPNOTSUPP);
        }
        refused(nic.set_interrupt_cpus(u32::MAX, "0"));
    });
}

#[test]
fn an_attached_program_is_seen() {
    with_veth(|_, nic| {
        let mut program = Program::open(&SETTINGS).unwrap();
        for mode in [Mode::Driver, Mode::Skb] {
            program.attach("near0", mode).unwrap();
            let XdpAttached { program, generic } = nic.link().unwrap().xdp.unwrap();
            assert_eq!(generic, matches!(mode, Mode::Skb));
            assert_ne!(program, 0);
        }
        program.detach();
        assert_eq!(nic.link().unwrap().xdp, None);
    });
}

#[test]
fn default_routes_are_seen() {
    with_veth(|namespace, nic| {
        let ip = |args: &str| {
            namespace.command("ip", &args.split(' ').collect::<Vec<_>>()).unwrap();
        };
        let enabled = fs::write("/proc/sys/net/ipv6/conf/near0/disable_ipv6", "0");
        let has_v6 = !matches!(&enabled, Err(e) if e.kind() == io::ErrorKind::NotFound);
        ip("link set near0 up");
        ip("link set far0 up");
        ip("address add 10.77.0.1/24 dev near0");
        ip("address add 10.78.0.1/24 dev far0");
        ip("route add 10.99.0.0/16 dev near0");
        ip("route add unreachable default metric 9");
        ip("route add default via 10.78.0.2 dev far0 metric 5");
        assert!(!nic.has_default_route().unwrap());
        ip("route add default via 10.77.0.2 dev near0");
        assert!(nic.has_default_route().unwrap());
        ip("route del default via 10.77.0.2 dev near0");
        assert!(!nic.has_default_route().unwrap());
        ip(
            "route add default metric 3 nexthop via 10.78.0.2 dev far0 nexthop via 10.77.0.2 dev near0",
        );
        assert!(nic.has_default_route().unwrap());
        ip("route del default metric 3");
        assert!(!nic.has_default_route().unwrap());
        if has_v6 {
            ip("-6 route add default dev near0");
            assert!(nic.has_default_route().unwrap());
        }
    });
}
