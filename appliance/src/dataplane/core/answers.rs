//! Answers that are not the sum of a slot that has just completed.

use super::{Core, Question, member};
use crate::dataplane::answer;
use crate::dataplane::counters::Counter;
use crate::dataplane::frame::Packet;
use crate::dataplane::umem::Umem;
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::{ErrorCode, HEADER_LEN, STATUS_CHUNKS};

impl Core {
    /// QUERY: a STATUS of the slots from its chunk on.
    pub(super) fn query(&mut self, umem: &Umem, packet: Packet, question: Question) {
        let h = &question.header;
        let table = match member(&mut self.jobs, umem.packet(&packet), question) {
            Ok(table) => table,
            Err(refused) => return self.refuse(umem, packet, question, refused),
        };
        if h.chunk.get() >= table.plan().layout.chunks() {
            let refused = (Counter::DropWrongChunk, Some(ErrorCode::WrongChunk));
            return self.refuse(umem, packet, question, refused);
        }
        let (shard, slot) = table.plan().layout.place(h.chunk.get());
        if shard != self.shard {
            return self.steer(umem, packet, shard);
        }
        self.status(umem, packet, question, slot as usize, STATUS_CHUNKS);
    }

    /// Turns `packet` into a STATUS of up to `count` slots from `first`.
    pub(super) fn status(
        &mut self,
        umem: &Umem,
        packet: Packet,
        q: Question,
        first: usize,
        count: usize,
    ) {
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
    pub(super) fn copy_question(
        &mut self,
        umem: &Umem,
        packet: &Packet,
        q: Question,
    ) -> Option<Packet> {
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
    pub(super) fn refuse(
        &mut self,
        umem: &Umem,
        packet: Packet,
        question: Question,
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
    pub(super) fn answer(
        &mut self,
        umem: &Umem,
        mut packet: Packet,
        question: Question,
        counter: Counter,
        make: impl FnOnce(&mut [u8], &Envelope) -> u16,
    ) {
        // Answers go out in the order of what they answer: a STATUS that says "done" comes after
        // the RESULT.
        self.settle(umem);
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
}
