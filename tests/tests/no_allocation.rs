//! The packet path allocates nothing: not for parts, sums, answers, refusals or retained results.

use gradbox::dataplane::counters::{Counter, Counters};
use gradbox::dataplane::frame::{ORIGIN, Packet};
use gradbox::dataplane::handle::Command;
use gradbox::dataplane::pool::Pool;
use gradbox::dataplane::tap::{Copies, Tap, Wanted};
use gradbox::dataplane::udp::Sender;
use gradbox::dataplane::umem::Umem;
use gradbox_protocol::envelope::{Link, write};
use gradbox_protocol::{DType, Flags, Kind, Op};
use gradbox_tests::packets::header;
use gradbox_tests::simulation::{SimBox, SimJob};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Everything that workers, honest and others, send in one round.
fn packets(job: &SimJob, world: u8, round: u32) -> Vec<Vec<u8>> {
    let chunks = job.plan.layout.chunks();
    let mut packets = Vec::new();
    for chunk in 0..chunks {
        for rank in 0..world {
            let flags = if chunk % 8 == 0 { Flags::WANT_STATUS } else { 0 };
            let push = job.push(rank, round, 0, chunk, flags);
            if chunk % 5 == 0 {
                // A duplicate, or for the last rank the wish to have the result again.
                packets.push(push.clone());
            }
            packets.push(push);
        }
        let sender = &job.senders[0];
        packets.push(sender.packet(0, job.header(Kind::Query, 0), &[]));
        packets.push(sender.packet(0, header(Kind::Push, 1, 0, 1), &[1; 4]));
        packets.push(sender.packet(0, header(Kind::Ping, 0, 0, 0), &[]));
        packets.push(vec![chunk as u8; 60]);
    }
    packets
}

const WORLD: u8 = 4;

fn job() -> SimJob {
    SimJob::new((1, 7), (DType::F32, Op::Sum), WORLD, vec![20_000], (1408, 1), true)
}

#[test]
fn a_step_allocates_nothing() {
    check(&job());
}

#[test]
fn a_step_of_a_job_with_a_group_allocates_nothing() {
    check(&job().with_group(false));
}

#[test]
fn a_step_that_is_captured_allocates_nothing() {
    let copies = Arc::new(Copies::new(Wanted::All, 2048));
    let mut the_box = SimBox::new(1, 4096, 2048, 512);
    let tap = Box::new(Tap::new(copies.clone(), NonZeroU32::MIN));
    the_box.cores[0].handle.send(Command::Tap(tap)).unwrap();
    check_in(&mut the_box, &job());
    assert!(the_box.counter(Counter::CaptureMissed) > 0, "the slow way was taken, too");
    let mut read = 0;
    while copies.take(|copied| assert!(!copied.bytes().is_empty())).is_some() {
        read += 1;
    }
    assert_eq!(read, the_box.counter(Counter::Captured));
}

fn check(job: &SimJob) {
    check_in(&mut SimBox::new(1, 4096, 2048, 512), job);
}

fn check_in(the_box: &mut SimBox, job: &SimJob) {
    the_box.add(&job.plan);
    let mut measured = 0;
    for round in 0..3 {
        for packet in packets(job, WORLD, round) {
            assert!(the_box.send(0, &packet), "room on the wire");
            let c = &mut the_box.cores[0];
            let allocated = allocation_counter::measure(|| {
                c.core.step(&mut c.port, round);
            });
            // The first round may still warm up.
            if round > 0 {
                assert_eq!(allocated.count_total, 0, "in round {round}: {allocated:?}");
                measured += 1;
            }
            the_box.receive();
        }
    }
    // All kinds of paths were taken.
    for counter in [
        Counter::Completed,
        Counter::Duplicate,
        Counter::Resent,
        Counter::Status,
        Counter::Pong,
        Counter::Error,
        Counter::DropNotGradbox,
        Counter::DropWrongCookie,
    ] {
        assert!(the_box.counter(counter) > 0, "{} did not occur", counter.name());
    }
    assert!(measured > 500);
}

#[test]
fn answers_by_sockets_allocate_nothing() {
    let from: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let receivers = [(); 4].map(|()| UdpSocket::bind(from).unwrap());
    let from = UdpSocket::bind(from).unwrap().local_addr().unwrap();
    let mut sender = Sender::of_answers(&[from], "lo").unwrap();
    let (umem, frames) = Umem::new(600, 2048).unwrap();
    let (mut pool, mut counters) = (Pool::new(frames), Counters::default());
    let (mut outbox, mut refused) = (Vec::with_capacity(600), Vec::new());
    for len in [1400, 100, 1400] {
        for n in 0..500 {
            let to = receivers[n % 4].local_addr().unwrap();
            let mut frame = pool.take().unwrap();
            let bytes = &mut umem.bytes_mut(&mut frame)[ORIGIN..];
            let at = write(bytes, &Link::default(), from, to, len).unwrap().payload();
            outbox.push(Packet { frame, start: ORIGIN as u16, len: (at + len) as u16 });
        }
        let allocated = allocation_counter::measure(|| {
            sender.transmit((&umem, &mut pool), &mut outbox, &mut refused, false, &mut counters);
        });
        assert_eq!(allocated.count_total, 0, "{allocated:?}");
        assert_eq!((outbox.len(), refused.len(), pool.free()), (0, 0, 600));
    }
}
