//! A job while somebody else on the same network sends everything that nobody should send.

use gradbox_protocol::control::{JoinRequest, Joined, TensorEntry};
use gradbox_protocol::{DType, Header, Kind, Op, Reply, VERSION};
use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::until;
use gradbox_tests::lab::raw::RawSender;
use gradbox_tests::lab::{Lab, Shape};
use gradbox_tests::packets::{Sender, header};
use gradbox_tests::simulation::Dice;
use std::net::SocketAddr;
use zerocopy::IntoBytes;

/// Packets of each kind in one wave.
const WAVE: usize = 40;

/// Waves at most.
const WAVES: usize = 60;

/// What the flood knows: a job of its own, and one of somebody else.
struct Known {
    own: Joined,
    /// Address that `own` was joined with.
    own_address: SocketAddr,
    other_job: u16,
    other_worker: SocketAddr,
}

/// One kind of packet, and the counter that must go up.
type Attack = (&'static str, fn(&RawSender, &Known, &mut Dice) -> Vec<u8>);

const ATTACKS: [Attack; 17] = [
    ("drop_bad_magic", |raw, k, dice| {
        let mut bytes = random(dice, 32, 1400);
        bytes[0] = b'X';
        raw.envelope(k.own_address).datagram(0, &bytes)
    }),
    ("drop_truncated", |raw, k, dice| {
        let push = push(k);
        let len = dice.below(31) as usize;
        raw.envelope(k.own_address).datagram(0, &push.as_bytes()[..len])
    }),
    ("drop_bad_version", |raw, k, _| {
        let mut push = push(k);
        push.version = VERSION + 1;
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
    ("drop_stranger", |raw, k, _| {
        let stranger = "10.77.0.99:4000".parse().expect("well-formed");
        raw.envelope(stranger).packet(0, push(k), &[0; 1408])
    }),
    ("pass_other_port", |raw, k, _| raw.envelope(k.own_address).packet(1, push(k), &[0; 1408])),
    ("pass_not_ip", |raw, _, dice| {
        let body = random(dice, 0, 1400);
        raw.frame(0x88b5, &body)
    }),
    // Ends in the middle of its UDP header. A bridge passes on what is good IPv4.
    ("pass_truncated", |raw, k, _| {
        let mut packet = raw.envelope(k.own_address).datagram(0, &[]);
        packet.truncate(14 + 20 + 3);
        packet[14 + 3] = 20 + 3;
        checksum(&mut packet);
        packet
    }),
    ("pass_fragment", |raw, k, _| {
        let mut packet = raw.envelope(k.own_address).packet(0, push(k), &[0; 1408]);
        // "More fragments".
        packet[14 + 6] = 0x20;
        checksum(&mut packet);
        packet
    }),
    ("drop_unknown_job", |raw, k, dice| {
        let mut push = push(k);
        push.job = (500 + dice.below(60_000) as u16).into();
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
    ("drop_wrong_rank", |raw, k, dice| {
        let mut push = push(k);
        push.rank = 1 + dice.below(255) as u8;
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
    // In the name of a worker of the other job, from its own address and port.
    ("drop_wrong_cookie", |raw, k, dice| {
        let cookie = dice.below(1 << 32) as u32;
        let push = header(Kind::Push, k.other_job, 0, cookie);
        raw.envelope(k.other_worker).packet(0, push, &random(dice, 1408, 1408))
    }),
    ("drop_wrong_source", |raw, k, _| {
        let mut from = k.own_address;
        from.set_port(from.port() + 1);
        raw.envelope(from).packet(0, push(k), &[0; 1408])
    }),
    ("drop_wrong_chunk", |raw, k, dice| {
        let mut push = push(k);
        push.chunk = (1000 + dice.below(1 << 31) as u32).into();
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
    ("drop_wrong_length", |raw, k, dice| {
        let body = vec![0; 4 * dice.below(351) as usize];
        raw.envelope(k.own_address).packet(0, push(k), &body)
    }),
    ("drop_future_round", |raw, k, dice| {
        let mut push = push(k);
        push.round = (2 + dice.below(1000) as u32).into();
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
    ("drop_wrong_way", |raw, k, _| {
        let mut push = push(k);
        push.kind = Kind::Result as u8;
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
    ("drop_malformed", |raw, k, _| {
        let mut push = push(k);
        push.kind = 99;
        raw.envelope(k.own_address).packet(0, push, &[0; 1408])
    }),
];

/// Sets the checksum of the IPv4 header, which begins behind the Ethernet header.
fn checksum(packet: &mut [u8]) {
    packet[14 + 10..][..2].fill(0);
    let words = packet[14..][..20].as_chunks().0.iter();
    let sum: u32 = words.map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    // Twice: the first fold may carry.
    let folded = (0..2).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    packet[14 + 10..][..2].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

/// A good PUSH of the flood's own job.
fn push(known: &Known) -> Header {
    header(Kind::Push, known.own.job, 0, known.own.cookie)
}

fn random(dice: &mut Dice, least: usize, most: usize) -> Vec<u8> {
    let len = least + dice.below((most - least + 1) as u64) as usize;
    (0..len).map(|_| dice.below(256) as u8).collect()
}

/// Joins a job of one worker on host `x` by hand, to know its cookie.
pub(crate) fn join_by_hand(the_box: &TheBox<'_>, address: SocketAddr) -> Joined {
    let request = JoinRequest {
        rank: 0,
        world: 1,
        dtype: DType::F32,
        op: Op::Sum,
        reply: Reply::Unicast,
        token: None,
        instance: 1,
        address,
        tensors: vec![TensorEntry { name: "t".to_owned(), elements: 352 * 4 }],
    };
    let body = serde_json::to_string(&request).expect("JSON");
    let (code, answer) = the_box.request("POST", "/v1/jobs/flood/join", &body);
    assert_eq!(code, 200, "{answer}");
    serde_json::from_str(&answer).expect("joined")
}

#[test]
fn floods_are_counted_and_change_no_sum() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 1, mtu: 1500 }) else { return };
    let mut the_box = TheBox::start(&lab, &Setup::XDP);
    let own_address: SocketAddr = "10.77.0.200:40000".parse().expect("well-formed");
    let own = join_by_hand(&the_box, own_address);
    let job = Job::real("honest", 3).with(&["--rounds", "12", "--op", "avg"]);
    let mut honest = job.start(&lab, &the_box);
    let mut other = None;
    assert!(until(|| {
        other = the_box.status().jobs.into_iter().find(|j| j.name == "honest" && j.job.is_some());
        other.is_some()
    }));
    let other = other.expect("the honest job");
    let known = Known {
        own,
        own_address,
        other_job: other.job.expect("an id"),
        other_worker: other.ranks[0].address,
    };
    let mut raw = RawSender::new(&lab);
    let mut dice = Dice(3);
    let before = ATTACKS.map(|(counter, _)| the_box.counter(counter));
    for wave in 0..WAVES {
        if wave > 0 && !honest.runs() {
            break;
        }
        let mut frames = Vec::new();
        for _ in 0..WAVE {
            frames.extend(ATTACKS.map(|(_, make)| make(&raw, &known, &mut dice)));
        }
        raw.send(&frames);
        the_box.assert_balanced();
    }
    assert!(!honest.exact().is_empty());
    let counted = || ATTACKS.map(|(counter, _)| the_box.counter(counter));
    let all_rose = || counted().iter().zip(before).all(|(after, before)| *after > before);
    assert!(
        until(all_rose),
        "{:?}",
        ATTACKS.map(|(c, _)| c).iter().zip(counted()).collect::<Vec<_>>()
    );
    the_box.assert_balanced();
    // The flood's packets were good for nothing: its own job has not a single chunk.
    let flood = the_box.status().jobs.into_iter().find(|j| j.name == "flood").expect("its job");
    assert_eq!(flood.ranks[0].pushed, 0);
    assert_eq!(the_box.request("GET", "/v1/health", "").0, 200);
    assert!(the_box.process_mut().runs());
}

#[test]
fn a_stranger_is_let_in_by_joining_alone() {
    let Some(lab) = Lab::new(Shape { workers: 1, queues: 1, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup::XDP);
    let mut raw = RawSender::new(&lab);
    let address: SocketAddr = "10.77.0.200:40000".parse().expect("well-formed");
    let ping = |raw: &RawSender, joined: Option<&Joined>| {
        let (job, cookie) = joined.map_or((0, 0), |j| (j.job, j.cookie));
        let sender: Sender = raw.envelope(address);
        vec![sender.packet(0, header(Kind::Ping, job, 0, cookie), &[])]
    };
    let frames = ping(&raw, None);
    raw.send(&frames);
    assert!(until(|| the_box.counter("drop_stranger") == 1));
    let joined = join_by_hand(&the_box, address);
    let frames = ping(&raw, Some(&joined));
    // The core may learn of the job a moment after the answer.
    assert!(until(|| {
        raw.send(&frames);
        the_box.counter("pong") > 0
    }));
    let leave = r#"{"rank":0,"instance":1}"#;
    assert_eq!(the_box.request("POST", "/v1/jobs/flood/leave", leave).0, 200);
    the_box.assert_empty();
    let strangers = the_box.counter("drop_stranger");
    raw.send(&frames);
    assert!(until(|| the_box.counter("drop_stranger") > strangers));
}
