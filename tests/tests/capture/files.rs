//! All-reduces that are captured: every packet is there, once, and from where it lay.

use super::capture;
use super::tshark::{FIELDS, columns, shown};
use gradbox::dataplane::tap::is_sampled;
use gradbox_protocol::{Header, Kind};
use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::{Lab, Shape};
use gradbox_tests::packets::open;
use nix::sys::signal::Signal;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::num::NonZeroU32;
use std::path::Path;

/// A packet of a pcapng file.
#[derive(Debug)]
struct Packet {
    core: u32,
    out: bool,
    place: String,
    bytes: Vec<u8>,
}

impl Packet {
    fn header(&self) -> Header {
        open(&self.bytes).expect("a whole packet of Gradbox").1
    }
}

fn read(path: &Path) -> Vec<Packet> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Some(block) = block.unwrap().into_owned().into_enhanced_packet() else { continue };
        let (mut out, mut place) = (None, None);
        for option in &block.options {
            match option {
                EnhancedPacketOption::Comment(comment) => place = Some(comment.to_string()),
                EnhancedPacketOption::Flags(flags) => out = Some(flags & 3 == 2),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(block.original_len as usize, block.data.len());
        packets.push(Packet {
            core: block.interface_id,
            out: out.expect("a direction"),
            place: place.expect("a place"),
            bytes: block.data.into_owned(),
        });
    }
    packets
}

/// A PUSH and its RESULT have this in common.
type Key = (u16, u8, u32, u32);

fn key(h: &Header) -> Key {
    (h.job.get(), h.rank, h.chunk.get(), h.round.get())
}

/// Runs a job with a capture on until the box stops, and checks the file.
fn everything_is_there(lab: &Lab, setup: &Setup) {
    let the_box = TheBox::start(lab, setup);
    let path = lab.file("all.pcapng");
    let capture = capture(lab, &the_box, &path, &[]);
    let job = Job::made("job", 2, "f32", &[5003, 40_001]).with(&["--rounds", "2"]);
    assert!(!job.start(lab, &the_box).exact().is_empty());
    let counts = ["rx_packets", "tx_packets", "captured"].map(|name| the_box.counter(name));
    assert_eq!(the_box.counter("capture_missed"), 0);
    // The box tells the reader that it stops when the reader has all.
    assert!(the_box.stop(Signal::SIGTERM).status.success());
    let ended = capture.succeed();
    assert!(ended.out.contains(" 0 missed"), "{ended:#?}");

    let packets = read(&path);
    let out = packets.iter().filter(|p| p.out).count() as u64;
    assert_eq!([packets.len() as u64 - out, out, packets.len() as u64], counts);
    // A PUSH may have been sent again.
    let mut parts: BTreeMap<Key, BTreeSet<(u32, &str)>> = BTreeMap::new();
    let mut results = 0;
    for packet in &packets {
        let header = packet.header();
        match header.kind().unwrap() {
            Kind::Push => {
                assert!(!packet.out);
                parts.entry(key(&header)).or_default().insert((packet.core, &packet.place));
            }
            Kind::Result => {
                assert!(packet.out);
                let part = parts.get(&key(&header)).expect("its PUSH is before it");
                let place = (packet.core, &*packet.place);
                assert!(part.contains(&place), "{place:?} is not its PUSH's: {part:?}");
                results += 1;
            }
            Kind::Query | Kind::Ping => assert!(!packet.out),
            Kind::Status | Kind::Error | Kind::Pong => assert!(packet.out),
        }
    }
    let chunks = 5003usize.div_ceil(352) + 40_001usize.div_ceil(352);
    assert_eq!(parts.len(), 2 * 2 * chunks);
    assert!(results >= parts.len());

    tshark_agrees(&path, &packets);
}

fn tshark_agrees(path: &Path, packets: &[Packet]) {
    let mut fields = FIELDS.to_vec();
    fields.extend(["frame.comment", "frame.interface_name", "gradbox.answer_to", "gradbox.time"]);
    let rows = columns(path, &fields);
    assert_eq!(rows.len(), packets.len());
    for (row, packet) in rows.iter().zip(packets) {
        let header = packet.header();
        let mut wanted = shown(&header);
        wanted.extend([packet.place.clone(), format!("core-{}", packet.core)]);
        assert_eq!(row[..wanted.len()], wanted, "{header:?}");
        let [question, time] = [&row[wanted.len()], &row[wanted.len() + 1]];
        assert_eq!(question.is_empty(), !packet.out, "{header:?}");
        if packet.out {
            let number: usize = question.parse().unwrap();
            let asked = packets[number - 1].header();
            assert_eq!((asked.job, asked.stamp), (header.job, header.stamp));
            assert!(time.parse::<f64>().unwrap() >= 0.0);
        }
    }
}

#[test]
fn every_packet_over_sockets_is_in_the_file() {
    everything_is_there(&Lab::loopback(), &Setup { queues: 2, ..Setup::UDP });
}

#[test]
fn every_packet_over_xdp_is_in_the_file() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 1, mtu: 1500 }) else { return };
    everything_is_there(&lab, &Setup { transmit: "ring", ..Setup::XDP });
}

#[test]
fn a_sample_has_whole_chunks_of_the_job_alone() {
    const N: NonZeroU32 = NonZeroU32::new(4).unwrap();
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup { queues: 2, ..Setup::UDP });
    let path = lab.file("some.pcap");
    let args = ["--sample", "4", "--job", "wanted", "--bytes", "74"];
    let capture = capture(&lab, &the_box, &path, &args);
    let lengths = [70_000, 352];
    let jobs = ["wanted", "other"].map(|name| Job::made(name, 2, "f32", &lengths));
    let running = jobs.map(|job| job.start(&lab, &the_box));
    assert!(running.into_iter().all(|job| !job.exact().is_empty()));
    assert!(the_box.stop(Signal::SIGTERM).status.success());
    assert!(capture.succeed().out.contains(" 0 missed"));

    let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
    let (mut jobs, mut seen) = (BTreeSet::new(), BTreeMap::new());
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!(packet.data.len(), 74);
        // Headers alone: the length of the body is the packet's.
        let header: &Header = zerocopy::FromBytes::ref_from_bytes(&packet.data[42..]).unwrap();
        assert_eq!(packet.orig_len, 74 + u32::from(header.length.get()));
        jobs.insert(header.job.get());
        let (tensor, chunk) = (header.tensor.get(), header.chunk.get());
        if let Some(kind @ (Kind::Push | Kind::Result)) = header.kind() {
            assert!(is_sampled(header.job.get(), tensor, chunk, N));
            *seen
                .entry((tensor, chunk))
                .or_insert(BTreeMap::new())
                .entry(kind as u8)
                .or_insert(0) += 1;
        }
    }
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let job = jobs.pop_first().unwrap();
    let first = 70_000u32.div_ceil(352);
    let all = (0..first).map(|chunk| (0, chunk)).chain([(1, first)]);
    let sampled: Vec<_> = all.filter(|&(t, c)| is_sampled(job, t, c, N)).collect();
    assert!(sampled.len() > 20, "{sampled:?}");
    assert!(seen.keys().eq(&sampled), "{seen:?}");
    for (chunk, kinds) in seen {
        let of = |kind: Kind| kinds.get(&(kind as u8)).copied().unwrap_or(0);
        assert!(of(Kind::Push) >= 2 && of(Kind::Result) >= 2, "{chunk:?}: {kinds:?}");
    }
}
