//! Who gets a capture, and how it ends.

use super::{capture, capture_from};
use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::{Process, until};
use gradbox_tests::lab::{Lab, Shape};
use nix::sys::signal::Signal;
use pcap_file::pcap::PcapReader;
use std::fs::File;
use std::path::Path;

#[track_caller]
fn refused(the_box: &TheBox<'_>, path: &str, status: u16, word: &str) {
    let (found, body) = the_box.request("GET", path, "");
    assert_eq!(found, status, "{body}");
    assert!(body.contains(&format!("\"error\":\"{word}\"")), "{body}");
}

/// Packets of a file, which must be complete.
fn packets(path: &Path) -> usize {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = 0;
    while let Some(packet) = reader.next_packet() {
        assert!(packet.is_ok());
        packets += 1;
    }
    packets
}

/// Begins a capture of a box whose last one has just ended in whatever way.
fn begins_soon(lab: &Lab, the_box: &TheBox<'_>, name: &str, args: &[&str]) -> Process {
    let is_off = || the_box.request("GET", "/metrics", "").1.contains("gradbox_capture_on 0");
    assert!(until(is_off), "the box still captures for a reader that is gone");
    capture(lab, the_box, &lab.file(name), args)
}

#[test]
fn one_capture_at_a_time_whose_end_is_noticed() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup::UDP);
    let first = capture(&lab, &the_box, &lab.file("1.pcap"), &[]);
    refused(&the_box, "/v1/capture", 409, "capture_running");
    assert!(the_box.request("GET", "/metrics", "").1.contains("gradbox_capture_on 1"));

    first.signal(Signal::SIGINT);
    assert!(first.succeed().out.starts_with("0 packets, 0 bytes, 0 missed: "));
    assert_eq!(packets(&lab.file("1.pcap")), 0);

    let second = begins_soon(&lab, &the_box, "2.pcap", &[]);
    second.signal(Signal::SIGKILL);
    assert!(!second.end().status.success());
    let third = begins_soon(&lab, &the_box, "3.pcap", &["--seconds", "0.2"]);
    assert!(third.succeed().status.success());
    assert!(the_box.stop(Signal::SIGTERM).status.success());
}

#[test]
fn a_capture_ends_with_the_last_packet_that_was_asked_for() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup::UDP);
    let path = lab.file("k.pcap");
    let capture = capture(&lab, &the_box, &path, &["--packets", "10"]);
    assert!(!Job::made("job", 2, "f32", &[20_000]).start(&lab, &the_box).exact().is_empty());
    assert!(capture.succeed().out.starts_with("10 packets, "));
    assert_eq!(packets(&path), 10);
}

#[test]
fn a_reader_whose_host_vanishes_loses_its_capture_and_knows_it() {
    let Some(lab) = Lab::new(Shape { workers: 1, queues: 1, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup::UDP);
    let path = lab.file("gone.pcap");
    let reader = capture_from("w0", &lab, &the_box, &path, &[]);
    assert_eq!(lab.output("sw", "ip", &["link", "set", "w0", "down"]), "");
    let ended = reader.end();
    assert!(!ended.status.success() && ended.err.contains("has said nothing for"), "{ended:#?}");
    assert_eq!(packets(&path), 0);
    let next = begins_soon(&lab, &the_box, "next.pcap", &["--seconds", "0.2"]);
    assert!(next.succeed().status.success());
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup::UDP);
    for query in ["sample=0", "sample=x", "bytes=0", "bytes=70000", "speed=9"] {
        refused(&the_box, &format!("/v1/capture?{query}"), 422, "bad_query");
    }
    refused(&the_box, "/v1/captures", 404, "unknown_path");
}

#[test]
fn a_box_with_a_token_shows_packets_to_its_bearer_alone() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup { token: Some("hush"), ..Setup::UDP });
    refused(&the_box, "/v1/capture", 403, "bad_token");
    // Not even whether the rest of the question makes sense.
    refused(&the_box, "/v1/capture?sample=0", 403, "bad_token");
    let args = ["--token", "hush", "--seconds", "0.2"];
    assert!(capture(&lab, &the_box, &lab.file("t.pcap"), &args).succeed().status.success());
}
