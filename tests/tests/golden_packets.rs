//! The golden packets: the box answers them byte by byte as `docs/protocol.md` says.

use gradbox::dataplane::counters::Counter;
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{DType, Flags, Header, Kind, Op};
use gradbox_tests::golden::{ENVELOPES, Exchange, GROUPS, read, the_box, the_box_with_group};
use gradbox_tests::packets::open;
use gradbox_tests::simulation::{SimBox, SimJob};
use std::collections::BTreeSet;

/// Counters of traffic rather than of what a packet meant.
const TRAFFIC: [Counter; 5] = [
    Counter::RxPackets,
    Counter::RxBytes,
    Counter::TxPackets,
    Counter::TxBytes,
    Counter::PushedBytes,
];

fn counters(the_box: &SimBox) -> Vec<(&'static str, u64)> {
    let all = Counter::ALL.iter().filter(|c| !TRAFFIC.contains(c));
    all.map(|&c| (c.name(), the_box.counter(c))).collect()
}

/// Sends the packet to the queue of its port, and compares answers and counters.
#[track_caller]
fn play(the_box: &mut SimBox, exchange: &Exchange, queue: usize) {
    let text = &exchange.text;
    let mut wanted = counters(the_box);
    for name in &exchange.counters {
        wanted.iter_mut().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name}")).1 += 1;
    }
    assert!(the_box.send(queue, &exchange.packet), "{text}");
    // The second step is for packets that came to the wrong queue.
    the_box.step();
    the_box.step();
    let answers = the_box.receive();
    assert_eq!(answers.len(), exchange.answers.len(), "{text}: {answers:02x?}");
    for (answer, golden) in answers.iter().zip(&exchange.answers) {
        assert!(answer == golden, "{text}\n  found {answer:02x?}\n  needs {golden:02x?}");
    }
    assert_eq!(counters(the_box), wanted, "{text}");
}

#[test]
fn the_box_answers_every_golden_packet_byte_by_byte() {
    for (file, tag, ip) in ENVELOPES {
        play_all(&mut the_box(ip == 40), (file, tag, ip), 25);
    }
}

#[test]
fn a_result_for_all_is_one_packet_and_all_else_is_for_one() {
    for (file, tag, ip) in GROUPS {
        play_all(&mut the_box_with_group(ip == 40), (file, tag, ip), 8);
    }
}

/// Plays a whole file of more than `least` packets, each to the queue of its port.
fn play_all(the_box: &mut SimBox, (file, tag, ip): (&str, usize, usize), least: usize) {
    let exchanges = read(file);
    assert!(exchanges.len() > least, "{file}");
    for exchange in &exchanges {
        let port = 14 + tag + ip + 2;
        let port = u16::from_be_bytes([exchange.packet[port], exchange.packet[port + 1]]);
        play(the_box, exchange, usize::from(port - 9100));
    }
}

#[test]
fn malformed_packets_raise_their_counter_and_get_no_answer() {
    let mut the_box = the_box(false);
    let exchanges = read("malformed.hex");
    assert!(exchanges.len() > 30);
    for exchange in &exchanges {
        assert!(exchange.answers.is_empty());
        play(&mut the_box, exchange, 1);
    }
}

/// Little-endian number of up to eight bytes.
fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

#[test]
fn the_parser_reads_every_field_at_its_documented_offset() {
    for (file, tag, ip) in ENVELOPES {
        let mut kinds = BTreeSet::new();
        for exchange in read(file) {
            for packet in exchange.answers.iter().chain([&exchange.packet]) {
                let at = 14 + tag + ip + 8;
                let envelope = Envelope::parse(packet).unwrap();
                assert_eq!(envelope.payload(), at);
                assert_eq!(at + envelope.len(), packet.len());
                assert_eq!(envelope.is_ipv6(), ip == 40);
                let h = &packet[at..];
                let (header, body) = Header::parse(h).unwrap();
                assert_eq!(h[..3], [b'G', b'B', 1]);
                assert_eq!(header.kind(), Kind::from_code(h[3]));
                assert_eq!(u64::from(header.job.get()), le(&h[4..6]));
                assert_eq!((header.rank, header.flags), (h[6], h[7]));
                assert_eq!(u64::from(header.cookie.get()), le(&h[8..12]));
                assert_eq!(u64::from(header.round.get()), le(&h[12..16]));
                assert_eq!(u64::from(header.chunk.get()), le(&h[16..20]));
                assert_eq!(u64::from(header.tensor.get()), le(&h[20..22]));
                assert_eq!(u64::from(header.length.get()), le(&h[22..24]));
                assert_eq!(header.stamp.get(), le(&h[24..32]));
                assert_eq!(body, &h[32..]);
                if header.kind() == Some(Kind::Status) && !body.is_empty() {
                    check_status(body);
                }
                kinds.insert(h[3]);
            }
        }
        assert_eq!(kinds, (1..=7).collect(), "{file}: every kind");
    }
}

fn check_status(body: &[u8]) {
    assert_eq!(body.len(), 144);
    let status = StatusBody::parse(body).unwrap();
    assert_eq!(u64::from(status.count.get()), le(&body[..2]));
    assert_eq!(u64::from(status.credit.get()), le(&body[2..4]));
    assert_eq!(status.waiting_for, body[4]);
    assert_eq!(u64::from(status.missing.get()), le(&body[8..12]));
    assert_eq!(status.held, body[16..80]);
    assert_eq!(status.done, body[80..144]);
}

/// A job of more chunks than one STATUS speaks of, two shards.
#[test]
fn a_status_ends_at_a_pushed_chunk_and_begins_at_a_queried_one() {
    let job = SimJob::new((1, 1), (DType::I32, Op::Max), 2, vec![1200 * 16], (64, 2), false);
    let mut the_box = SimBox::new(2, 4096, 2048, 64);
    the_box.add(&job.plan);
    let mut ask = |queue, packet: Vec<u8>| {
        assert!(the_box.send(queue, &packet));
        the_box.step();
        let (_, header, body) = open(&the_box.receive()[0]).unwrap();
        (header.chunk.get(), *StatusBody::parse(&body).unwrap())
    };
    let held = |status: &StatusBody| -> Vec<usize> {
        (0..512).filter(|&i| StatusBody::get(&status.held, i)).collect()
    };
    // Slot 550 of shard 1; the range is slots 39 to 550.
    let (first, status) = ask(1, job.push(0, 0, 0, 1101, Flags::WANT_STATUS));
    assert_eq!((first, status.count.get()), (79, 512));
    assert_eq!(held(&status), [511]);
    let query = |rank: u8, chunk: u32| {
        let mut header = job.header(Kind::Query, rank);
        header.chunk = chunk.into();
        job.senders[usize::from(rank)].packet((chunk % 2) as u16, header, &[])
    };
    let (first, status) = ask(1, query(0, 201));
    assert_eq!((first, status.count.get()), (201, 500));
    assert_eq!(held(&status), [450]);
    assert_eq!((status.waiting_for, status.missing.get()), (1, 0b10));
    let (first, status) = ask(0, query(1, 0));
    assert_eq!((first, status.count.get()), (0, 512));
    assert!(held(&status).is_empty());
    let (first, status) = ask(1, query(0, 1199));
    assert_eq!((first, status.count.get()), (1199, 1));
    let (first, status) = ask(1, job.push(1, 0, 0, 1, Flags::WANT_STATUS));
    assert_eq!((first, status.count.get()), (1, 1));
    assert_eq!(held(&status), [0]);
}

/// Written by hand from the RFCs and `docs/protocol.md`, so that neither the generator nor the
/// product is believed: rank 0 pushes 1, 2, 3, 4 as round 0 of chunk 1.
#[rustfmt::skip]
const PUSH: [u8; 90] = [
    2, 0, 0, 0, 0, 1,             // Ethernet: to the box
    2, 0, 0, 0, 1, 0,             // from the worker
    0x08, 0x00,                   // IPv4
    0x45, 0x2a,                   // IPv4: 20 bytes of header; AF11, ECN-capable (0)
    0, 76,                        // 20 + 8 + 32 + 16 bytes
    0x12, 0x34, 0x40, 0,          // identification, don't fragment
    64, 17,                       // hops, UDP
    0x14, 0x33,                   // !(452a + 004c + 1234 + 4000 + 4011 + 2*0a00 + 0010 + 0001)
    10, 0, 0, 16, 10, 0, 0, 1,    // from, to
    0x9c, 0x40, 0x23, 0x8d,       // UDP: 40000 to 9101
    0, 56,                        // 8 + 32 + 16 bytes
    0x16, 0x08,                   // checksum
    b'G', b'B', 1, 1,             // magic, version 1, PUSH
    7, 0, 0, 0,                   // job 7, rank 0, no flags
    0x44, 0x33, 0x22, 0x11,       // cookie
    0, 0, 0, 0,                   // round
    1, 0, 0, 0,                   // chunk
    0, 0, 16, 0,                  // tensor, length
    2, 7, 6, 5, 4, 3, 2, 1,       // stamp
    0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40, 0, 0, 0x80, 0x40,
];

/// What comes back when rank 1 has pushed 0.5, 0.25, -3, 100: 1.5, 2.25, 0, 104.
#[rustfmt::skip]
const RESULT: [u8; 90] = [
    2, 0, 0, 0, 1, 0,
    2, 0, 0, 0, 0, 1,
    0x08, 0x00,
    0x45, 0x2a,
    0, 76,
    0x12, 0x34, 0x40, 0,
    64, 17,
    0x14, 0x33,                   // the same words in another order
    10, 0, 0, 1, 10, 0, 0, 16,
    0x23, 0x8d, 0x9c, 0x40,
    0, 56,
    0, 0,                         // none over IPv4
    b'G', b'B', 1, 2,             // RESULT
    7, 0, 0, 0,
    0x44, 0x33, 0x22, 0x11,
    0, 0, 0, 0,
    1, 0, 0, 0,
    0, 0, 16, 0,
    2, 7, 6, 5, 4, 3, 2, 1,
    0, 0, 0xc0, 0x3f, 0, 0, 0x10, 0x40, 0, 0, 0, 0, 0, 0, 0xd0, 0x42,
];

/// What comes to the group instead: rank 0's packet, but for what is marked.
#[rustfmt::skip]
const RESULT_FOR_ALL: [u8; 90] = [
    1, 0, 0x5e, 127, 71, 7,       // RFC 1112: the lower 23 bits of the group
    2, 0, 0, 0, 0, 1,
    0x08, 0x00,
    0x45, 0x2a,
    0, 76,
    0x12, 0x34, 0x40, 0,
    1, 17,                        // one hop
    0x26, 0x3c,                   // !(452a + 004c + 1234 + 4000 + 0111 + 0a00 + 0001 + efff + 4707)
    10, 0, 0, 1, 239, 255, 71, 7, // to the group
    0x23, 0x8d, 0x23, 0x8e,       // 9101 to 9102
    0, 56,
    0, 0,
    b'G', b'B', 1, 2,
    7, 0, 255, 4,                 // for all ranks; rank 1's packet was marked
    0xcc, 0xbb, 0xaa, 0x99,       // the group's cookie
    0, 0, 0, 0,
    1, 0, 0, 0,
    0, 0, 16, 0,
    0, 0, 0, 0, 0, 0, 0, 0,       // no stamp
    0, 0, 0xc0, 0x3f, 0, 0, 0x10, 0x40, 0, 0, 0, 0, 0, 0, 0xd0, 0x42,
];

#[test]
fn packets_by_hand() {
    let exchanges = read("ipv4.hex");
    let pushed = exchanges.iter().find(|e| e.counters == ["pushed"]).unwrap();
    assert_eq!(pushed.packet, PUSH);
    let completed = exchanges.iter().find(|e| e.counters.contains(&"completed".into())).unwrap();
    assert_eq!(completed.answers[0], RESULT);
    assert_eq!(read("ipv4-multicast.hex")[1].answers[0], RESULT_FOR_ALL);
    // By columns, as RFC 1071 has it: the words of the header with the checksum give all ones.
    for packet in [PUSH, RESULT, RESULT_FOR_ALL] {
        let words = packet[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}

/// IPv6 forbids a UDP checksum of 0, so every answer over it has a full one.
#[test]
fn answers_over_ipv6_have_a_valid_udp_checksum() {
    for (file, tag, _) in ENVELOPES.into_iter().chain(GROUPS).filter(|e| e.2 == 40) {
        for answer in read(file).iter().flat_map(|e| &e.answers) {
            let ip = 14 + tag;
            let (addresses, udp) = (&answer[ip + 8..ip + 40], &answer[ip + 40..]);
            assert!(udp.len().is_multiple_of(2));
            let words = [addresses, udp].concat();
            let words = words.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(w[1]));
            let mut sum = words.sum::<u64>() + 17 + udp.len() as u64;
            while sum >> 16 != 0 {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            assert_eq!(sum, 0xffff);
            assert_ne!(udp[6..8], [0, 0]);
        }
    }
}
