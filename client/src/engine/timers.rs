//! What to ask when nothing comes. Call [`Engine::tick`] only when everything that has arrived
//! was received: a late look into the socket is not a loss.

use super::{Engine, MILLISECOND, Place, State};
use gradbox_protocol::STATUS_CHUNKS;

/// Held chunks are asked after this often while results come...
pub(super) const PROBE_LEAST: u64 = 5 * MILLISECOND;
/// ...and this rarely while none do.
const PROBE_MOST: u64 = 160 * MILLISECOND;
/// Ranges that one probe asks for.
const PROBE_RANGES: usize = 8;
/// Arriving packets wait for others at most this long...
const GATHER_MOST: u64 = MILLISECOND / 4;
/// ...and not at all where it were less than this, which is what a sleep takes anyway.
const GATHER_LEAST: u64 = MILLISECOND / 20;
/// QUERY without an answer after which data is sent again.
const DEAF: u32 = 3;

impl Engine {
    /// Acts on the timers that are due.
    pub fn tick(&mut self, now: u64) {
        while self.awaited.front().is_some_and(|a| a.until <= now) {
            let Some(awaited) = self.awaited.pop_front() else { break };
            self.result_is_overdue(now, awaited.place);
        }
        for shard in 0..self.shards.len() {
            self.ask_after_flight(now, shard);
            self.ask_after_held(now, shard);
        }
    }

    /// When [`Self::tick`] has something to do, where it ever has.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        let awaited = self.awaited.front().map(|a| a.until);
        let timers = self.shards.iter().flat_map(|s| [s.rto_at, s.probe_at]);
        timers.chain([awaited]).flatten().min()
    }

    /// How long packets that arrive from now on may be left in the socket, so that many are taken at
    /// once: to be woken for each costs more than the packet itself. `None` where each is urgent.
    ///
    /// It is a sixteenth of a round trip, so what is in flight hardly grows by it.
    #[must_use]
    pub fn gathering(&self) -> Option<u64> {
        let busy = self.shards.iter().filter(|s| s.flight > 0);
        let time = busy.map(|s| s.srtt() / 16).min()?;
        (time >= GATHER_LEAST).then_some(time.min(GATHER_MOST))
    }

    fn result_is_overdue(&mut self, now: u64, place: Place) {
        if self.state_of(place) != Some(State::Done) {
            return;
        }
        let Some(active) = self.tensors[usize::from(place.tensor)].as_deref() else { return };
        let within = (place.chunk - active.first) as usize;
        let stamp = active.chunks[within].stamp;
        self.lose(place.chunk as usize % self.shards.len(), place, stamp);
        self.move_to(now, place.tensor, within, State::Lost);
    }

    fn ask_after_flight(&mut self, now: u64, shard: usize) {
        if self.shards[shard].rto_at.is_none_or(|at| at > now) {
            return;
        }
        if self.shards[shard].flight == 0 {
            self.shards[shard].rto_at = None;
            return;
        }
        self.shards[shard].back_off(now);
        let mut sent = std::mem::take(&mut self.shards[shard].sent);
        sent.retain(|(stamp, place)| self.in_flight(*place, *stamp));
        if self.shards[shard].unanswered > DEAF
            && let Some((stamp, place)) = sent.pop_front()
            && let Some(active) = self.tensors[usize::from(place.tensor)].as_deref()
        {
            let within = (place.chunk - active.first) as usize;
            self.lose(shard, place, stamp);
            self.move_to(now, place.tensor, within, State::Lost);
        }
        let mut chunks: Vec<u32> = sent.iter().map(|(_, place)| place.chunk).collect();
        self.shards[shard].sent = sent;
        chunks.sort_unstable();
        let reach = (STATUS_CHUNKS * self.shards.len()) as u64;
        let mut covered = 0;
        for chunk in chunks {
            if u64::from(chunk) >= covered {
                self.shards[shard].queries.push_back(chunk);
                covered = u64::from(chunk) + reach;
            }
        }
    }

    pub(super) fn in_flight(&self, place: Place, stamp: u64) -> bool {
        self.state_of(place) == Some(State::Flight) && self.stamp_of(place) == Some(stamp)
    }

    /// A result came: the next probe follows soon.
    pub(super) fn progress(&mut self, now: u64, shard: usize) {
        let shard = &mut self.shards[shard];
        shard.progressed = true;
        if let Some(at) = &mut shard.probe_at {
            *at = (*at).min(now + PROBE_LEAST);
        }
    }

    fn ask_after_held(&mut self, now: u64, shard: usize) {
        let s = &mut self.shards[shard];
        if s.held == 0 {
            s.probe_at = None;
            s.probe_gap = PROBE_LEAST;
            return;
        }
        let due = s.probe_at.get_or_insert(now + PROBE_LEAST);
        if *due > now {
            return;
        }
        s.probe_gap = if s.progressed { PROBE_LEAST } else { (s.probe_gap * 2).min(PROBE_MOST) };
        s.progressed = false;
        s.probe_at = Some(now + s.probe_gap);
        let queries = self.held_ranges(shard);
        self.shards[shard].queries.extend(queries);
    }

    /// The first held chunk, and those that later results have overtaken: theirs may be lost.
    fn held_ranges(&mut self, shard: usize) -> Vec<u32> {
        let step = self.shards.len();
        let reach = STATUS_CHUNKS * step;
        let mut ranges = Vec::new();
        let mut covered = 0;
        for tensor in self.spans.values() {
            let Some(active) = self.tensors[usize::from(*tensor)].as_deref_mut() else { continue };
            let (first, high) = (active.first as usize, active.high[shard] as usize);
            let mut at = active.lowest(shard);
            while at < active.chunks.len() && (ranges.is_empty() || at < high) {
                if first + at < covered {
                    at += (covered - first - at).div_ceil(step) * step;
                    continue;
                }
                if active.chunks[at].state == State::Held {
                    ranges.push((first + at) as u32);
                    covered = first + at + reach;
                    if ranges.len() == PROBE_RANGES {
                        return ranges;
                    }
                }
                at += step;
            }
        }
        ranges
    }
}
