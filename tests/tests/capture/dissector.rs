//! The golden packets, as tshark shows them.

use super::tshark::{FIELDS, columns, shown, tshark};
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::header::GROUP_RANK;
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{Header, Kind};
use gradbox_tests::golden::{ENVELOPES, GROUPS, read};
use gradbox_tests::lab::Lab;
use gradbox_tests::packets::open;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// All packets of some golden files, in a file of the lab, too.
fn golden(lab: &Lab, names: &[&str]) -> (PathBuf, Vec<Vec<u8>>) {
    let mut packets = Vec::new();
    for name in names {
        for exchange in read(name) {
            packets.push(exchange.packet);
            packets.extend(exchange.answers);
        }
    }
    let path = lab.file("golden.pcap");
    let mut writer = PcapWriter::new(File::create(&path).unwrap()).unwrap();
    for (at, packet) in (0..).map(Duration::from_millis).zip(&packets) {
        writer.write_packet(&PcapPacket::new(at, packet.len() as u32, packet)).unwrap();
    }
    (path, packets)
}

fn conversations() -> Vec<&'static str> {
    ENVELOPES.iter().chain(&GROUPS).map(|(name, ..)| *name).collect()
}

fn header(packet: &[u8]) -> Option<Header> {
    open(packet).map(|(_, header, _)| header)
}

#[test]
fn every_header_is_shown_as_its_bytes_say() {
    let lab = Lab::loopback();
    let (path, packets) = golden(&lab, &conversations());
    let rows = columns(&path, &FIELDS);
    assert_eq!(rows.len(), packets.len());
    let mut checked = 0;
    for (row, packet) in rows.iter().zip(&packets) {
        if let Some(header) = header(packet) {
            assert_eq!(*row, shown(&header), "{packet:02x?}");
            checked += 1;
        }
    }
    assert!(checked > 200, "only {checked} packets");
}

#[test]
fn a_status_and_an_error_are_shown_with_their_bodies() {
    let lab = Lab::loopback();
    let (path, packets) = golden(&lab, &conversations());
    let fields = [
        "gradbox.status.count",
        "gradbox.status.credit",
        "gradbox.status.waiting_for",
        "gradbox.status.missing",
        "gradbox.status.held",
        "gradbox.status.done",
        "gradbox.status.held_count",
        "gradbox.error.code",
    ];
    let rows = columns(&path, &fields);
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (mut statuses, mut errors) = (0, 0);
    for (row, packet) in rows.iter().zip(&packets) {
        let Some((_, header, body)) = open(packet) else { continue };
        let mut wanted = vec![String::new(); fields.len()];
        match header.kind() {
            Some(Kind::Status) => {
                // There are golden ones that a stranger made.
                let Some(s) = StatusBody::parse(&body) else { continue };
                let held: u32 = s.held.iter().map(|b| b.count_ones()).sum();
                let numbers = [s.count.to_string(), s.credit.to_string()];
                wanted[..2].clone_from_slice(&numbers);
                wanted[2] = s.waiting_for.to_string();
                wanted[3] = format!("{:#010x}", s.missing.get());
                (wanted[4], wanted[5]) = (hex(&s.held), hex(&s.done));
                wanted[6] = held.to_string();
                statuses += 1;
            }
            Some(Kind::Error) if body.len() >= 2 => {
                wanted[7] = u16::from_le_bytes([body[0], body[1]]).to_string();
                errors += 1;
            }
            _ => {}
        }
        assert_eq!(*row, wanted, "{packet:02x?}");
    }
    assert!(statuses > 10 && errors > 10, "{statuses} STATUS, {errors} ERROR");

    let words = tshark(&path, &["-V"]);
    for kind in ["PUSH (1)", "RESULT (2)", "QUERY (3)", "STATUS (4)", "ERROR (5)", "PING (6)"] {
        assert!(words.contains(&format!("Kind: {kind}")), "{kind}");
    }
    for code in ["UNKNOWN_JOB (1)", "WRONG_COOKIE (2)", "WRONG_RANK (3)", "WRONG_CHUNK (4)"] {
        assert!(words.contains(&format!("Code: {code}")), "{code}");
    }
    for code in ["WRONG_LENGTH (5)", "WRONG_ROUND (6)"] {
        assert!(words.contains(&format!("Code: {code}")), "{code}");
    }
    assert!(words.contains("Rank: 255 (all ranks)"));
}

#[test]
fn a_result_for_all_ranks_answers_the_push_that_it_was_made_of() {
    let lab = Lab::loopback();
    for (file, ..) in GROUPS {
        let (path, packets) = golden(&lab, &[file]);
        let rows = columns(&path, &["gradbox.answer_to"]);
        let mut checked = 0;
        for (row, packet) in rows.iter().zip(&packets) {
            let Some(result) = header(packet).filter(|h| h.rank == GROUP_RANK) else { continue };
            let number: usize = row[0].parse().expect("a number of a packet");
            let push = header(&packets[number - 1]).unwrap();
            assert_eq!((push.kind(), push.rank), (Some(Kind::Push), 0));
            assert_eq!((push.chunk, push.round), (result.chunk, result.round));
            checked += 1;
        }
        assert!(checked > 0, "{file}");
    }
}

#[test]
fn elements_are_shown_where_their_type_is_told() {
    let lab = Lab::loopback();
    let (path, packets) = golden(&lab, &["ipv4.hex"]);
    let args = ["-o", "gradbox.dtype:f32", "-T", "fields", "-e", "gradbox.element.f32"];
    let out = tshark(&path, &args);
    let mut checked = 0;
    for (line, packet) in out.lines().zip(&packets) {
        let Some((_, header, body)) = open(packet) else { continue };
        if matches!(header.kind(), Some(Kind::Push | Kind::Result)) {
            let elements: Vec<f32> = body
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            let found: Vec<f32> =
                line.split(',').filter(|e| !e.is_empty()).map(|e| e.parse().unwrap()).collect();
            assert_eq!(found, elements);
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} packets");
}

#[test]
fn what_is_not_gradbox_is_not_shown_as_such() {
    let lab = Lab::loopback();
    let (path, packets) = golden(&lab, &["malformed.hex"]);
    let rows = columns(&path, &["frame.number", "gradbox.kind"]);
    assert_eq!(rows.len(), packets.len());
    let mut found = [0; 2];
    for (row, packet) in rows.iter().zip(&packets) {
        // tshark has more envelopes than the box, such as two VLAN tags.
        let Some(envelope) = Envelope::parse(packet) else { continue };
        // What begins as a header of this version is shown, be its length wrong or its kind
        // unknown: whoever looks for a mistake wants to see it.
        let datagram = &packet[envelope.payload()..envelope.payload() + envelope.len()];
        let begins = datagram.starts_with(b"GB\x01") && datagram.len() >= 32;
        let is_shown = row.get(1).is_some_and(|kind| !kind.is_empty());
        assert_eq!(is_shown, begins, "{packet:02x?}");
        found[usize::from(begins)] += 1;
    }
    assert!(found.iter().all(|&n| n > 0), "{found:?}");
}
