//! `xdp-generate`: what it sends, what its sink makes of the answers, and both over a veth pair.

use crate::{XDP_DROP, XDP_TX, in_namespace, privileged};
use gradbox::bench::Error;
use gradbox::bench::generator::{Counts, Generator, Replies, Samples, Settings, Watch, Worker};
use gradbox::bench::kernel_aggregator::{self, KernelAggregator};
use gradbox::sum::reference;
use gradbox::xdp::program::{self, Mode, Program};
use gradbox_protocol::bench::{LEAD, SAMPLE_LEN, SUM_BYTES};
use gradbox_protocol::envelope::{Envelope, Link, SHORTEST, write};
use gradbox_protocol::{DType, Flags, HEADER_LEN, Header, Kind, Op};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// `TC_ACT_SHOT` and `TC_ACT_UNSPEC` (linux/pkt_cls.h).
const TC_DROP: u32 = 2;
const TC_NEXT: u32 = u32::MAX;

const LINK: Link = Link { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], vlan: None };
pub(crate) const TO: SocketAddrV4 =
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 254), kernel_aggregator::PORT);

/// Ranks as the aggregator in the kernel knows them.
pub(crate) fn workers(world: u32) -> Vec<Worker> {
    let worker = |rank: u32| Worker {
        address: SocketAddrV4::new(kernel_aggregator::address(rank), 7100),
        cookie: kernel_aggregator::cookie(rank),
        lead: std::array::from_fn(|at| (rank as u8 + 1).wrapping_mul(at as u8 ^ 0x5a)),
    };
    (0..world).map(worker).collect()
}

pub(crate) fn payload() -> Vec<u8> {
    (0..SUM_BYTES).map(|at| (at * 7 % 251) as u8).collect()
}

/// Three ranks, five chunks, two shards.
pub(crate) fn settings<'a>(workers: &'a [Worker], payload: &'a [u8]) -> Settings<'a> {
    Settings {
        interface: "worker",
        link: LINK,
        to: TO,
        shards: 2,
        job: kernel_aggregator::JOB,
        workers,
        chunks: 5,
        payload,
        window: 6,
        replies: Replies::Each,
        stall: Duration::from_secs(60),
        sample_every: 0,
    }
}

/// The next packet: of this rank, chunk and round, and right in all else.
#[track_caller]
fn expect_push(
    generator: &mut Generator,
    settings: &Settings<'_>,
    rank: u32,
    chunk: u32,
    round: u32,
    sent_before: bool,
) {
    let ran = generator.turn().unwrap();
    assert_eq!(ran.action, XDP_TX, "rank {rank}, chunk {chunk}");
    let worker = &settings.workers[rank as usize];
    let mut wanted = vec![0; SHORTEST + HEADER_LEN + settings.payload.len()];
    let to = SocketAddrV4::new(*TO.ip(), TO.port() + (chunk % u32::from(settings.shards)) as u16);
    let len = wanted.len() - SHORTEST;
    write(&mut wanted, &LINK, worker.address.into(), to.into(), len).unwrap();
    let mut header = Header::new(Kind::Push);
    header.job = settings.job.into();
    header.rank = rank as u8;
    header.cookie = worker.cookie.into();
    header.chunk = chunk.into();
    header.round = round.into();
    header.length = (settings.payload.len() as u16).into();
    header.flags = if sent_before { Flags::RESENT } else { 0 };
    wanted[SHORTEST..][..HEADER_LEN].copy_from_slice(header.as_bytes());
    wanted[SHORTEST + HEADER_LEN..][..LEAD].copy_from_slice(&worker.lead);
    wanted[SHORTEST + HEADER_LEN + LEAD..].copy_from_slice(&settings.payload[LEAD..]);
    assert!(ran.packet == wanted, "rank {rank}, chunk {chunk}: {:02x?}", &ran.packet[..138]);
}

/// A turn that sends nothing.
#[track_caller]
fn expect_poll(generator: &mut Generator) {
    assert_eq!(generator.turn().unwrap().action, XDP_DROP);
}

/// An answer of the box to a rank.
pub(crate) fn answer(kind: Kind, rank: u32, chunk: u32, round: u32, shards: u32) -> Vec<u8> {
    let payload = vec![chunk as u8; 64];
    let mut packet = kernel_aggregator::push(rank, chunk, round, &payload);
    let envelope = Envelope::parse(&packet).unwrap();
    packet[SHORTEST + 3] = kind as u8;
    packet[37] += (chunk % shards) as u8;
    envelope.reply(&mut packet, HEADER_LEN + payload.len(), None);
    packet
}

/// Gives the sink the RESULTs of a chunk to all ranks.
fn complete(generator: &Generator, settings: &Settings<'_>, chunk: u32, round: u32) {
    for rank in 0..settings.workers.len() as u32 {
        let result = answer(Kind::Result, rank, chunk, round, settings.shards.into());
        assert_eq!(generator.sink(&result).unwrap().action, TC_DROP);
    }
}

pub(crate) fn drained(samples: &mut Samples) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    samples.drain(|packet| all.push(packet.to_vec()));
    all
}

#[test]
fn packets_are_those_of_every_rank_and_chunk_in_turn() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let (workers, payload) = (workers(3), payload());
        for len in [LEAD, 640, SUM_BYTES] {
            let settings = settings(&workers, &payload[..len]);
            let (mut generator, watch, _) = Generator::load(&settings).unwrap();
            for round in 0..3 {
                for chunk in 0..5 {
                    for rank in 0..3 {
                        expect_push(&mut generator, &settings, rank, chunk, round, false);
                    }
                    complete(&generator, &settings, chunk, round);
                }
            }
            let counts = watch.counts().unwrap();
            let bytes = 45 * (SHORTEST + HEADER_LEN + 64) as u64;
            let wanted = Counts {
                sent: 45,
                results: 45,
                result_bytes: bytes,
                advanced: 15,
                ..Counts::default()
            };
            assert_eq!(counts, wanted);
        }
    });
}

#[test]
fn the_window_limits_what_is_in_flight_and_loss_does_not_leak_it() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let (workers, payload) = (workers(3), payload());
        let settings = settings(&workers, &payload);
        let (mut generator, watch, _) = Generator::load(&settings).unwrap();
        let push = |generator: &mut Generator, chunk, round, again| {
            for rank in 0..3 {
                expect_push(generator, &settings, rank, chunk, round, again);
            }
        };
        push(&mut generator, 0, 0, false);
        push(&mut generator, 1, 0, false);
        expect_poll(&mut generator);
        expect_poll(&mut generator);
        // Chunk 0 gets lost for good; the others go round it in what is left of the window.
        for chunk in [2, 3, 4] {
            complete(&generator, &settings, chunk - 1, 0);
            push(&mut generator, chunk, 0, false);
            expect_poll(&mut generator);
        }
        complete(&generator, &settings, 4, 0);
        push(&mut generator, 0, 0, true);
        // Written off and sent again: in flight as before, with three to go.
        push(&mut generator, 1, 1, false);
        expect_poll(&mut generator);
        complete(&generator, &settings, 0, 0);
        // What comes twice answers nothing more.
        complete(&generator, &settings, 0, 0);
        push(&mut generator, 2, 1, false);
        expect_poll(&mut generator);
        let Counts { sent, polls, resent, written_off, advanced, stalls, .. } =
            watch.counts().unwrap();
        assert_eq!((sent, polls, resent, written_off, advanced), (24, 7, 3, 3, 5));
        assert_eq!(stalls, 0);
    });
}

#[test]
fn a_stall_is_written_off_and_healed() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let (workers, payload) = (workers(3), payload());
        let stall = Duration::from_millis(20);
        let settings = Settings { stall, ..settings(&workers, &payload) };
        let (mut generator, watch, _) = Generator::load(&settings).unwrap();
        let until_sent = |generator: &mut Generator, sent: u64| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while watch.counts().unwrap().sent < sent {
                assert!(Instant::now() < deadline, "{:?}", watch.counts());
                generator.turn().unwrap();
            }
        };
        // Nothing is ever answered: the window is written off, and written off again.
        until_sent(&mut generator, 6);
        assert_eq!(watch.counts().unwrap().written_off, 0);
        until_sent(&mut generator, 7);
        let Counts { written_off, stalls, resent, .. } = watch.counts().unwrap();
        assert_eq!((written_off, stalls, resent), (6, 1, 0));
        // Past the last chunk, so from chunk 0 on packets are sent again, but count once.
        until_sent(&mut generator, 18);
        let Counts { written_off, stalls, resent, .. } = watch.counts().unwrap();
        assert_eq!((written_off, stalls, resent), (12, 2, 3));
        // Answers that come after all give back what was written off, and no more.
        for chunk in 0..5 {
            complete(&generator, &settings, chunk, 0);
        }
        generator.turn().unwrap();
        generator.turn().unwrap();
        let Counts { sent, written_off, advanced, .. } = watch.counts().unwrap();
        assert_eq!(advanced, 5);
        assert_eq!(sent - written_off - 3 * advanced, 2, "in flight");
    });
}

#[test]
fn the_sink_counts_what_is_of_gradbox_and_passes_all_else() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let (workers, payload) = (workers(3), payload());
        let settings = settings(&workers, &payload);
        let (generator, watch, _) = Generator::load(&settings).unwrap();
        let good = answer(Kind::Result, 0, 1, 0, 2);
        // EtherType, options, protocol, fragment, source port, magic, version.
        for (at, change) in
            [(13, 6), (14, 1), (23, 23), (20, 0x20), (35, 0x80), (SHORTEST, 1), (SHORTEST + 2, 2)]
        {
            let mut packet = good.clone();
            packet[at] ^= change;
            assert_eq!(generator.sink(&packet).unwrap().action, TC_NEXT, "{at}");
        }
        // The kernel runs no classifier on an IPv4 packet without its whole header.
        for len in 34..SHORTEST + HEADER_LEN {
            assert_eq!(generator.sink(&good[..len]).unwrap().action, TC_NEXT, "{len}");
        }
        assert_eq!(watch.counts().unwrap(), Counts::default());
        let drop = |packet: Vec<u8>| {
            assert_eq!(generator.sink(&packet).unwrap().action, TC_DROP);
        };
        drop(answer(Kind::Status, 0, 1, 0, 2));
        drop(answer(Kind::Error, 0, 1, 0, 2));
        drop(answer(Kind::Pong, 0, 1, 0, 2));
        drop(answer(Kind::Result, 0, 5, 0, 2));
        let mut of_another_job = good.clone();
        of_another_job[SHORTEST + 4] ^= 1;
        drop(of_another_job);
        drop(answer(Kind::Result, 2, 1, 1, 2));
        let counts = watch.counts().unwrap();
        assert_eq!((counts.statuses, counts.errors, counts.other), (1, 1, 3));
        assert_eq!(
            (counts.results, counts.advanced),
            (1, 0),
            "a round that is not the present one"
        );
    });
}

#[test]
fn one_reply_answers_all_ranks_and_samples_are_whole() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let (workers, payload) = (workers(3), payload());
        let settings =
            Settings { replies: Replies::One, sample_every: 2, ..settings(&workers, &payload) };
        // Counters are by CPU, so the test stays on one.
        let (mut generator, watch, mut samples) = Generator::load(&settings).unwrap();
        pin();
        for rank in 0..3 {
            expect_push(&mut generator, &settings, rank, 0, 0, false);
        }
        let results: Vec<_> = (0..5).map(|chunk| answer(Kind::Result, 1, chunk, 0, 2)).collect();
        for result in &results {
            generator.sink(result).unwrap();
        }
        assert_eq!(watch.counts().unwrap().advanced, 5);
        assert_eq!(drained(&mut samples), [results[1].clone(), results[3].clone()]);
        assert!(drained(&mut samples).is_empty());
        let mut long = results[0].clone();
        long.resize(SAMPLE_LEN + 1, 0);
        generator.sink(&long).unwrap();
        long.truncate(SAMPLE_LEN);
        generator.sink(&long).unwrap();
        generator.sink(&long).unwrap();
        assert_eq!(watch.counts().unwrap().unsampled, 1);
        assert_eq!(drained(&mut samples), [long]);
        // A full ring is counted, and takes more when it has been drained.
        for _ in 0..1000 {
            generator.sink(&results[0]).unwrap();
        }
        let lost = watch.counts().unwrap().unsampled - 1;
        let held = drained(&mut samples).len() as u64;
        assert!(held > 200 && lost > 0 && held + lost == 500, "{held} held, {lost} lost");
        generator.sink(&results[0]).unwrap();
        generator.sink(&results[0]).unwrap();
        assert_eq!(drained(&mut samples).len(), 1);
    });
}

/// Keeps this thread on the CPU that it is on.
fn pin() {
    // SAFETY: all zero is an empty set, the set outlives the call, and CPU numbers are in its range.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(pinned, 0);
}

/// Over a veth pair, with the aggregator in the kernel on its other end: the loop is closed.
#[test]
fn live_frames_go_round_and_stop_when_told() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let (workers, payload) = (workers(4), payload());
        let mut aggregator = KernelAggregator::load(&kernel_aggregator::Settings {
            world: 4,
            chunks: 512,
            copies: 2,
            burst: 1,
        })
        .unwrap();
        aggregator.attach("box").unwrap();
        // veth delivers what the other end sends from XDP only where this end has XDP too; to this
        // program the answers are the kernel's.
        let other_port = program::Settings { port_base: 1, port_count: 1, mode: Mode::Driver };
        let _pass = Program::load("worker", &other_port).unwrap();
        let settings = Settings {
            shards: 1,
            chunks: 512,
            window: 256,
            replies: Replies::One,
            stall: Duration::from_millis(5),
            sample_every: 1000,
            ..settings(&workers, &payload)
        };
        let (mut generator, mut watch, mut samples) = Generator::load(&settings).unwrap();
        let begun = Instant::now();
        match generator.run(200_000) {
            Err(error @ Error::LiveFrames { .. }) => {
                println!("skipped: {error}");
                return;
            }
            done => done.unwrap(),
        }
        let taken = begun.elapsed();
        let counts = until_quiet(&watch);
        println!("{taken:?}: {counts:?}\n{:?}", aggregator.counters().unwrap());
        assert!(counts.sent > 1000 && counts.sent + counts.polls == 200_000, "{counts:?}");
        assert!(counts.advanced > 0 && counts.results >= counts.advanced, "{counts:?}");
        assert_eq!((counts.errors, counts.statuses, counts.other), (0, 0, 0));
        // Pages come back with the sum in them, so only the lead is known.
        let leads: Vec<_> = workers.iter().map(|worker| worker.lead.as_slice()).collect();
        let mut sum = [0; LEAD];
        reference(DType::I32, Op::Sum, &leads, &mut sum);
        let seen = drained(&mut samples);
        assert!(!seen.is_empty());
        for packet in seen {
            assert_eq!(packet[SHORTEST + HEADER_LEN..][..LEAD], sum);
        }
        // Told to stop, from another thread or before: nothing more is sent.
        watch.stop().unwrap();
        generator.run(200_000).unwrap();
        assert_eq!(until_quiet(&watch).sent, counts.sent);
        watch.resume().unwrap();
        generator.run(10_000).unwrap();
        assert!(until_quiet(&watch).sent > counts.sent);
    });
}

/// The counters, when they no longer change.
pub(crate) fn until_quiet(watch: &Watch) -> Counts {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut last = watch.counts().unwrap();
    loop {
        thread::sleep(Duration::from_millis(20));
        let now = watch.counts().unwrap();
        if now == last {
            return now;
        }
        assert!(Instant::now() < deadline, "{now:?}");
        last = now;
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let (workers, payload) = (workers(3), payload());
    let (many, long) = (vec![workers[0].clone(); 33], vec![0; 4000]);
    let good = settings(&workers, &payload);
    for settings in [
        Settings { workers: &[], ..good.clone() },
        Settings { workers: &many, ..good.clone() },
        Settings { shards: 0, ..good.clone() },
        Settings { shards: 65, chunks: 100, ..good.clone() },
        Settings { to: SocketAddrV4::new(*TO.ip(), 65535), ..good.clone() },
        Settings { chunks: 1, ..good.clone() },
        Settings { window: 0, ..good.clone() },
        Settings { window: 7, ..good.clone() },
        Settings { payload: &payload[..60], ..good.clone() },
        Settings { payload: &long, ..good.clone() },
        Settings { link: Link { vlan: Some(1), ..LINK }, ..good.clone() },
    ] {
        let refused = Generator::load(&settings).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Setting { .. }), "{refused}");
    }
    for interface in ["nosuch", "no\0such"] {
        let refused = Generator::load(&Settings { interface, ..good.clone() }).map(drop);
        assert!(matches!(refused, Err(Error::NoInterface { .. })));
    }
}
