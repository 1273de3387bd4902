//! Sums are made a little late; whoever asks within the same step notices nothing of it.

use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{DType, Flags, Kind, Op};
use gradbox_tests::packets::open;
use gradbox_tests::simulation::{SimBox, SimJob};

const WORLD: u8 = 3;

/// A box with a job of two chunks, and the job.
fn start() -> (SimBox, SimJob) {
    let job = SimJob::new((3, 11), (DType::F32, Op::Sum), WORLD, vec![704], (1408, 1), true);
    let mut the_box = SimBox::new(1, 256, 2048, 64);
    the_box.add(&job.plan);
    (the_box, job)
}

/// Sends all packets, lets the box make one step, and returns its answers.
fn one_step(the_box: &mut SimBox, packets: &[Vec<u8>]) -> Vec<(Kind, u8, u32, Vec<u8>)> {
    for packet in packets {
        assert!(the_box.send(0, packet), "room on the wire");
    }
    the_box.step();
    let answers = the_box.receive();
    answers
        .iter()
        .map(|packet| {
            let (_, h, body) = open(packet).expect("a packet of the protocol");
            (h.kind().expect("a kind"), h.rank, h.chunk.get(), body)
        })
        .collect()
}

#[test]
fn a_status_that_says_done_comes_after_the_results() {
    let (mut the_box, job) = start();
    let packets: Vec<_> = (0..WORLD)
        .map(|rank| job.push(rank, 0, 0, 0, if rank == 2 { Flags::WANT_STATUS } else { 0 }))
        .collect();
    let answers = one_step(&mut the_box, &packets);
    let kinds: Vec<_> = answers.iter().map(|a| (a.0, a.1)).collect();
    assert_eq!(kinds, [(Kind::Result, 0), (Kind::Result, 1), (Kind::Result, 2), (Kind::Status, 2)]);
    let status = StatusBody::parse(&answers[3].3).expect("a status");
    assert_eq!((status.held[0], status.done[0]), (0, 1));
}

#[test]
fn a_result_asked_for_again_in_the_same_step_is_right() {
    let (mut the_box, job) = start();
    let mut packets: Vec<_> = (0..WORLD).map(|rank| job.push(rank, 0, 0, 0, 0)).collect();
    packets.push(job.push(1, 0, 0, 0, Flags::RESENT));
    let answers = one_step(&mut the_box, &packets);
    let expected = job.expected(0, 0);
    assert_eq!(answers.len(), 4);
    for (kind, _, _, body) in &answers {
        assert_eq!(*kind, Kind::Result);
        assert_eq!(body[..], expected[..1408]);
    }
    assert_eq!(answers[3].1, 1);
}

#[test]
fn two_rounds_of_two_chunks_in_one_step() {
    let (mut the_box, job) = start();
    let mut packets = Vec::new();
    for round in 0..2 {
        for rank in 0..WORLD {
            for chunk in 0..2 {
                packets.push(job.push(rank, round, 0, chunk, 0));
            }
        }
    }
    // A worker that pushes round 1 before it has round 0 breaks the protocol, but not the box.
    let answers = one_step(&mut the_box, &packets);
    assert_eq!(answers.len(), 4 * usize::from(WORLD));
    for (i, (kind, rank, chunk, body)) in answers.iter().enumerate() {
        let (round, at) = ((i / 6) as u32, *chunk as usize * 1408);
        assert_eq!((*kind, usize::from(*rank)), (Kind::Result, i % usize::from(WORLD)));
        assert_eq!(body[..], job.expected(round, 0)[at..at + 1408]);
    }
}
