//! A box that runs out of frames, and a job that is replaced while packets of the old one still come.

use gradbox::dataplane::counters::Counter;
use gradbox::dataplane::handle::Event;
use gradbox_protocol::{DType, ErrorCode, Flags, Kind, Op};
use gradbox_tests::packets::open;
use gradbox_tests::siege::{ROUNDS, Siege, WORLD};
use gradbox_tests::simulation::{Dice, Network, SimBox, SimJob, SimWorker, run};
use std::sync::Arc;

#[test]
fn a_box_out_of_frames_says_so_and_recovers() {
    let job = SimJob::new((3, 3), (DType::F16, Op::Sum), 2, vec![400], (128, 1), false);
    let need = job.plan.frames_needed(0) as u32;
    let mut the_box = SimBox::new(1, need + 64 + 8, 2048, 64);
    the_box.add(&job.plan);
    let ping = job.senders[0].packet(0, job.header(Kind::Ping, 0), &[]);
    // Nobody takes the answers off the wire, so their frames do not come back.
    while the_box.frames()[0].free > 0 {
        the_box.send(0, &ping);
        the_box.step();
    }
    assert_eq!(the_box.counter(Counter::DropNoFrame), 0);
    assert!(the_box.send(0, &job.push(0, 0, 0, 0, Flags::WANT_STATUS)));
    the_box.step();
    assert_eq!(the_box.counter(Counter::DropNoFrame), 1, "the STATUS");
    assert_eq!(the_box.counter(Counter::Pushed), 1, "the PUSH itself is kept");
    while the_box.send(0, &ping) {
        the_box.step();
    }
    assert!(the_box.counter(Counter::FillShort) > 0);
    assert_eq!(the_box.frames()[0].fill, 0);
    // The wire works again.
    for _ in 0..4 {
        the_box.receive();
        the_box.step();
    }
    let mut workers: Vec<_> = (0..2).map(|r| SimWorker::new(&job, r, 2)).collect();
    run(&mut the_box, &mut workers, &[4], Network::PERFECT, &mut Dice(3), 20_000);
    workers.iter().for_each(SimWorker::verify);
}

#[test]
fn a_steered_packet_without_a_frame_is_counted() {
    let job = SimJob::new((3, 3), (DType::F32, Op::Sum), 2, vec![64], (128, 2), false);
    let mut the_box = SimBox::new(2, 64 + 8, 2048, 64);
    the_box.add(&job.plan);
    let ping = job.senders[0].packet(0, job.header(Kind::Ping, 0), &[]);
    while the_box.frames()[0].free > 0 {
        the_box.send(0, &ping);
        the_box.step();
    }
    // Chunk 0 belongs to queue 0, whose core has no frame to copy it to.
    assert!(the_box.send(1, &job.push(0, 0, 0, 0, 0)));
    the_box.step();
    the_box.step();
    assert_eq!(the_box.counter(Counter::Steered), 1);
    assert_eq!(the_box.counter(Counter::DropNoFrame), 1);
    assert_eq!(the_box.counter(Counter::Pushed), 0);
}

/// The job again, with other cookies and another seed, as a new generation has them.
fn next_generation(old: &SimJob, seed: u64) -> SimJob {
    let elements = vec![70, 40];
    let mut job = SimJob::new((5, seed), (DType::F32, Op::Avg), WORLD, elements, (128, 2), true);
    let mut plan = (*job.plan).clone();
    for (member, old) in plan.members.iter_mut().zip(&old.plan.members) {
        member.cookie = !old.cookie;
    }
    job.plan = Arc::new(plan);
    job
}

#[test]
fn packets_of_the_generation_before_do_not_count() {
    let first = Siege::job(1);
    let mut the_box = SimBox::new(2, 512, 2048, 64);
    the_box.add(&first.plan);
    // The first generation dies in the middle of a round: one rank is missing everywhere.
    let late: Vec<_> = (0..WORLD)
        .flat_map(|rank| [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)].map(|(t, c)| (rank, t, c)))
        .map(|(rank, t, c)| ((c % 2) as usize, first.push(rank, 0, t, c, 0)))
        .collect();
    for (queue, packet) in &late[..10] {
        assert!(the_box.send(*queue, packet));
    }
    the_box.step();
    assert_eq!(the_box.counter(Counter::Pushed), 10);
    the_box.remove(first.plan.id);
    assert!(the_box.frames().iter().all(|f| f.slot == 0));

    let play = |the_box: &mut SimBox, code: ErrorCode| {
        for (queue, packet) in &late {
            assert!(the_box.send(*queue, packet));
            the_box.step();
        }
        for answer in the_box.receive() {
            let (_, header, body) = open(&answer).unwrap();
            assert_eq!(header.kind(), Some(Kind::Error));
            assert_eq!(body, [code as u8, 0, 0, 0]);
        }
    };
    play(&mut the_box, ErrorCode::UnknownJob);
    assert_eq!(the_box.counter(Counter::DropUnknownJob), late.len() as u64);

    let second = next_generation(&first, 2);
    the_box.add(&second.plan);
    play(&mut the_box, ErrorCode::WrongCookie);
    let mut siege = Siege::of(the_box, second, 2);
    let mut next = 0;
    siege.run(|_, _| {
        next = (next + 1) % late.len();
        let mut packet = late[next].1.clone();
        let stamp = packet.len() - body_len(&packet) - 8;
        packet[stamp..stamp + 8].fill(0xff);
        (late[next].0 as u16, packet)
    });
    siege.answered(Kind::Error);
    assert_eq!(
        siege.the_box.counter(Counter::Pushed),
        10 + u64::from(ROUNDS) * 5 * u64::from(WORLD)
    );
}

fn body_len(packet: &[u8]) -> usize {
    open(packet).map_or(0, |(_, _, body)| body.len())
}

/// A new generation may also come in the place of the old one, with no moment in between.
#[test]
fn a_job_that_replaces_another_gets_none_of_its_parts() {
    let first = Siege::job(1);
    let mut the_box = SimBox::new(2, 512, 2048, 64);
    the_box.add(&first.plan);
    for rank in 0..WORLD - 1 {
        assert!(the_box.send(0, &first.push(rank, 0, 0, 0, 0)));
    }
    the_box.step();
    let second = next_generation(&first, 2);
    the_box.add(&second.plan);
    for _ in 0..20 {
        the_box.step();
    }
    for core in &the_box.cores {
        assert!(matches!(core.handle.event(), Some(Event::Removed(_))), "table handed back");
    }
    assert!(the_box.frames().iter().all(|f| f.slot == 0));
    let mut workers: Vec<_> = (0..WORLD).map(|r| SimWorker::new(&second, r, 3)).collect();
    run(&mut the_box, &mut workers, &[2], Network::PERFECT, &mut Dice(4), 20_000);
    workers.iter().for_each(SimWorker::verify);
}
