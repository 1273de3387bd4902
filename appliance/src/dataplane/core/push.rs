//! PUSH: the way of a part into its slot, and of the slot's sum back to all ranks.

use super::{Core, Question, fetch_header, member};
use crate::dataplane::answer;
use crate::dataplane::counters::Counter;
use crate::dataplane::frame::Packet;
use crate::dataplane::job::Arrival;
use crate::dataplane::umem::Umem;
use gradbox_protocol::envelope::ones_complement_sum;
use gradbox_protocol::{ErrorCode, Flags, HEADER_LEN, Kind, STATUS_CHUNKS};

impl Core {
    /// PUSH: a part for a slot, or the wish for a result that got lost.
    #[inline]
    pub(super) fn push(&mut self, umem: &Umem, packet: Packet, question: Question) {
        let h = &question.header;
        let table = match member(&mut self.jobs, umem.packet(&packet), question) {
            Ok(table) => table,
            Err(refused) => return self.refuse(umem, packet, question, refused),
        };
        let layout = &table.plan().layout;
        let Some(len) = layout.chunk_len(h.tensor.get(), h.chunk.get()) else {
            let refused = (Counter::DropWrongChunk, Some(ErrorCode::WrongChunk));
            return self.refuse(umem, packet, question, refused);
        };
        let (shard, slot) = layout.place(h.chunk.get());
        if shard != self.shard {
            return self.steer(umem, packet, shard);
        }
        if h.length.get() != len {
            let refused = (Counter::DropWrongLength, Some(ErrorCode::WrongLength));
            return self.refuse(umem, packet, question, refused);
        }
        let slot = slot as usize;
        let arrival = table.arrival(slot, h.rank, h.round.get());
        let wants_status = h.flags & Flags::WANT_STATUS != 0;
        let status = if wants_status { self.copy_question(umem, &packet, question) } else { None };
        if arrival == Arrival::Wanted {
            self.hold(umem, packet, question, slot, len);
        } else {
            self.unwanted(umem, packet, question, (slot, len, arrival));
        }
        if let Some(copy) = status {
            let first = (slot + 1).saturating_sub(STATUS_CHUNKS);
            self.status(umem, copy, question, first, slot + 1 - first);
        }
    }

    /// Puts a part into its slot.
    #[inline]
    fn hold(&mut self, umem: &Umem, packet: Packet, q: Question, slot: usize, len: u16) {
        let h = &q.header;
        match self.pool.hold(packet.frame, packet.start, q.envelope.shape()) {
            Ok(part) => {
                self.counters.bump(Counter::Pushed);
                self.counters.add(Counter::PushedBytes, u64::from(len));
                let table = self.jobs[usize::from(h.job.get())].as_mut();
                if table.is_some_and(|t| t.put(slot, h.rank, part, self.now_us)) {
                    self.complete(umem, h.job.get(), slot, len);
                }
            }
            Err(frame) => {
                self.counters.bump(Counter::DropMisplaced);
                self.pool.give(frame);
            }
        }
    }

    /// A PUSH that brings nothing.
    #[cold]
    fn unwanted(
        &mut self,
        umem: &Umem,
        packet: Packet,
        q: Question,
        (slot, len, arrival): (usize, u16, Arrival),
    ) {
        let counter = match arrival {
            Arrival::Wanted | Arrival::Duplicate => {
                return self.drop_packet(packet, Counter::Duplicate);
            }
            Arrival::Finished => return self.resend(umem, packet, q, slot, len),
            Arrival::Stale => Counter::DropStaleRound,
            Arrival::Future => Counter::DropFutureRound,
        };
        self.refuse(umem, packet, q, (counter, Some(ErrorCode::WrongRound)));
    }

    /// A slot has all parts: its round is over. Its sum is made a little later, while the parts of
    /// the next one are on their way from memory.
    #[inline]
    fn complete(&mut self, umem: &Umem, job: u16, slot: usize, len: u16) {
        let Some(Some(table)) = self.jobs.get_mut(usize::from(job)) else { return };
        let for_all = table.plan().group.map(|_| job);
        let due = self.due.add(*table.reduce(), for_all, len, table.parts_mut(slot));
        for part in due.parts().iter().flatten() {
            fetch_header(umem, part.place().index(), part.place().start());
        }
        if let Some(Some(first)) = due.parts().first() {
            let claim = self.pool.retain(first);
            let (before, took_us) = table.finish(slot, claim, self.now_us);
            if let Some(before) = before {
                self.pool.release(before);
            }
            self.report.latency_us.saturating_record(u64::from(took_us));
        }
        self.counters.bump(Counter::Completed);
        self.reflect(umem);
    }

    /// Makes all sums that are due.
    pub(super) fn settle(&mut self, umem: &Umem) {
        self.due.hurry();
        self.reflect(umem);
    }

    /// Makes the sum whose turn it is, if there is one: one pass over the parts in rank order, and
    /// the frames go back to where they came from with the result in each, or the first of them to
    /// all.
    fn reflect(&mut self, umem: &Umem) {
        let (due, next) = self.due.both();
        if due.is_none() {
            return;
        }
        if let Some(job) = due.for_all {
            return self.multicast(umem, job);
        }
        let (reduce, len) = (due.reduce, due.len);
        umem.reduce_into_all(&reduce, due.parts_mut(), usize::from(len), next.parts());
        let mut body_sum = None;
        for part in due.parts_mut().iter_mut().filter_map(Option::take) {
            let place = part.place();
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
        due.done();
    }

    /// The same for a job that has a group: the sum goes into the first frame alone, which goes to
    /// the group; the others are free at once.
    #[inline(never)]
    fn multicast(&mut self, umem: &Umem, job: u16) {
        let (due, next) = self.due.both();
        let (reduce, len) = (due.reduce, due.len);
        umem.reduce_into_first(&reduce, due.parts_mut(), usize::from(len), next.parts());
        let mut first = None;
        let mut congestion = false;
        for part in due.parts_mut().iter_mut().filter_map(Option::take) {
            let place = part.place();
            let frame = self.pool.unhold(part);
            let envelope = place.envelope(HEADER_LEN as u16 + len);
            congestion |= envelope.congestion(&umem.bytes(&frame)[place.start()..]);
            match first {
                None => first = Some((frame, place, envelope)),
                Some(_) => self.pool.give(frame),
            }
        }
        due.done();
        let Some((mut frame, place, envelope)) = first else { return };
        let table = self.jobs.get(usize::from(job)).and_then(Option::as_ref);
        let Some(group) = table.and_then(|t| t.plan().group) else {
            // Sums are made before a job goes, so it is there; if not, nobody waits for this one.
            return self.pool.transmitted(frame);
        };
        let bytes = &mut umem.bytes_mut(&mut frame)[place.start()..];
        let at = envelope.payload() + HEADER_LEN;
        let body = at..at + usize::from(len);
        let sum = self.full_checksum.then(|| ones_complement_sum(&bytes[body]));
        let len = answer::group(bytes, &envelope, &group, congestion, usize::from(len), sum);
        self.counters.add(Counter::TxBytes, u64::from(len));
        self.counters.bump(Counter::TxPackets);
        self.outbox.push(Packet { frame, start: place.start() as u16, len });
    }

    /// A PUSH of a finished round: the result goes back in that very frame.
    fn resend(&mut self, umem: &Umem, packet: Packet, q: Question, slot: usize, len: u16) {
        // The result may be one that is still due.
        self.settle(umem);
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
}
