extern crate std;
use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const LINK: Link = Link { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], vlan: None };

fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
    if v6 {
        ("[fd00::2]:40000".parse().unwrap(), "[fd00::1]:9100".parse().unwrap())
    } else {
        ("10.0.0.2:40000".parse().unwrap(), "10.0.0.1:9100".parse().unwrap())
    }
}

fn packet(v6: bool, vlan: Option<u16>, body: &[u8]) -> (Vec<u8>, Envelope) {
    let (from, to) = ends(v6);
    let mut bytes = vec![0; LONGEST + body.len()];
    let e = write(&mut bytes, &Link { vlan, ..LINK }, from, to, body.len()).unwrap();
    bytes.truncate(e.payload() + body.len());
    bytes[e.payload()..].copy_from_slice(body);
    (bytes, e)
}

/// What a receiver's kernel would compute: 0xffff over everything means "valid".
fn udp_sum(bytes: &[u8], e: &Envelope) -> u16 {
    let ip = usize::from(e.ip);
    let addresses = if e.v6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
    let udp = &bytes[e.payload() - UDP_LEN..];
    fold(
        u64::from(ones_complement_sum(&bytes[addresses]))
            + u64::from(UDP)
            + udp.len() as u64
            + u64::from(ones_complement_sum(udp)),
    )
}

proptest! {
    #[test]
    fn what_is_written_is_found(
        v6: bool,
        vlan in proptest::option::of(1u16..4095),
        len in 0usize..200,
        padding in 0usize..20,
    ) {
        let (mut bytes, e) = packet(v6, vlan, &vec![7; len]);
        bytes.extend(vec![0; padding]);
        let found = Envelope::parse(&bytes);
        prop_assert_eq!(found, Some(e));
        let (from, to) = ends(v6);
        prop_assert_eq!(e.source(&bytes), Endpoint::from(from));
        prop_assert_eq!(SocketAddr::from(e.source(&bytes)), from);
        prop_assert_eq!(e.destination(&bytes), Endpoint::from(to));
        prop_assert_eq!((e.len(), e.is_ipv6()), (len, v6));
        prop_assert_eq!(Envelope::of_shape(e.shape(), len as u16), e);
    }

    #[test]
    fn a_reply_goes_back_with_valid_sums(
        v6: bool,
        vlan in proptest::option::of(1u16..4095),
        body in proptest::collection::vec(any::<u8>(), 32..200),
        shorter in 0usize..100,
        ce: bool,
        hops in 1u8..255,
        full: bool,
    ) {
        let (mut bytes, e) = packet(v6, vlan, &body);
        let ip = usize::from(e.ip);
        if ce {
            e.mark_congestion(&mut bytes);
        }
        if v6 {
            bytes[ip + 7] = hops;
        } else {
            bytes[ip + 8] = hops;
            bytes[ip + 10..ip + 12].fill(0);
            let sum = !ones_complement_sum(&bytes[ip..ip + 20]);
            bytes[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
        prop_assert_eq!(e.congestion(&bytes), ce);
        let len = (body.len() - shorter.min(body.len())).max(HEADER_LEN);
        let sum = full.then(|| ones_complement_sum(&body[HEADER_LEN..len]));
        e.reply(&mut bytes, len, sum);
        bytes.truncate(e.payload() + len);
        let back = Envelope::parse(&bytes).unwrap();
        let (from, to) = ends(v6);
        prop_assert_eq!(back.source(&bytes), Endpoint::from(to));
        prop_assert_eq!(back.destination(&bytes), Endpoint::from(from));
        prop_assert_eq!(back.len(), len);
        prop_assert!(!back.congestion(&bytes));
        prop_assert_eq!(&bytes[..6], &LINK.source[..]);
        prop_assert_eq!(&bytes[e.payload()..], &body[..len]);
        if !v6 {
            prop_assert_eq!(ones_complement_sum(&bytes[ip..ip + 20]), 0xffff);
            prop_assert_eq!(bytes[ip + 8], HOPS);
        }
        let check = be16(&bytes, e.payload() - 2);
        if v6 || full {
            prop_assert_ne!(check, 0);
            prop_assert_eq!(udp_sum(&bytes, &back), 0xffff);
        } else {
            prop_assert_eq!(check, 0);
        }
    }

    #[test]
    fn a_reply_to_a_group_comes_from_the_box_with_valid_sums(
        v6: bool,
        vlan in proptest::option::of(1u16..4095),
        body in proptest::collection::vec(any::<u8>(), 32..200),
        ce: bool,
        full: bool,
    ) {
        let (mut bytes, e) = packet(v6, vlan, &body);
        let ip = usize::from(e.ip);
        if ce {
            e.mark_congestion(&mut bytes);
        }
        let asked = bytes.clone();
        let group: SocketAddr =
            if v6 { "[ff15::4742:107]:9102" } else { "239.199.66.7:9102" }.parse().unwrap();
        let sum = full.then(|| ones_complement_sum(&body[HEADER_LEN..]));
        e.reply_to_group(&mut bytes, group, body.len(), sum);
        prop_assert_eq!(bytes.len(), asked.len());
        let back = Envelope::parse(&bytes);
        prop_assert_eq!(back, Some(e));
        prop_assert_eq!(e.source(&bytes), Endpoint::from(ends(v6).1));
        prop_assert_eq!(e.destination(&bytes), Endpoint::from(group));
        let mac: [u8; 6] =
            if v6 { [0x33, 0x33, 0x47, 0x42, 1, 7] } else { [1, 0, 0x5e, 0x47, 66, 7] };
        prop_assert_eq!(&bytes[..6], &mac[..]);
        prop_assert_eq!(&bytes[6..12], &LINK.destination[..]);
        prop_assert_eq!(&bytes[12..ip], &asked[12..ip], "tag and type");
        prop_assert_eq!(&bytes[e.payload()..], &body[..]);
        prop_assert!(!e.congestion(&bytes));
        if !v6 {
            prop_assert_eq!(ones_complement_sum(&bytes[ip..ip + 20]), 0xffff);
        }
        prop_assert_eq!(bytes[ip + if v6 { 7 } else { 8 }], GROUP_HOPS);
        let check = be16(&bytes, e.payload() - 2);
        if v6 || full {
            prop_assert_eq!(udp_sum(&bytes, &e), 0xffff);
        }
        prop_assert_eq!(check != 0, v6 || full);
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        if let Some(e) = Envelope::parse(&bytes) {
            prop_assert!(e.payload() + e.len() <= bytes.len());
            let _ = (e.source(&bytes), e.congestion(&bytes), e.destination(&bytes));
        }
    }

    #[test]
    fn every_cut_is_refused(v6: bool, vlan in proptest::option::of(1u16..4095), cut in 0usize..98) {
        let (bytes, _) = packet(v6, vlan, &[1; 32]);
        prop_assume!(cut < bytes.len());
        prop_assert_eq!(Envelope::parse(&bytes[..cut]), None);
    }
}

#[test]
fn other_packets_are_not_ours() {
    let (bytes, e) = packet(false, None, &[1; 32]);
    let ip = usize::from(e.ip);
    let change = |at: usize, value: u8| {
        let mut other = bytes.clone();
        other[at] = value;
        Envelope::parse(&other)
    };
    assert_eq!(change(13, 0x06), None, "ARP");
    assert_eq!(change(ip, 0x46), None, "IPv4 options");
    assert_eq!(change(ip + 6, 0x20), None, "first fragment");
    assert_eq!(change(ip + 7, 1), None, "later fragment");
    assert_eq!(change(ip + 9, 6), None, "TCP");
    assert_eq!(change(ip + 3, 61), None, "IP length against UDP length");
    let (bytes, _) = packet(false, Some(1), &[1; 32]);
    let mut two_tags = bytes;
    two_tags[16..18].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
    assert_eq!(Envelope::parse(&two_tags), None);
}
