//! Anything at all to a box while two honest workers use it: no panic, no frame lost (`SimBox::step`
//! counts them), and the workers' sums are exact at the end.
//!
//! The input is a list of operations. Low two bits of the first byte: 0 a packet of any bytes, 1 an
//! honest packet with some bytes changed, 2 an honest packet cut off, 3 a step of the box. Bit 2
//! chooses the queue.
#![no_main]

use gradbox::dataplane::plan::Member;
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::{DType, Kind, Op};
use gradbox_tests::golden;
use gradbox_tests::packets::open;
use gradbox_tests::simulation::{Dice, Network, SimBox, SimJob, SimWorker, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let job = job();
    let mut the_box = SimBox::new(2, 192, 2048, 64);
    the_box.add(&job.plan);
    let mut workers: Vec<_> = (0..2).map(|rank| SimWorker::new(&job, rank, 3)).collect();
    let mut input = input.iter().copied();
    while let Some(op) = input.next() {
        let queue = usize::from(op >> 2 & 1);
        let more = input.next().unwrap_or(0);
        match op & 3 {
            0 => {
                let len = usize::from(op >> 3) << 8 | usize::from(more);
                let packet: Vec<u8> = input.by_ref().take(len).collect();
                the_box.send(queue, &honest(&job, packet));
            }
            3 => step(&mut the_box, &mut workers),
            change_or_cut => {
                let worker = &workers[usize::from(op >> 7)];
                let Some((shard, mut packet)) = worker.send(&mut Dice(more.into())) else {
                    continue;
                };
                if change_or_cut == 1 {
                    for _ in 0..op >> 3 & 7 {
                        let at = usize::from(input.next().unwrap_or(0)) % packet.len();
                        packet[at] ^= input.next().unwrap_or(0);
                    }
                } else {
                    packet.truncate(usize::from(input.next().unwrap_or(0)));
                }
                the_box.send(usize::from(shard) ^ queue, &honest(&job, packet));
            }
        }
    }
    for _ in 0..8 {
        step(&mut the_box, &mut workers);
    }
    run(&mut the_box, &mut workers, &[3], Network::PERFECT, &mut Dice(1), 10_000);
    workers.iter().for_each(SimWorker::verify);
});

/// The golden packets' job, with the values of the simulation.
fn job() -> SimJob {
    let mut job = SimJob::new((7, 1), (DType::F32, Op::Sum), 2, vec![20, 3], (64, 2), true);
    job.plan = golden::plan(false);
    job
}

/// Nobody but a rank itself knows its cookie and has its address; so a PUSH with both says what
/// the rank would say. Everything else may be anything.
fn honest(job: &SimJob, mut packet: Vec<u8>) -> Vec<u8> {
    let Some(envelope) = Envelope::parse(&packet) else { return packet };
    let Some((_, header, body)) = open(&packet) else { return packet };
    let own = Member { source: envelope.source(&packet), cookie: header.cookie.get() };
    if job.plan.members.get(usize::from(header.rank)) != Some(&own) {
        return packet;
    }
    let (round, tensor, chunk) = (header.round.get(), header.tensor.get(), header.chunk.get());
    let len = job.plan.layout.chunk_len(tensor, chunk);
    if header.kind() == Some(Kind::Push) && len == Some(body.len() as u16) {
        let (at, from) = (envelope.payload() + 32, job.plan.layout.chunk_offset(tensor, chunk));
        let data = job.input(header.rank, round, tensor);
        packet[at..at + body.len()].copy_from_slice(&data[from..from + body.len()]);
    }
    packet
}

/// A step of the box; RESULT and STATUS go to the workers.
fn step(the_box: &mut SimBox, workers: &mut [SimWorker]) {
    the_box.step();
    for packet in the_box.receive() {
        let (_, header, body) = open(&packet).expect("a packet of the protocol");
        if let Some(Kind::Result | Kind::Status) = header.kind() {
            workers[usize::from(header.rank)].receive(&header, &body);
        }
    }
}
