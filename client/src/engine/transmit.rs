//! What to send now.

use super::{Chunk, Engine, Place, State, Transmit};
use gradbox_protocol::{Flags, Header, Kind};

/// Packets that one shard may send before the next one's turn: one segmentation-offload batch.
const TURN: u32 = 64;

impl Engine {
    /// Appends to `out` what may be sent now, runs of one shard together. Everything that is
    /// appended counts as sent: send it, in this order. Call again once it is sent.
    pub fn transmit(&mut self, now: u64, out: &mut Vec<Transmit>) {
        if self.rejected.is_some() {
            return;
        }
        let shards = self.shards.len();
        self.turn = (self.turn + 1) % shards;
        for i in 0..shards {
            let shard = (self.turn + i) % shards;
            while let Some(chunk) = self.shards[shard].queries.pop_front() {
                out.push(self.query(now, shard, chunk));
            }
            self.forget_settled(shard);
            let before = self.shards[shard].flight;
            for _ in 0..TURN {
                let Some(packet) = self.push(now, shard) else { break };
                out.push(packet);
            }
            let s = &mut self.shards[shard];
            if s.flight > before && s.rto_at.is_none() {
                s.rto_at = Some(now + s.rto());
            }
        }
    }

    /// Drops what is no longer in flight from the front of the shard's list.
    fn forget_settled(&mut self, shard: usize) {
        while let Some((stamp, place)) = self.shards[shard].sent.front().copied() {
            if self.in_flight(place, stamp) {
                break;
            }
            self.shards[shard].sent.pop_front();
        }
    }

    /// A stamp for a packet that is sent now.
    fn stamp(&mut self, now: u64) -> u64 {
        self.last_stamp = (now + self.config.stamp_base).max(self.last_stamp + 1);
        self.last_stamp
    }

    fn header(&self, kind: Kind) -> Header {
        let mut header = Header::new(kind);
        header.job = self.config.job.into();
        header.rank = self.config.rank;
        header.cookie = self.config.cookie.into();
        header
    }

    fn query(&mut self, now: u64, shard: usize, chunk: u32) -> Transmit {
        let mut header = self.header(Kind::Query);
        header.chunk = chunk.into();
        header.stamp = self.stamp(now).into();
        self.stats.queries += 1;
        self.asked_at.get_or_insert(now);
        Transmit { shard: shard as u16, header, payload: None }
    }

    /// The next PUSH to `shard`, where the window allows one.
    fn push(&mut self, now: u64, shard: usize) -> Option<Transmit> {
        if self.shards[shard].flight >= self.shards[shard].window() {
            return None;
        }
        let (place, resent) = match self.next_lost(shard) {
            Some(place) => (place, true),
            None => (self.next_fresh(shard)?, false),
        };
        let stamp = self.stamp(now);
        let (offset, len) = self.place_in_data(place)?;
        let mut header = self.header(Kind::Push);
        header.round = place.round.into();
        header.chunk = place.chunk.into();
        header.tensor = place.tensor.into();
        header.length = len.into();
        header.stamp = stamp.into();

        let active = self.tensors[usize::from(place.tensor)].as_deref_mut()?;
        let within = (place.chunk - active.first) as usize;
        active.chunks[within].stamp = stamp;
        if let Some(call) = self.calls.get_mut(&active.call)
            && call.report.first_sent_ns == 0
        {
            call.report.first_sent_ns = now;
        }
        self.move_to(now, place.tensor, within, State::Flight);
        let s = &mut self.shards[shard];
        s.sent.push_back((stamp, place));
        s.since_status += 1;
        // The answer covers chunks up to this one: a jump backwards, and the end, must ask first.
        let last = s.lost.is_empty() && s.fresh.front().is_none_or(|f| f.next < place.chunk);
        if last || s.since_status >= s.window() / 4 {
            s.since_status = 0;
            header.flags |= Flags::WANT_STATUS;
            self.asked_at.get_or_insert(now);
        }
        self.stats.pushed += 1;
        self.stats.bytes_sent += u64::from(len);
        if resent {
            self.stats.resent += 1;
            header.flags |= Flags::RESENT;
        }
        Some(Transmit { shard: shard as u16, header, payload: Some((offset, len)) })
    }

    fn place_in_data(&self, place: Place) -> Option<(usize, u16)> {
        let layout = &self.config.layout;
        let len = layout.chunk_len(place.tensor, place.chunk)?;
        Some((layout.chunk_offset(place.tensor, place.chunk), len))
    }

    fn next_lost(&mut self, shard: usize) -> Option<Place> {
        while let Some(place) = self.shards[shard].lost.pop_front() {
            if self.state_of(place) == Some(State::Lost) {
                return Some(place);
            }
        }
        None
    }

    fn next_fresh(&mut self, shard: usize) -> Option<Place> {
        let step = self.shards.len() as u32;
        while let Some(fresh) = self.shards[shard].fresh.front_mut() {
            let place = Place { tensor: fresh.tensor, round: fresh.round, chunk: fresh.next };
            match fresh.next.checked_add(step).filter(|next| *next < fresh.end) {
                Some(next) => fresh.next = next,
                None => {
                    self.shards[shard].fresh.pop_front();
                }
            }
            if self.state_of(place) == Some(State::Unsent) {
                return Some(place);
            }
        }
        None
    }

    /// State of a chunk, where its round has not ended.
    pub(super) fn state_of(&self, place: Place) -> Option<State> {
        self.chunk_of(place).map(|chunk| chunk.state)
    }

    /// Stamp of the last PUSH of a chunk, where its round has not ended.
    pub(super) fn stamp_of(&self, place: Place) -> Option<u64> {
        self.chunk_of(place).map(|chunk| chunk.stamp)
    }

    fn chunk_of(&self, place: Place) -> Option<&Chunk> {
        let active = self.tensors.get(usize::from(place.tensor))?.as_ref()?;
        let chunk = active.chunks.get(place.chunk.checked_sub(active.first)? as usize)?;
        (active.round == place.round).then_some(chunk)
    }
}
