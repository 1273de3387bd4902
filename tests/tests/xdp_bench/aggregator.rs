//! `xdp-aggregate`: its sums, and whom it serves.

use crate::{XDP_DROP, XDP_PASS, XDP_TX, privileged};
use gradbox::bench::Error;
use gradbox::bench::kernel_aggregator::{
    KernelAggregator, PACKET_LEN, PORT, Settings, address, cookie, push,
};
use gradbox::sum::reference;
use gradbox_protocol::bench::{Outcome, SUM_BYTES};
use gradbox_protocol::envelope::{Envelope, SHORTEST};
use gradbox_protocol::{DType, Header, Kind, Op};

const SETTINGS: Settings = Settings { world: 4, chunks: 8, copies: 2, burst: 1 };

/// Numbers of all sizes, other ones for each seed.
fn numbers(seed: u32) -> Vec<u8> {
    let number = |at: u32| (at + 1 + seed * 1000).wrapping_mul(0x9e37_79b1).rotate_left(at % 32);
    (0..SUM_BYTES as u32 / 4).flat_map(|at| number(at).to_le_bytes()).collect()
}

fn sum_of(payloads: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
    let mut sum = vec![0; SUM_BYTES];
    reference(DType::I32, Op::Sum, &inputs, &mut sum);
    sum
}

/// Runs `packet`: the action must be that of `outcome`, and its counter the only one that moved.
#[track_caller]
fn expect(aggregator: &KernelAggregator, packet: &[u8], outcome: Outcome) -> Vec<u8> {
    let mut wanted = aggregator.counters().unwrap();
    wanted[outcome as usize].1 += 1;
    let ran = aggregator.run(packet).unwrap();
    let action = match outcome {
        Outcome::Completed | Outcome::Resent => XDP_TX,
        Outcome::PassOther => XDP_PASS,
        _ => XDP_DROP,
    };
    assert_eq!(ran.action, action, "{outcome:?}");
    assert_eq!(aggregator.counters().unwrap(), wanted, "{outcome:?}");
    if action != XDP_TX {
        assert_eq!(ran.packet, packet, "{outcome:?}: only an answer is another packet");
    }
    ran.packet
}

/// The packet must be the RESULT to `rank`, with this sum.
#[track_caller]
fn expect_result(packet: &[u8], rank: u32, chunk: u32, round: u32, sum: &[u8]) {
    let envelope = Envelope::parse(packet).unwrap();
    let question = push(rank, chunk, round, sum);
    assert_eq!(envelope.destination(packet), envelope.source(&question));
    assert_eq!(envelope.source(packet), envelope.destination(&question));
    assert_eq!(packet[..6], question[6..12]);
    assert_eq!(packet[6..12], question[..6]);
    // IPv4's checksum holds: the sum of the header with it is all ones.
    let words = packet[14..34].as_chunks::<2>().0;
    let folded: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    assert_eq!((folded & 0xffff) + (folded >> 16), 0xffff);
    let (header, body) = Header::parse(&packet[SHORTEST..]).unwrap();
    assert_eq!(header.kind(), Some(Kind::Result));
    assert_eq!((u32::from(header.rank), header.chunk.get()), (rank, chunk));
    assert_eq!((header.round.get(), header.cookie.get()), (round, cookie(rank)));
    assert!(body == sum, "the sum is the reference's");
}

#[test]
fn sums_are_the_references_in_any_order() {
    if !privileged() {
        return;
    }
    for (world, copies) in [(1, 1), (2, 2), (3, 1), (4, 2), (32, 2)] {
        let settings = Settings { world, copies, ..SETTINGS };
        let aggregator = KernelAggregator::load(&settings).unwrap();
        for round in 0..5 {
            let payloads: Vec<_> = (0..world).map(|rank| numbers(rank + 100 * round)).collect();
            let sum = sum_of(&payloads);
            for chunk in [0, 7] {
                for turn in 0..world {
                    let rank = (turn + round + chunk) % world;
                    let packet = push(rank, chunk, round, &payloads[rank as usize]);
                    if turn + 1 < world {
                        expect(&aggregator, &packet, Outcome::Added);
                        // It is in already, whatever the copy carries.
                        let copy = push(rank, chunk, round, &numbers(9999));
                        expect(&aggregator, &copy, Outcome::Duplicate);
                    } else {
                        let result = expect(&aggregator, &packet, Outcome::Completed);
                        expect_result(&result, rank, chunk, round, &sum);
                    }
                }
                assert_eq!(aggregator.sum(chunk).unwrap().unwrap(), *sum);
            }
        }
        assert_eq!(aggregator.sum(1).unwrap(), None);
    }
}

#[test]
fn a_finished_round_is_answered_again() {
    if !privileged() {
        return;
    }
    for copies in [1, 2] {
        let settings = Settings { world: 2, copies, ..SETTINGS };
        let aggregator = KernelAggregator::load(&settings).unwrap();
        let first = [numbers(1), numbers(2)];
        let sum = sum_of(&first);
        expect(&aggregator, &push(1, 3, 0, &first[1]), Outcome::Added);
        expect(&aggregator, &push(0, 3, 0, &first[0]), Outcome::Completed);
        for rank in [0, 1, 0] {
            let again = push(rank, 3, 0, &first[rank as usize]);
            expect_result(&expect(&aggregator, &again, Outcome::Resent), rank, 3, 0, &sum);
        }
        // Rank 0 goes on; rank 1 still lacks the result. One copy is overwritten by then.
        expect(&aggregator, &push(0, 3, 1, &numbers(3)), Outcome::Added);
        let again = push(1, 3, 0, &first[1]);
        if copies == 2 {
            expect_result(&expect(&aggregator, &again, Outcome::Resent), 1, 3, 0, &sum);
        } else {
            expect(&aggregator, &again, Outcome::DropWrongRound);
        }
        let second = sum_of(&[numbers(3), numbers(4)]);
        let last = expect(&aggregator, &push(1, 3, 1, &numbers(4)), Outcome::Completed);
        expect_result(&last, 1, 3, 1, &second);
        expect(&aggregator, &push(0, 3, 0, &first[0]), Outcome::DropWrongRound);
        expect(&aggregator, &push(0, 3, 3, &first[0]), Outcome::DropWrongRound);
    }
}

#[test]
fn strangers_and_malformed_packets_change_nothing() {
    if !privileged() {
        return;
    }
    let aggregator = KernelAggregator::load(&SETTINGS).unwrap();
    let good = push(1, 0, 0, &numbers(1));
    let with = |at: usize, change: u8, outcome| {
        let mut packet = good.clone();
        packet[at] ^= change;
        expect(&aggregator, &packet, outcome);
    };
    let gradbox = SHORTEST;
    // EtherType, options, protocol, fragment, port.
    for (at, change) in [(13, 6), (14, 1), (23, 23), (20, 0x20), (21, 1), (37, 1)] {
        with(at, change, Outcome::PassOther);
    }
    // UDP length, magic, version, kind, length.
    for at in [39, gradbox, gradbox + 1, gradbox + 2, gradbox + 3, gradbox + 22] {
        with(at, 8, Outcome::DropMalformed);
    }
    with(gradbox + 4, 1, Outcome::DropUnknownJob);
    // Address, rank (another's, none's), cookie.
    for (at, change) in [(29, 1), (26, 1), (gradbox + 6, 2), (gradbox + 6, 5), (gradbox + 8, 1)] {
        with(at, change, Outcome::DropStranger);
    }
    for at in [gradbox + 16, gradbox + 19, gradbox + 20] {
        with(at, 8, Outcome::DropWrongChunk);
    }
    with(gradbox + 12, 1, Outcome::DropWrongRound);
    with(gradbox + 15, 0xff, Outcome::DropWrongRound);
    expect(&aggregator, &push(1, 0, u32::MAX, &numbers(1)), Outcome::DropWrongRound);
    for len in 14..PACKET_LEN {
        let outcome = if len < gradbox { Outcome::PassOther } else { Outcome::DropMalformed };
        expect(&aggregator, &good[..len], outcome);
    }
    for payload in [0, SUM_BYTES - 4] {
        expect(&aggregator, &push(1, 0, 0, &vec![0; payload]), Outcome::DropMalformed);
    }
    assert_eq!(aggregator.sum(0).unwrap(), None);
    // None of them left a trace in the sum.
    let payloads: Vec<_> = (0..4).map(numbers).collect();
    for rank in 0..3 {
        expect(&aggregator, &push(rank, 0, 0, &payloads[rank as usize]), Outcome::Added);
    }
    let result = expect(&aggregator, &push(3, 0, 0, &payloads[3]), Outcome::Completed);
    expect_result(&result, 3, 0, 0, &sum_of(&payloads));
    assert_eq!(address(3).octets(), result[30..34]);
    assert_eq!(PORT.to_be_bytes(), result[34..36]);
}

#[test]
fn measured_packets_are_aggregated_and_their_sums_right() {
    if !privileged() {
        return;
    }
    for (world, copies, burst) in [(1, 1, 1), (2, 2, 4), (4, 1, 1), (4, 2, 8), (32, 2, 2)] {
        let settings = Settings { world, copies, burst, chunks: 24 };
        let mut aggregator = KernelAggregator::load(&settings).unwrap();
        for _ in 0..2 {
            let measured = aggregator.measure(3, 5000).unwrap();
            assert_eq!(measured.total.len(), 3);
            assert_eq!(measured.stamping.len(), 3);
            println!("world {world}: {:?} ns, stamping {:?}", measured.total, measured.stamping);
        }
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    for settings in [
        Settings { world: 0, ..SETTINGS },
        Settings { world: 33, ..SETTINGS },
        Settings { chunks: 0, ..SETTINGS },
        Settings { chunks: u32::MAX, ..SETTINGS },
        Settings { copies: 0, ..SETTINGS },
        Settings { copies: 3, ..SETTINGS },
        Settings { burst: 0, ..SETTINGS },
        Settings { burst: 3, ..SETTINGS },
    ] {
        let refused = KernelAggregator::load(&settings).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Setting { .. }), "{refused}");
    }
}
