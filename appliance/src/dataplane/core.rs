//! The worker of one core: `step()` takes a batch of packets from its port and answers it.

mod answers;
mod control;
mod push;

use super::answer;
use super::counters::{Counter, Counters, FrameCounts};
use super::due::DueSums;
use super::frame::{ORIGIN, Packet};
use super::handle::{CoreLink, Report};
use super::job::JobTable;
use super::plan::MAX_JOBS;
use super::pool::Pool;
use super::port::{BATCH, Port};
use super::steer::Steering;
use super::tap::Tap;
use super::umem::Umem;
use gradbox_protocol::envelope::{Envelope, LONGEST};
use gradbox_protocol::{ErrorCode, HEADER_LEN, Header, Kind};
use std::time::Duration;

/// Packets whose headers are fetched ahead of the one at work (measured: 8 hides DRAM).
const AHEAD: usize = 8;

/// Answers that may wait for the TX ring before the core stops taking packets in.
const BACKLOG: usize = 4096;

/// Steps with work between two looks at the command queue.
const COMMANDS_EVERY: u32 = 16;

/// The data plane of one core. Owns every frame of its port's UMEM.
#[derive(Debug)]
pub struct Core {
    shard: u16,
    pool: Pool,
    jobs: Vec<Option<Box<JobTable>>>,
    inbox: Vec<Packet>,
    outbox: Vec<Packet>,
    /// Packets for other cores that wait for a buffer, with the shard that they are for.
    stranded: Vec<(u16, Packet)>,
    due: DueSums,
    counters: Counters,
    report: Report,
    steering: Steering,
    link: CoreLink,
    /// There is one while a capture is on.
    tap: Option<Box<Tap>>,
    full_checksum: bool,
    busy_ns: u64,
    steps: u32,
    /// Microseconds of the core's clock, as of this step.
    now_us: u32,
}

/// What is known of a packet once its header has been checked. Passed by value, so that on the
/// usual way it stays in registers.
#[derive(Clone, Copy)]
struct Question {
    envelope: Envelope,
    header: Header,
}

impl Core {
    /// A core for `shard` with the frames of its port. With `full_checksum`, answers over IPv4
    /// carry a UDP checksum too, as answers over IPv6 always do.
    ///
    /// # Panics
    /// Never: the portable kernel is there on every CPU.
    #[must_use]
    pub fn new(
        shard: u16,
        pool: Pool,
        steering: Steering,
        link: CoreLink,
        full_checksum: bool,
    ) -> Self {
        Self {
            shard,
            pool,
            jobs: Vec::with_capacity(MAX_JOBS),
            inbox: Vec::with_capacity(2 * BATCH),
            outbox: Vec::with_capacity(2 * BACKLOG),
            stranded: Vec::new(),
            due: DueSums::new().expect("a portable kernel"),
            counters: Counters::default(),
            report: Report::new(),
            steering,
            link,
            tap: None,
            full_checksum,
            busy_ns: 0,
            steps: 0,
            now_us: 0,
        }
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is too large to be shown after every step.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Time spent in steps that had work.
    #[must_use]
    pub const fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns)
    }

    /// Every frame's whereabouts.
    #[must_use]
    pub fn frames(&self, port: &impl Port) -> FrameCounts {
        let mut counts = self.pool.counts(port.lent());
        // Answers that wait for room in the TX ring are on their way out.
        counts.tx += self.outbox.len() as u64;
        counts.rx += self.stranded.len() as u64;
        counts
    }

    /// Whether the control plane told this core to stop.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.link.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Packets that wait for the port or for another core.
    #[must_use]
    pub const fn backlog(&self) -> usize {
        self.outbox.len() + self.stranded.len()
    }

    /// Takes the last numbers before the core stops.
    pub fn close(&mut self, port: &impl Port) {
        port.note_losses(&mut self.counters);
    }

    /// Adds to the time that was spent on packets.
    pub const fn add_busy(&mut self, ns: u64) {
        self.busy_ns += ns;
    }

    /// Sleeps until there may be work, `timeout` at the longest.
    pub fn sleep(&self, port: &mut impl Port, timeout: Duration) {
        self.steering.sleep(|wake| port.wait(timeout, wake));
    }

    /// Takes one batch of packets from the port, answers it, and returns how many there were.
    /// `now_us` is the time in microseconds; it may wrap.
    pub fn step<P: Port>(&mut self, port: &mut P, now_us: u32) -> usize {
        self.now_us = now_us;
        port.settle(&mut self.pool, &mut self.counters);
        if self.outbox.len() < BACKLOG && self.stranded.len() < BATCH {
            port.receive(&mut self.pool, &mut self.inbox, &mut self.counters);
        }
        let mut worked = self.inbox.len();
        let mut inbox = std::mem::take(&mut self.inbox);
        let umem = port.umem();
        if !self.stranded.is_empty() {
            self.steer_stranded(umem);
        }
        if let Some(tap) = &mut self.tap {
            tap.received(umem, &inbox, &mut self.counters);
        }
        for packet in inbox.iter().take(AHEAD) {
            fetch_header(umem, packet.frame.index(), usize::from(packet.start));
        }
        self.counters.add(Counter::RxPackets, inbox.len() as u64);
        let mut bytes = 0;
        let mut packets = inbox.drain(..);
        while let Some(packet) = packets.next() {
            if let Some(next) = packets.as_slice().get(AHEAD - 1) {
                fetch_header(umem, next.frame.index(), usize::from(next.start));
            }
            bytes += u64::from(packet.len);
            self.packet(umem, packet);
        }
        drop(packets);
        self.counters.add(Counter::RxBytes, bytes);
        self.inbox = inbox;
        worked += self.parcels(umem);
        self.settle(umem);
        if let Some(tap) = &mut self.tap {
            tap.leaving(umem, &self.outbox, &mut self.counters);
        }
        port.transmit(&mut self.pool, &mut self.outbox, &mut self.counters);
        if let Some(tap) = &mut self.tap {
            tap.left(self.outbox.len());
        }
        self.steps = self.steps.wrapping_add(1);
        if worked == 0 || self.steps.is_multiple_of(COMMANDS_EVERY) {
            worked += self.commands(port);
        }
        if worked > 0 {
            self.show(port);
        }
        worked
    }

    /// Disposes of one packet: every path ends with its frame in a slot, in the outbox or free.
    #[inline]
    fn packet(&mut self, umem: &Umem, packet: Packet) {
        let bytes = umem.packet(&packet);
        let Some(envelope) = Envelope::parse(bytes) else {
            return self.drop_packet(packet, Counter::DropNotGradbox);
        };
        let datagram = &bytes[envelope.payload()..envelope.payload() + envelope.len()];
        let Some((header, _)) = Header::parse(datagram) else {
            return self.drop_packet(packet, Counter::DropMalformed);
        };
        let question = Question { envelope, header: *header };
        match header.kind() {
            Some(Kind::Push) => self.push(umem, packet, question),
            Some(Kind::Query) => self.query(umem, packet, question),
            Some(Kind::Ping) => {
                self.answer(umem, packet, question, Counter::Pong, |bytes, envelope| {
                    answer::turn(bytes, envelope, Kind::Pong, 0, None)
                });
            }
            Some(Kind::Result | Kind::Status | Kind::Error | Kind::Pong) => {
                self.drop_packet(packet, Counter::DropWrongWay);
            }
            None => self.drop_packet(packet, Counter::DropMalformed),
        }
    }

    /// Hands a packet to the core that owns its chunk.
    #[cold]
    fn steer(&mut self, umem: &Umem, packet: Packet, shard: u16) {
        if self.steering.send(shard, umem.packet(&packet)) {
            self.drop_packet(packet, Counter::Steered);
        } else {
            self.counters.bump(Counter::SteerWaited);
            self.stranded.push((shard, packet));
        }
    }

    /// Tries again to hand over what waits for a buffer.
    #[cold]
    fn steer_stranded(&mut self, umem: &Umem) {
        for (shard, packet) in std::mem::take(&mut self.stranded) {
            self.steer(umem, packet, shard);
        }
    }

    /// Serves packets that other cores were sent by mistake. Returns how many.
    fn parcels(&mut self, umem: &Umem) -> usize {
        let mut served = 0;
        while served < BATCH {
            let Some(parcel) = self.steering.receive() else { break };
            served += 1;
            let len = parcel.packet().len();
            match self.pool.take() {
                Some(mut frame) if ORIGIN + len <= umem.frame_bytes() => {
                    umem.bytes_mut(&mut frame)[ORIGIN..ORIGIN + len]
                        .copy_from_slice(parcel.packet());
                    let packet = Packet { frame, start: ORIGIN as u16, len: len as u16 };
                    self.packet(umem, packet);
                }
                Some(frame) => {
                    self.drop_packet(Packet { frame, start: 0, len: 0 }, Counter::DropMisplaced)
                }
                None => self.counters.bump(Counter::DropNoFrame),
            }
            self.steering.recycle(parcel);
        }
        served
    }

    /// Counts a packet and recycles its frame.
    fn drop_packet(&mut self, packet: Packet, counter: Counter) {
        self.counters.bump(counter);
        self.pool.give(packet.frame);
    }
}

/// Starts fetching the lines that hold a packet's headers.
#[inline]
fn fetch_header(umem: &Umem, index: u32, start: usize) {
    umem.prefetch(index, start, LONGEST + HEADER_LEN);
}

/// Finds the job of a packet and checks that its sender is the rank that it claims to be.
/// `Err` says what to count, and what to answer where the sender may be an honest worker
/// that has missed something.
#[inline]
fn member<'a>(
    jobs: &'a mut [Option<Box<JobTable>>],
    bytes: &[u8],
    question: Question,
) -> Result<&'a mut JobTable, (Counter, Option<ErrorCode>)> {
    let h = &question.header;
    let Some(Some(table)) = jobs.get_mut(usize::from(h.job.get())) else {
        return Err((Counter::DropUnknownJob, Some(ErrorCode::UnknownJob)));
    };
    let Some(member) = table.plan().members.get(usize::from(h.rank)) else {
        return Err((Counter::DropWrongRank, Some(ErrorCode::WrongRank)));
    };
    if member.cookie != h.cookie.get() {
        return Err((Counter::DropWrongCookie, Some(ErrorCode::WrongCookie)));
    }
    if member.source != question.envelope.source(bytes) {
        // No answer: it would go to somebody who is not a member.
        return Err((Counter::DropWrongSource, None));
    }
    table.note_packet();
    Ok(table)
}
