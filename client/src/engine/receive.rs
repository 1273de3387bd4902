//! What came from the box.

use super::{Awaited, Engine, Place, State, Waiting};
use gradbox_protocol::header::GROUP_RANK;
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{ErrorCode, Flags, Header, Kind};

impl Engine {
    /// Takes a datagram that came from the box's data plane; `marked` says that a router marked it
    /// "congestion experienced". Whatever is not ours or not of now is counted and ignored.
    pub fn receive(&mut self, now: u64, datagram: &[u8], marked: bool) {
        let Some((header, body)) = Header::parse(datagram) else {
            self.stats.stale += 1;
            return;
        };
        if header.job.get() == self.config.job && header.rank == GROUP_RANK {
            return self.receive_for_all(now, header, body, marked);
        }
        let stamp = header.stamp.get();
        let ours = header.job.get() == self.config.job
            && header.rank == self.config.rank
            && stamp > self.config.stamp_base
            && stamp <= self.last_stamp;
        let cookie = header.cookie.get() == self.config.cookie;
        // An ERROR may come without the cookie, whose wrongness it may be about.
        let taken = ours
            && match header.kind() {
                Some(Kind::Result) if cookie => self.result(now, header, body),
                Some(Kind::Status) if cookie => self.status(now, header, body),
                Some(Kind::Error) => self.error(header, body),
                _ => false,
            };
        if !taken {
            self.stats.stale += 1;
            return;
        }
        self.note_answer(now, header, stamp, marked);
    }

    /// A RESULT that every rank of the job gets. It has no stamp: the group's cookie is what
    /// strangers do not know, and the stamp of this rank's own PUSH tells its age.
    fn receive_for_all(&mut self, now: u64, header: &Header, body: &[u8], marked: bool) {
        let ours = self.config.group_cookie == Some(header.cookie.get())
            && header.kind() == Some(Kind::Result)
            && header.stamp.get() == 0;
        let stamp = self.stamp_of(Place::of(header));
        let before = self.stats.results;
        if !ours || !self.result(now, header, body) {
            self.stats.stale += 1;
            return;
        }
        self.stats.multicast += self.stats.results - before;
        self.note_answer(now, header, stamp.unwrap_or(0), marked);
    }

    /// Something was taken that answers the packet stamped `stamp`.
    fn note_answer(&mut self, now: u64, header: &Header, stamp: u64, marked: bool) {
        self.heard_at = Some(now);
        self.asked_at = None;
        let shard = header.chunk.get() as usize % self.shards.len();
        self.shards[shard].heard();
        if marked || header.flags & Flags::CONGESTION != 0 {
            self.stats.congestion += 1;
            self.shards[shard].congested(stamp, self.last_stamp);
        }
    }

    /// Returns whether the packet is of now.
    fn result(&mut self, now: u64, header: &Header, body: &[u8]) -> bool {
        let (tensor, chunk) = (header.tensor.get(), header.chunk.get());
        let layout = &self.config.layout;
        let Some(len) = layout.chunk_len(tensor, chunk) else { return false };
        if usize::from(len) != body.len() {
            return false;
        }
        let place = Place::of(header);
        match self.state_of(place) {
            None | Some(State::Unsent) => {
                // The round before is known to be over: a late copy of its result.
                let next = self.rounds[usize::from(tensor)];
                let behind = next.wrapping_sub(place.round);
                if behind == 1 || behind == 2 {
                    self.stats.duplicates += 1;
                }
                return behind == 1 || behind == 2;
            }
            Some(State::Finished) => {
                self.stats.duplicates += 1;
                return true;
            }
            Some(_) => {}
        }
        let offset = layout.chunk_offset(tensor, chunk);
        let (shard, _) = layout.place(chunk);
        let shard = usize::from(shard);
        let Some(active) = self.tensors[usize::from(tensor)].as_deref_mut() else { return false };
        let within = (chunk - active.first) as usize;
        active.data.bytes_mut()[offset..offset + body.len()].copy_from_slice(body);
        active.high[shard] = active.high[shard].max(within as u32 + 1);
        let was_in_flight = active.chunks[within].state == State::Flight;
        self.move_to(now, tensor, within, State::Finished);
        self.stats.results += 1;
        self.stats.bytes_received += body.len() as u64;
        self.shards[shard].acked(u32::from(was_in_flight), now);
        self.progress(now, shard);
        if self.tensors[usize::from(tensor)].as_ref().is_some_and(|a| a.left == 0) {
            self.finish(now, tensor);
        }
        true
    }

    /// Returns whether the packet is of now.
    fn status(&mut self, now: u64, header: &Header, body: &[u8]) -> bool {
        let Some(body) = StatusBody::parse(body) else { return false };
        let (start, count) = (u64::from(header.chunk.get()), u64::from(body.count.get()));
        if start >= u64::from(self.config.layout.chunks()) {
            return false;
        }
        self.stats.statuses += 1;
        let trigger = header.stamp.get();
        let step = self.shards.len() as u64;
        let at = (start % step) as usize;
        let shard = &mut self.shards[at];
        shard.sample(trigger, (now + self.config.stamp_base).saturating_sub(trigger));
        shard.set_credit(body.credit.get());

        let end = start + count * step;
        let below = self.spans.range(..=header.chunk.get()).next_back();
        let above = self.spans.range(header.chunk.get()..).skip_while(|s| *s.0 as u64 == start);
        let spans = below.into_iter().chain(above.take_while(|s| u64::from(*s.0) < end));
        let tensors: Vec<u16> = spans.map(|(_, tensor)| *tensor).collect();
        let mut acked = 0;
        for &tensor in &tensors {
            acked += self.status_of(now, tensor, header, body);
        }
        self.shards[at].acked(acked, now);
        self.note_waiting(now, &tensors, header, body);
        true
    }

    /// Applies a STATUS to one tensor; returns how many chunks left flight because the box has
    /// them.
    fn status_of(&mut self, now: u64, tensor: u16, header: &Header, body: &StatusBody) -> u32 {
        let step = self.shards.len();
        let start = header.chunk.get() as usize;
        let shard = start % step;
        let trigger = header.stamp.get();
        let overdue = trigger.saturating_sub(self.shards[shard].reordering());
        let grace = self.shards[shard].rto();
        let Some(active) = self.tensors[usize::from(tensor)].as_deref() else { return 0 };
        if trigger <= active.since {
            return 0;
        }
        let (first, round) = (active.first as usize, active.round);
        // Bits `from..to` speak of this tensor.
        let from = first.saturating_sub(start).div_ceil(step);
        let to = (first + active.chunks.len()).saturating_sub(start).div_ceil(step);
        let mut acked = 0;
        for bit in from..to.min(usize::from(body.count.get())) {
            let chunk = start + bit * step;
            let within = chunk - first;
            let Some(active) = self.tensors[usize::from(tensor)].as_deref() else { break };
            let known = active.chunks[within];
            if !matches!(known.state, State::Flight | State::Held | State::Lost) {
                continue;
            }
            let place = Place { tensor, round, chunk: chunk as u32 };
            let (done, held) = (body.is_done(bit, round), StatusBody::get(&body.held, bit));
            let to = if done {
                // An answer to something older than the last PUSH says nothing about the RESULT
                // that this PUSH brings.
                if trigger < known.stamp {
                    continue;
                }
                self.awaited.push_back(Awaited { until: now + grace, place });
                State::Done
            } else if held {
                State::Held
            } else if known.state != State::Lost && known.stamp < overdue {
                self.lose(shard, place, known.stamp);
                State::Lost
            } else {
                continue;
            };
            if known.state == State::Flight && to != State::Lost {
                acked += 1;
            }
            self.move_to(now, tensor, within, to);
        }
        acked
    }

    /// Remembers whom the box waits for.
    fn note_waiting(&mut self, now: u64, tensors: &[u16], header: &Header, body: &StatusBody) {
        let missing = body.missing.get();
        if missing == 0 {
            return;
        }
        let trigger = header.stamp.get();
        let current = tensors
            .iter()
            .any(|t| self.tensors[usize::from(*t)].as_ref().is_some_and(|a| trigger > a.since));
        if current {
            self.waiting = Some((now, Waiting { missing }));
        }
    }

    /// Queues a chunk to be sent again; the caller sets its state.
    pub(super) fn lose(&mut self, shard: usize, place: Place, stamp: u64) {
        self.stats.losses += 1;
        let last = self.last_stamp;
        self.shards[shard].congested(stamp, last);
        self.shards[shard].lost.push_back(place);
    }

    /// Returns whether the packet is of now.
    fn error(&mut self, header: &Header, body: &[u8]) -> bool {
        let Some(code) = body.first_chunk().map(|b| u16::from_le_bytes(*b)) else { return false };
        let Some(code) = ErrorCode::from_code(code) else { return false };
        let fatal = match code {
            ErrorCode::UnknownJob | ErrorCode::WrongCookie | ErrorCode::WrongRank => true,
            // A copy of an old PUSH that the network kept for long is rightly refused; only the
            // last PUSH of a chunk counts.
            ErrorCode::WrongChunk | ErrorCode::WrongLength | ErrorCode::WrongRound => {
                self.is_last_push(header)
            }
        };
        if fatal && self.rejected.is_none() {
            self.rejected = Some(code);
        }
        fatal
    }

    fn is_last_push(&self, header: &Header) -> bool {
        self.in_flight(Place::of(header), header.stamp.get())
    }
}
