//! What sends the answers over AF_XDP: the TX ring, or ordinary sockets.

use crate::flood::join_by_hand;
use gradbox_protocol::Kind;
use gradbox_protocol::envelope::{Envelope, Link};
use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::process::until;
use gradbox_tests::lab::raw::RawSender;
use gradbox_tests::lab::{Lab, Shape};
use gradbox_tests::packets::{Sender, header};
use nix::sys::signal::Signal;
use std::net::{SocketAddr, UdpSocket};
use zerocopy::IntoBytes;

const SHAPE: Shape = Shape { workers: 1, queues: 1, mtu: 1500 };

#[test]
fn sockets_that_cannot_be_had_are_named() {
    let Some(lab) = Lab::new(SHAPE) else { return };
    // An address of nobody, and one of another interface, from which no group can be sent to.
    let _ = lab.output("box", "ip", &["address", "add", "10.78.0.1/32", "dev", "lo"]);
    for (addresses, names) in
        [("[\"10.77.0.77\"]", "10.77.0.77:9100"), ("[\"10.78.0.1\"]", "10.78.0.1:9100")]
    {
        let setup = Setup { addresses: Some(addresses), ..Setup::XDP };
        let mut the_box = TheBox::start(&lab, &setup);
        assert!(the_box.ready.contains("mode copy transmit ring "), "{}", the_box.ready);
        let err = the_box.process_mut().err();
        assert!(err.contains(names) && err.contains("they go by the TX ring"), "{err}");
        assert!(the_box.stop(Signal::SIGTERM).status.success());

        let ended = TheBox::process(&lab, &Setup { transmit: "socket", ..setup }).end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.err.contains(names), "{}", ended.err);
        assert!(!lab.has_xdp());
    }
}

#[test]
fn who_asks_with_a_vlan_tag_is_answered_with_it() {
    let Some(lab) = Lab::new(SHAPE) else { return };
    // Else veth keeps the tag beside the packet, where no XDP program sees it.
    for port in ["box", "x"] {
        let _ = lab.output("sw", "ethtool", &["-K", port, "txvlan", "off"]);
    }
    let the_box = TheBox::start(&lab, &Setup { transmit: "socket", ..Setup::XDP });
    let address: SocketAddr = "10.77.0.200:40000".parse().expect("well-formed");
    let own = join_by_hand(&the_box, address);
    let mut raw = RawSender::new(&lab);
    let untagged = raw.envelope(address);
    raw.listen(&lab, untagged.to.ip(), address.port());
    for vlan in [None, Some(5)] {
        let sender = Sender { link: Link { vlan, ..untagged.link }, ..untagged };
        let ping = vec![sender.packet(0, header(Kind::Ping, own.job, 0, own.cookie), &[])];
        let mut answer = None;
        // The core may learn of the job a moment after the answer; late answers are of the other kind.
        assert!(until(|| {
            raw.send(&ping);
            let of_kind =
                |p: &Vec<u8>| Envelope::parse(p).is_some_and(|e| e.has_vlan() == vlan.is_some());
            answer = raw.received().into_iter().find(of_kind);
            answer.is_some()
        }));
        let packet = &answer.expect("an answer")[..];
        let found = Envelope::parse(packet).expect("UDP over IP");
        // The tag, or IPv4 that is ECN-capable.
        let tag = vlan.unwrap_or(0x4502);
        assert_eq!(packet[14..16], tag.to_be_bytes());
        assert_eq!(found.source(packet), untagged.to.into());
        assert_eq!(found.destination(packet), address.into());
        assert_eq!(packet[found.payload() + 3], Kind::Pong as u8);
    }
    the_box.assert_balanced();
}

#[test]
fn what_passes_to_the_kernel_does_not_pile_up_in_the_sockets() {
    let Some(lab) = Lab::new(Shape { queues: 2, ..SHAPE }) else { return };
    // The second queue has no AF_XDP socket.
    let the_box = TheBox::start(&lab, &Setup { transmit: "socket", ..Setup::XDP });
    let own = join_by_hand(&the_box, "10.77.0.200:40000".parse().expect("well-formed"));
    let ping = header(Kind::Ping, own.job, 0, own.cookie);
    // Queues are chosen by the flow.
    assert!(until(|| {
        lab.within("x", || {
            let socket = UdpSocket::bind("10.77.0.200:0").expect("a port of x");
            for _ in 0..20 {
                socket.send_to(ping.as_bytes(), "10.77.0.1:9100").expect("sent");
            }
        });
        the_box.counter("pass_no_socket") > 100
    }));
    let sockets = lab.output("box", "ss", &["-Huan", "sport = :9100"]);
    let waiting: Vec<_> = sockets.lines().map(|l| l.split_whitespace().nth(1)).collect();
    // One for each family.
    assert_eq!(waiting, [Some("0"); 2], "{sockets}");
    the_box.assert_balanced();
}
