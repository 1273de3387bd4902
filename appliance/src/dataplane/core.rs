//! The worker of one core: `step()` takes a batch of packets from its port and answers it.

use super::answer;
use super::counters::{Counter, Counters, FrameCounts};
use super::frame::{ORIGIN, Packet};
use super::handle::{Command, CoreLink, Event, Report};
use super::job::{Arrival, JobTable};
use super::plan::MAX_JOBS;
use super::pool::Pool;
use super::port::{BATCH, Port};
use super::steer::Steering;
use super::umem::Umem;
use gradbox_protocol::envelope::{Envelope, LONGEST, ones_complement_sum};
use gradbox_protocol::{ErrorCode, Flags, HEADER_LEN, Header, Kind, STATUS_CHUNKS};
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
    counters: Counters,
    report: Report,
    steering: Steering,
    link: CoreLink,
    full_checksum: bool,
    busy_ns: u64,
    steps: u32,
    /// Microseconds of the core's clock, as of this step.
    now_us: u32,
}

/// What is known of a packet once its header has been checked.
struct Question {
    envelope: Envelope,
    header: Header,
}

impl Core {
    /// A core for `shard` with the frames of its port. With `full_checksum`, answers over IPv4
    /// carry a UDP checksum too, as answers over IPv6 always do.
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
            jobs: (0..MAX_JOBS).map(|_| None).collect(),
            inbox: Vec::with_capacity(2 * BATCH),
            outbox: Vec::with_capacity(2 * BACKLOG),
            stranded: Vec::new(),
            counters: Counters::default(),
            report: Report::new(),
            steering,
            link,
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
        for packet in inbox.iter().take(AHEAD) {
            fetch_header(umem, packet);
        }
        let mut packets = inbox.drain(..);
        while let Some(packet) = packets.next() {
            if let Some(next) = packets.as_slice().get(AHEAD - 1) {
                fetch_header(umem, next);
            }
            self.counters.bump(Counter::RxPackets);
            self.counters.add(Counter::RxBytes, u64::from(packet.len));
            self.packet(umem, packet);
        }
        drop(packets);
        self.inbox = inbox;
        worked += self.parcels(umem);
        port.transmit(&mut self.pool, &mut self.outbox, &mut self.counters);
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
            Some(Kind::Push) => self.push(umem, packet, &question),
            Some(Kind::Query) => self.query(umem, packet, &question),
            Some(Kind::Ping) => {
                self.answer(umem, packet, &question, Counter::Pong, |bytes, envelope| {
                    answer::turn(bytes, envelope, Kind::Pong, 0, None)
                });
            }
            Some(Kind::Result | Kind::Status | Kind::Error | Kind::Pong) => {
                self.drop_packet(packet, Counter::DropWrongWay);
            }
            None => self.drop_packet(packet, Counter::DropMalformed),
        }
    }

    /// Finds the job of a packet and checks that its sender is the rank that it claims to be.
    /// `Err` says what to count, and what to answer where the sender may be an honest worker
    /// that has missed something.
    #[inline]
    fn check(
        &mut self,
        bytes: &[u8],
        question: &Question,
    ) -> Result<&mut JobTable, (Counter, Option<ErrorCode>)> {
        let h = &question.header;
        let Some(Some(table)) = self.jobs.get_mut(usize::from(h.job.get())) else {
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

    /// PUSH: a part for a slot, or the wish for a result that got lost.
    #[inline]
    fn push(&mut self, umem: &Umem, packet: Packet, question: &Question) {
        let (now_us, own) = (self.now_us, self.shard);
        let h = &question.header;
        let table = match self.check(umem.packet(&packet), question) {
            Ok(table) => table,
            Err(refused) => return self.refuse(umem, packet, question, refused),
        };
        let layout = &table.plan().layout;
        let Some(len) = layout.chunk_len(h.tensor.get(), h.chunk.get()) else {
            let refused = (Counter::DropWrongChunk, Some(ErrorCode::WrongChunk));
            return self.refuse(umem, packet, question, refused);
        };
        let (shard, slot) = layout.place(h.chunk.get());
        if shard != own {
            return self.steer(umem, packet, shard);
        }
        if h.length.get() != len {
            let refused = (Counter::DropWrongLength, Some(ErrorCode::WrongLength));
            return self.refuse(umem, packet, question, refused);
        }
        let slot = slot as usize;
        let arrival = table.arrival(slot, h.rank, h.round.get());
        let status = (h.flags & Flags::WANT_STATUS != 0)
            .then(|| self.copy_question(umem, &packet, question))
            .flatten();
        match arrival {
            Arrival::Wanted => {
                let shape = question.envelope.shape();
                match self.pool.hold(packet.frame, packet.start, shape) {
                    Ok(part) => {
                        self.counters.bump(Counter::Pushed);
                        self.counters.add(Counter::PushedBytes, u64::from(len));
                        let table = self.jobs[usize::from(h.job.get())].as_mut();
                        if table.is_some_and(|t| t.put(slot, h.rank, part, now_us)) {
                            self.complete(umem, h.job.get(), slot, len);
                        }
                    }
                    Err(frame) => {
                        self.counters.bump(Counter::DropMisplaced);
                        self.pool.give(frame);
                    }
                }
            }
            Arrival::Duplicate => self.drop_packet(packet, Counter::Duplicate),
            Arrival::Finished => self.resend(umem, packet, question, slot, len),
            Arrival::Stale => {
                let refused = (Counter::DropStaleRound, Some(ErrorCode::WrongRound));
                self.refuse(umem, packet, question, refused);
            }
            Arrival::Future => {
                let refused = (Counter::DropFutureRound, Some(ErrorCode::WrongRound));
                self.refuse(umem, packet, question, refused);
            }
        }
        if let Some(copy) = status {
            let first = (slot + 1).saturating_sub(STATUS_CHUNKS);
            self.status(umem, copy, question, first, slot + 1 - first);
        }
    }

    /// A slot has all parts: one pass over them in rank order, and the frames go back to where
    /// they came from with the result in each.
    #[inline]
    fn complete(&mut self, umem: &Umem, job: u16, slot: usize, len: u16) {
        let Some(Some(table)) = self.jobs.get_mut(usize::from(job)) else { return };
        let reduce = *table.reduce();
        let parts = table.parts_mut(slot);
        umem.reduce(&reduce, parts, usize::from(len));
        let mut claim = None;
        let mut body_sum = None;
        for part in parts.iter_mut().filter_map(Option::take) {
            let place = part.place();
            if claim.is_none() {
                claim = Some(self.pool.retain(&part));
            }
            let mut frame = self.pool.unhold(part);
            let envelope = place.envelope(HEADER_LEN as u16 + len);
            let bytes = &mut umem.bytes_mut(&mut frame)[place.start()..];
            if self.full_checksum || envelope.is_ipv6() {
                let at = envelope.payload() + HEADER_LEN;
                body_sum
                    .get_or_insert_with(|| ones_complement_sum(&bytes[at..at + usize::from(len)]));
            }
            let sum = if self.full_checksum || envelope.is_ipv6() { body_sum } else { None };
            let len = answer::turn(bytes, &envelope, Kind::Result, usize::from(len), sum);
            self.counters.add(Counter::TxBytes, u64::from(len));
            self.counters.bump(Counter::TxPackets);
            self.outbox.push(Packet { frame, start: place.start() as u16, len });
        }
        if let Some(claim) = claim {
            let (before, took_us) = table.finish(slot, claim, self.now_us);
            if let Some(before) = before {
                self.pool.release(before);
            }
            self.report.latency_us.saturating_record(u64::from(took_us));
        }
        self.counters.bump(Counter::Completed);
    }

    /// A PUSH of a finished round: the result goes back in that very frame.
    fn resend(&mut self, umem: &Umem, packet: Packet, q: &Question, slot: usize, len: u16) {
        let table = self.jobs.get(usize::from(q.header.job.get())).and_then(Option::as_ref);
        let Some(claim) = table.and_then(|t| t.result(slot)) else {
            return self.drop_packet(packet, Counter::DropStaleRound);
        };
        let from = claim.place().payload();
        let result = &umem.retained(claim)[from..from + usize::from(len)];
        let mut packet = packet;
        let at = q.envelope.payload() + HEADER_LEN;
        umem.packet_mut(&mut packet)[at..at + usize::from(len)].copy_from_slice(result);
        let sum = self.full_checksum.then(|| ones_complement_sum(result));
        self.answer(umem, packet, q, Counter::Resent, |bytes, envelope| {
            answer::turn(bytes, envelope, Kind::Result, usize::from(len), sum)
        });
    }

    /// QUERY: a STATUS of the slots from its chunk on.
    fn query(&mut self, umem: &Umem, packet: Packet, question: &Question) {
        let own = self.shard;
        let h = &question.header;
        let table = match self.check(umem.packet(&packet), question) {
            Ok(table) => table,
            Err(refused) => return self.refuse(umem, packet, question, refused),
        };
        if h.chunk.get() >= table.plan().layout.chunks() {
            let refused = (Counter::DropWrongChunk, Some(ErrorCode::WrongChunk));
            return self.refuse(umem, packet, question, refused);
        }
        let (shard, slot) = table.plan().layout.place(h.chunk.get());
        if shard != own {
            return self.steer(umem, packet, shard);
        }
        self.status(umem, packet, question, slot as usize, STATUS_CHUNKS);
    }

    /// Turns `packet` into a STATUS of up to `count` slots from `first`.
    fn status(&mut self, umem: &Umem, packet: Packet, q: &Question, first: usize, count: usize) {
        let Some(Some(table)) = self.jobs.get(usize::from(q.header.job.get())) else {
            return self.pool.give(packet.frame);
        };
        let body = table.status(q.header.rank, first, count);
        let chunk = table.chunk(first);
        self.answer(umem, packet, q, Counter::Status, |bytes, envelope| {
            answer::status(bytes, envelope, chunk, &body)
        });
    }

    /// A copy of a packet's headers in a frame of their own, to be made an answer while the
    /// packet itself stays in a slot.
    fn copy_question(&mut self, umem: &Umem, packet: &Packet, q: &Question) -> Option<Packet> {
        let Some(mut frame) = self.pool.take() else {
            self.counters.bump(Counter::DropNoFrame);
            return None;
        };
        let start = usize::from(packet.start);
        let len = q.envelope.payload() + HEADER_LEN;
        umem.bytes_mut(&mut frame)[start..start + len].copy_from_slice(&umem.packet(packet)[..len]);
        Some(Packet { frame, start: packet.start, len: len as u16 })
    }

    /// Counts a packet that is not served, and says why to a sender who should know.
    #[cold]
    fn refuse(
        &mut self,
        umem: &Umem,
        packet: Packet,
        question: &Question,
        (counter, code): (Counter, Option<ErrorCode>),
    ) {
        self.counters.bump(counter);
        match code {
            Some(code) => self.answer(umem, packet, question, Counter::Error, |bytes, envelope| {
                answer::error(bytes, envelope, code)
            }),
            None => self.pool.give(packet.frame),
        }
    }

    /// Makes a packet its own answer and puts it into the outbox.
    #[inline]
    fn answer(
        &mut self,
        umem: &Umem,
        mut packet: Packet,
        question: &Question,
        counter: Counter,
        make: impl FnOnce(&mut [u8], &Envelope) -> u16,
    ) {
        // An answer may be longer than its question, so it gets all the room of the frame.
        let start = usize::from(packet.start);
        let bytes = &mut umem.bytes_mut(&mut packet.frame)[start..];
        if bytes.len() < answer::LONGEST {
            return self.drop_packet(packet, Counter::DropMisplaced);
        }
        packet.len = make(bytes, &question.envelope);
        self.counters.bump(counter);
        self.counters.bump(Counter::TxPackets);
        self.counters.add(Counter::TxBytes, u64::from(packet.len));
        self.outbox.push(packet);
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

    /// Does what the control plane asks for. Returns how many commands there were.
    fn commands(&mut self, port: &impl Port) -> usize {
        let mut done = 0;
        while let Some(command) = self.link.commands.pop() {
            done += 1;
            match command {
                Command::Add(table) => {
                    let id = usize::from(table.plan().id);
                    if let Some(place) = self.jobs.get_mut(id)
                        && let Some(old) = place.replace(table)
                    {
                        self.retire(old);
                    }
                }
                Command::Remove(job) => {
                    if let Some(table) = self.jobs.get_mut(usize::from(job)).and_then(Option::take)
                    {
                        self.retire(table);
                    }
                }
                Command::Credit { job, credit } => {
                    if let Some(Some(table)) = self.jobs.get_mut(usize::from(job)) {
                        table.credit = credit;
                    }
                }
                Command::Report(mut report) => {
                    report.latency_us.reset();
                    // The bounds of all reports are the same.
                    let added = report.latency_us.add(&self.report.latency_us);
                    debug_assert!(added.is_ok());
                    self.show(port);
                    self.event(Event::Report(report));
                }
            }
        }
        done
    }

    /// Frees the frames of a job and hands its table back.
    fn retire(&mut self, mut table: Box<JobTable>) {
        table.store_progress();
        table.clear(&mut self.pool);
        self.event(Event::Removed(table));
    }

    /// Tells the control plane. Where it does not listen, the event's memory is freed here.
    fn event(&self, event: Event) {
        drop(self.link.events.push(event));
    }

    /// Shows the numbers to the rest of the box.
    fn show(&mut self, port: &impl Port) {
        for table in self.jobs.iter_mut().flatten().filter(|t| t.touched) {
            table.store_progress();
        }
        self.link.shown.publish(&self.counters, &self.frames(port), self.busy_ns);
    }
}

/// Starts fetching the lines that hold a packet's headers.
#[inline]
fn fetch_header(umem: &Umem, packet: &Packet) {
    umem.prefetch(packet.frame.index(), usize::from(packet.start), LONGEST + HEADER_LEN);
}
