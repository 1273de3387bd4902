//! Real namespaces, where there is the permission.

use super::*;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

const WIRE: Wire = Wire { mtu: 1500, queues: 2 };

/// What was made; `None`, and a line that says so, without permission.
fn permitted<T>(made: Result<T, NetworkError>) -> Option<T> {
    match made {
        Err(NetworkError::Namespace { source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            eprintln!("skipped: needs root");
            None
        }
        made => Some(made.unwrap_or_else(|e| panic!("{e}"))),
    }
}

/// Sends a datagram from `from` to the box at `to`, again until it comes; the first may be early.
fn datagram_passes(from: &Namespace, source: Ipv4Addr, to: &Namespace) {
    let at = |ns: &Namespace, address: Ipv4Addr| ns.run(|| UdpSocket::bind((address, 7700)));
    let sender = at(from, source).unwrap().unwrap();
    let receiver = at(to, BOX_ADDRESS).unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 16];
    let (len, seen) = (0..50)
        .find_map(|_| {
            sender.send_to(b"gradient", (BOX_ADDRESS, 7700)).unwrap();
            receiver.recv_from(&mut buffer).ok()
        })
        .expect("a datagram");
    assert_eq!((&buffer[..len], seen.ip()), (&b"gradient"[..], source.into()));
}

#[test]
fn a_pair_connects_and_leaves_nothing() {
    let Some(pair) = permitted(Pair::new(3, WIRE)) else { return };
    for rank in 0..3 {
        datagram_passes(&pair.workers, worker_address(rank), &pair.boxes);
    }
    let links = pair.boxes.command("ip", &["-oneline", "-d", "link", "show", "dev", "box0"]);
    let links = links.unwrap();
    assert!(links.contains("mtu 1500") && links.contains("numrxqueues 2"), "{links}");
    let addresses = pair.boxes.command("ip", &["-6", "address"]).unwrap();
    assert_eq!(addresses, "", "no IPv6");
    let here = Command::new("ip").args(["-oneline", "link"]).output().unwrap();
    let here = String::from_utf8_lossy(&here.stdout).into_owned();
    assert!(!here.contains(WORKERS_INTERFACE), "{here}");
    // The kernel takes a namespace down in its own time, and the other end of the link with it.
    let Pair { boxes, workers } = pair;
    drop(workers);
    let gone = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        !boxes.command("ip", &["-oneline", "link"]).unwrap().contains(BOX_INTERFACE)
    });
    assert!(gone, "the link is still there");
}

#[test]
fn offloads_are_set_at_both_ends() {
    let Some(pair) = permitted(Pair::new(1, WIRE)) else { return };
    for (on, text) in [(false, "tcp-segmentation-offload: off"), (true, "offload: on")] {
        pair.offloads(on).unwrap();
        for (namespace, name) in [(&pair.boxes, BOX_INTERFACE), (&pair.workers, WORKERS_INTERFACE)]
        {
            let found = namespace.command("ethtool", &["-k", name]).unwrap();
            assert!(found.contains(text), "{found}");
        }
    }
    datagram_passes(&pair.workers, worker_address(0), &pair.boxes);
}

#[test]
fn a_star_limits_the_workers_links() {
    let Some(star) = permitted(Star::new(2, WIRE, Some(1_000_000_000))) else { return };
    datagram_passes(&star.workers[1], worker_address(1), &star.boxes);
    let qdiscs = |ns: &Namespace| ns.command("tc", &["qdisc"]).unwrap();
    let limits = |text: &str| text.matches("tbf").count();
    assert_eq!(limits(&qdiscs(&star.switch)), 2);
    assert_eq!(limits(&qdiscs(&star.boxes)), 0);
    assert!(star.workers.iter().all(|ns| qdiscs(ns).contains("rate 1Gbit")));
}

#[test]
fn errors_name_the_command_and_what_to_do() {
    assert!(matches!(Pair::new(0, WIRE), Err(NetworkError::Workers { found: 0 })));
    assert!(matches!(Star::new(33, WIRE, None), Err(NetworkError::Workers { found: 33 })));
    let Some(namespace) = permitted(Namespace::new()) else { return };
    let failed = namespace.command("ip", &["link", "show", "dev", "nic9"]).unwrap_err();
    let text = failed.to_string();
    assert!(text.contains("`ip link show dev nic9` failed") && text.contains("exist"), "{text}");
    let missing = namespace.command("no-such-program", &[]).unwrap_err().to_string();
    assert!(missing.contains("apt-get install no-such-program"), "{missing}");
}

#[test]
fn children_start_inside() {
    let Some(namespace) = permitted(Namespace::new()) else { return };
    let mut command = Command::new("ip");
    command.args(["-oneline", "link"]).stdout(Stdio::piped());
    let child = namespace.spawn(&mut command).unwrap();
    let printed = child.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&printed).lines().count(), 1, "lo only");
}
