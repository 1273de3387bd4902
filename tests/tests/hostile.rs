//! Floods of everything that a box may get while a job runs: each packet raises its own counter,
//! none changes a sum, no frame is lost (`SimBox::step` counts them), and the job ends.

use gradbox::dataplane::counters::Counter;
use gradbox_protocol::{DType, ErrorCode, Flags, Kind, Op};
use gradbox_tests::packets::{Sender, open};
use gradbox_tests::siege::{Draft, ROUNDS, Siege, Target, WORLD};
use gradbox_tests::simulation::{Dice, SimBox, SimJob};

/// Runs the job under a flood of PUSH that `spoil` has changed, on which `counter` must be raised.
fn flood(
    counter: Counter,
    code: Option<ErrorCode>,
    mut spoil: impl FnMut(&Target<'_>, &mut Dice, &mut Draft),
) {
    for seed in 0..4 {
        let mut siege = Siege::new(seed);
        siege.run(|target, dice| {
            let mut draft = target.push(dice);
            spoil(target, dice, &mut draft);
            (draft.queue, target.packet(&draft))
        });
        siege.raised(counter, code);
        if code.is_none() {
            siege.silent();
        }
    }
}

/// As [`flood`], with a flood of whole packets that nobody may answer.
fn flood_raw(counter: Counter, mut make: impl FnMut(&Target<'_>, &mut Dice) -> Vec<u8>) {
    for seed in 0..4 {
        let mut siege = Siege::new(seed);
        siege.run(|target, dice| (dice.below(2) as u16, make(target, dice)));
        siege.raised(counter, None);
        siege.silent();
    }
}

fn random(dice: &mut Dice, longest: u64) -> Vec<u8> {
    (0..dice.below(longest + 1)).map(|_| dice.bits() as u8).collect()
}

#[test]
fn random_bytes() {
    flood_raw(Counter::DropNotGradbox, |_, dice| random(dice, 1700));
}

#[test]
fn random_datagrams() {
    flood_raw(Counter::DropMalformed, |target, dice| {
        let mut draft = target.push(dice);
        draft.body = random(dice, 1400);
        let mut packet = target.packet(&draft);
        let header = packet.len() - draft.body.len() - 32;
        packet[header..header + 32].fill_with(|| dice.bits() as u8);
        packet
    });
}

#[test]
fn packets_cut_off_at_every_length() {
    let mut len = 0;
    flood_raw(Counter::DropNotGradbox, |target, dice| {
        let mut packet = target.packet(&target.push(dice));
        len = (len + 1) % packet.len();
        packet.truncate(len);
        packet
    });
}

#[test]
fn datagrams_cut_off_at_every_length() {
    let mut len = 0;
    flood_raw(Counter::DropMalformed, |target, dice| {
        let draft = target.push(dice);
        let (from, whole) = (&target.job.senders[usize::from(draft.from)], target.packet(&draft));
        let datagram = &whole[whole.len() - 32 - draft.body.len()..];
        len = (len + 1) % datagram.len();
        from.datagram(draft.queue, &datagram[..len])
    });
}

#[test]
fn lengths_that_are_not_the_datagrams() {
    flood_raw(Counter::DropMalformed, |target, dice| {
        let draft = target.push(dice);
        let mut packet = target.packet(&draft);
        let length = packet.len() - draft.body.len() - 32 + 22;
        let wrong = (draft.body.len() as u64 + 1 + dice.below(0xffff)) as u16;
        packet[length..length + 2].copy_from_slice(&wrong.to_le_bytes());
        packet
    });
}

#[test]
fn unknown_kinds() {
    flood(Counter::DropMalformed, None, |_, dice, draft| {
        // From 8 to 255, and 0.
        draft.header.kind = (8 + dice.below(249)) as u8;
    });
}

#[test]
fn kinds_that_only_the_box_sends() {
    flood(Counter::DropWrongWay, None, |_, dice, draft| {
        draft.header.kind = [2, 4, 5, 7][dice.below(4) as usize];
    });
}

#[test]
fn wrong_cookies() {
    flood(Counter::DropWrongCookie, Some(ErrorCode::WrongCookie), |target, dice, draft| {
        let own = draft.header.cookie.get();
        let wrong = match dice.below(3) {
            0 => own ^ 1 << dice.below(32),
            1 => own.wrapping_add(1 + dice.below(0xffff_ffff) as u32),
            _ => {
                let other = (usize::from(draft.from) + 1) % usize::from(WORLD);
                target.job.plan.members[other].cookie
            }
        };
        draft.header.cookie = wrong.into();
    });
}

#[test]
fn the_rank_of_another_worker() {
    flood(Counter::DropWrongCookie, Some(ErrorCode::WrongCookie), |_, dice, draft| {
        draft.header.rank = (draft.from + 1 + dice.below(u64::from(WORLD) - 1) as u8) % WORLD;
    });
}

#[test]
fn ranks_that_the_job_does_not_have() {
    flood(Counter::DropWrongRank, Some(ErrorCode::WrongRank), |_, dice, draft| {
        draft.header.rank = WORLD + dice.below(256 - u64::from(WORLD)) as u8;
    });
}

#[test]
fn a_rank_from_two_addresses() {
    flood_raw(Counter::DropWrongSource, |target, dice| {
        let draft = target.push(dice);
        let mut sender = target.job.senders[usize::from(draft.from)];
        if dice.percent(50) {
            sender.from.set_port(sender.from.port() ^ 1 << dice.below(16));
        } else {
            sender.from = Sender::new(WORLD, dice.percent(50), false).from;
            sender.to = Sender::new(WORLD, sender.from.is_ipv6(), false).to;
        }
        sender.packet(draft.queue, draft.header, &draft.body)
    });
}

#[test]
fn jobs_that_the_box_does_not_have() {
    flood(Counter::DropUnknownJob, Some(ErrorCode::UnknownJob), |_, dice, draft| {
        let other = draft.header.job.get().wrapping_add(1 + dice.below(0xffff) as u16);
        draft.header.job = other.into();
    });
}

/// How far a round is off: as little as possible half the time.
fn distance(dice: &mut Dice) -> u32 {
    if dice.percent(50) { 0 } else { dice.below((1 << 31) - 2) as u32 }
}

#[test]
fn rounds_long_over() {
    flood(Counter::DropStaleRound, Some(ErrorCode::WrongRound), |_, dice, draft| {
        // The slot may be one round ahead of the worker, so the round before is the worker's own.
        let back = 2 + distance(dice);
        draft.header.round = draft.header.round.get().wrapping_sub(back).into();
    });
}

#[test]
fn rounds_that_cannot_have_begun() {
    flood(Counter::DropFutureRound, Some(ErrorCode::WrongRound), |_, dice, draft| {
        let ahead = 2 + distance(dice);
        draft.header.round = draft.header.round.get().wrapping_add(ahead).into();
    });
}

#[test]
fn lengths_that_are_not_the_tensors() {
    flood(Counter::DropWrongLength, Some(ErrorCode::WrongLength), |_, dice, draft| {
        let len = draft.body.len();
        while draft.body.len() == len {
            draft.body = random(dice, 1500);
        }
    });
}

#[test]
fn tensors_and_chunks_that_do_not_exist() {
    flood(Counter::DropWrongChunk, Some(ErrorCode::WrongChunk), |target, dice, draft| {
        let chunks = target.job.plan.layout.chunks();
        match dice.below(3) {
            0 => draft.header.tensor = (1 - draft.header.tensor.get()).into(),
            1 => draft.header.tensor = (2 + dice.below(0xfffe) as u16).into(),
            _ => {
                let beyond = chunks + dice.below(u64::from(u32::MAX - chunks) + 1) as u32;
                draft.header.chunk = beyond.into();
                if dice.percent(50) {
                    draft.header.kind = Kind::Query as u8;
                    draft.body.clear();
                }
            }
        }
    });
}

#[test]
fn packets_to_the_wrong_shard_reach_the_right_one() {
    let mut siege = Siege::new(8);
    siege.run(|target, dice| {
        let mut draft = target.push(dice);
        draft.queue ^= 1;
        (draft.queue, target.packet(&draft))
    });
    siege.raised(Counter::Steered, None);
    siege.dropped_nothing_but(None);
}

#[test]
fn pings_and_queries_are_answered_one_by_one() {
    for (kind, answer) in [(Kind::Ping, Kind::Pong), (Kind::Query, Kind::Status)] {
        let mut siege = Siege::new(9);
        siege.run(|target, dice| {
            let mut draft = target.push(dice);
            draft.header.kind = kind as u8;
            draft.body.clear();
            (draft.queue, target.packet(&draft))
        });
        siege.answered(answer);
        siege.dropped_nothing_but(None);
    }
}

#[test]
fn duplicates_that_all_ask_for_a_status() {
    let mut siege = Siege::new(10);
    siege.run(|target, dice| {
        let mut draft = target.push(dice);
        draft.header.flags = Flags::WANT_STATUS | Flags::RESENT;
        draft.header.round = draft.header.round.get().min(ROUNDS - 1).into();
        // An honest worker's stamp: its answers are the worker's.
        draft.header.stamp = 1.into();
        (draft.queue, target.packet(&draft))
    });
    siege.dropped_nothing_but(None);
    assert!(siege.the_box.counter(Counter::Duplicate) > 20);
}

/// What flipping a bit of a PUSH of round 2 does; `None` where the bit means nothing to the box
/// or is the sender's own business. Offsets are from the Ethernet header.
fn fate(at: usize, bit: u8, rank: u8, (ip, v6): (usize, bool)) -> Option<(Counter, bool)> {
    let udp = ip + if v6 { 40 } else { 20 };
    let dropped = |counter| Some((counter, false));
    let refused = |counter| Some((counter, true));
    if at < ip {
        // Addresses, then TPID, TCI and EtherType, or EtherType alone.
        let tci = ip == 18 && (14..16).contains(&at);
        return if at < 12 || tci { None } else { dropped(Counter::DropNotGradbox) };
    }
    if at < udp {
        let (source, lengths_and_protocol) = if v6 {
            (8..24, at == ip && bit >= 4 || (ip + 4..=ip + 6).contains(&at))
        } else {
            let fragment = at == ip + 6 && bit < 6 || at == ip + 7;
            (12..16, fragment || [0, 2, 3, 9].contains(&(at - ip)))
        };
        return if source.contains(&(at - ip)) {
            dropped(Counter::DropWrongSource)
        } else if lengths_and_protocol {
            dropped(Counter::DropNotGradbox)
        } else {
            None
        };
    }
    match at - udp {
        0..2 => return dropped(Counter::DropWrongSource),
        4..6 => return dropped(Counter::DropNotGradbox),
        2..4 | 6..8 => return None,
        _ => {}
    }
    match (at - udp - 8, bit) {
        (3, 1) => Some((Counter::Status, true)),
        (3, 2) => dropped(Counter::DropWrongWay),
        (0..4 | 22..24, _) => dropped(Counter::DropMalformed),
        (4..6, _) => refused(Counter::DropUnknownJob),
        (6, _) if rank ^ 1 << bit < WORLD => refused(Counter::DropWrongCookie),
        (6, _) => refused(Counter::DropWrongRank),
        (8..12, _) => refused(Counter::DropWrongCookie),
        (12, 1) | (15, 7) => refused(Counter::DropStaleRound),
        (12..16, _) => refused(Counter::DropFutureRound),
        (16..22, _) => refused(Counter::DropWrongChunk),
        _ => None,
    }
}

#[test]
fn every_bit_of_the_headers_has_its_counter() {
    let job = SimJob::new((7, 1), (DType::F32, Op::Sum), WORLD, vec![16], (64, 1), true);
    let mut the_box = SimBox::new(1, 256, 2048, 64);
    the_box.add(&job.plan);
    for round in 0..2 {
        for rank in 0..WORLD {
            assert!(the_box.send(0, &job.push(rank, round, 0, 0, 0)));
        }
        the_box.step();
        assert_eq!(the_box.receive().len(), usize::from(WORLD));
    }
    let shapes = [(14, false), (18, false), (14, true)];
    let mut flips = 0;
    for (rank, shape) in (0u8..).zip(shapes) {
        let good = job.push(rank, 2, 0, 0, 0);
        let headers = good.len() - 64;
        for (at, bit) in (0..headers).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let Some((counter, answered)) = fate(at, bit, rank, shape) else { continue };
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let (before, pushed) = (the_box.counter(counter), the_box.counter(Counter::Pushed));
            assert!(the_box.send(0, &bad));
            the_box.step();
            let what = format!("byte {at} bit {bit} of rank {rank}");
            assert_eq!(the_box.receive().len(), usize::from(answered), "{what}");
            assert_eq!(the_box.counter(counter), before + 1, "{what}: {}", counter.name());
            assert_eq!(the_box.counter(Counter::Pushed), pushed, "{what}");
            flips += 1;
        }
    }
    assert!(flips > 1000, "{flips}");
    for rank in 0..WORLD {
        assert!(the_box.send(0, &job.push(rank, 2, 0, 0, 0)));
    }
    the_box.step();
    for packet in the_box.receive() {
        assert_eq!(open(&packet).unwrap().2, job.expected(2, 0));
    }
}
