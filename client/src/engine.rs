//! The worker's side of the protocol as a state machine without I/O: received packets and the
//! time go in, packets to send and finished calls come out. It never waits, never reads a clock
//! and never panics on what the network brings.
//!
//! Who knows what: the box never sends on its own, so everything is driven from here.
//! * A chunk is *unsent*, then in *flight*; a RESULT *finishes* it. When ranks run in step, that
//!   is all.
//! * Otherwise STATUS, which every few PUSH ask for, says that the box *holds* the chunk, which
//!   frees the window: a whole gradient can be delivered while another rank is still computing.
//! * A STATUS that knows nothing of a chunk that was sent well before its trigger, or says that
//!   it is done while no RESULT comes, makes the chunk *lost*: it is sent again, and the box keeps
//!   it or answers with the RESULT.
//! * Timers only ever ask (QUERY). Data is not sent again because time has passed.
//!
//! Stamps are the time of sending in nanoseconds, made strictly increasing: they tell order and
//! round-trip time at once.

mod chunk;
mod diagnose;
mod receive;
mod shard;
mod timers;
mod transmit;

use crate::error::Error;
use crate::stats::{Report, Stats};
use crate::tensor::Tensor;
use chunk::{Active, Chunk, State};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{ErrorCode, HEADER_LEN, Header};
use shard::{Fresh, Place, Shard};
use std::collections::{BTreeMap, HashMap, VecDeque};

pub use diagnose::{Diagnosis, Waiting};

/// A millisecond in the engine's unit of time.
pub const MILLISECOND: u64 = 1_000_000;

/// What an engine is told when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Job id for packets.
    pub job: u16,
    /// Rank of this worker.
    pub rank: u8,
    /// Cookie for packets.
    pub cookie: u32,
    /// Cookie of RESULTs for all ranks, in a job that gets them by multicast.
    pub group_cookie: Option<u32>,
    /// Layout of the job.
    pub layout: Layout,
    /// Packets that the box grants to each shard at first.
    pub credit: u16,
    /// Packets, all shards together, that the receive buffer has room for.
    pub receive_packets: u32,
    /// Added to the time to make stamps: a secret below 2^62 against forged answers.
    pub stamp_base: u64,
}

/// One packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Shard that it goes to.
    pub shard: u16,
    /// Its header, complete.
    pub header: Header,
    /// Where its payload lies in the tensor's data; `None` for a packet without.
    payload: Option<(usize, u16)>,
}

impl Transmit {
    /// Bytes of the datagram.
    #[must_use]
    pub fn datagram_len(&self) -> usize {
        HEADER_LEN + usize::from(self.header.length.get())
    }
}

/// A call that has ended well.
#[derive(Debug)]
pub struct Completed {
    /// The number that it was submitted under.
    pub call: u64,
    /// Tensors by index in the table, in the order of submission, with the results.
    pub tensors: Vec<(u16, Tensor)>,
    /// What it did.
    pub report: Report,
}

#[derive(Debug)]
struct Call {
    /// In the order of submission; empty places are in [`Engine::tensors`].
    tensors: Vec<(u16, Option<Tensor>)>,
    /// Tensors that are not finished.
    left: usize,
    /// Chunks that the box has not had.
    undelivered: u64,
    report: Report,
}

/// A chunk that the box called done: if there is no RESULT by then, it was lost.
#[derive(Debug)]
struct Awaited {
    until: u64,
    place: Place,
}

/// The state machine. Times are nanoseconds of one steady clock.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    shards: Vec<Shard>,
    /// By tensor of the table.
    tensors: Vec<Option<Box<Active>>>,
    /// By tensor: its next round.
    rounds: Vec<u32>,
    /// First chunk to tensor, of those in [`Self::tensors`].
    spans: BTreeMap<u32, u16>,
    calls: HashMap<u64, Call>,
    completed: VecDeque<Completed>,
    awaited: VecDeque<Awaited>,
    last_stamp: u64,
    /// When something came from the box.
    heard_at: Option<u64>,
    /// Since when an answer is due.
    asked_at: Option<u64>,
    waiting: Option<(u64, Waiting)>,
    rejected: Option<ErrorCode>,
    /// Shard that sends first next time.
    turn: usize,
    stats: Stats,
}

impl Engine {
    /// An engine at rest.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let shards = usize::from(config.layout.shards());
        let share = (config.receive_packets / shards as u32).max(1);
        let tensors = config.layout.tensors().len();
        Self {
            shards: (0..shards).map(|_| Shard::new(config.credit, share)).collect(),
            tensors: (0..tensors).map(|_| None).collect(),
            rounds: vec![0; tensors],
            spans: BTreeMap::new(),
            calls: HashMap::new(),
            completed: VecDeque::new(),
            awaited: VecDeque::new(),
            last_stamp: config.stamp_base,
            heard_at: None,
            asked_at: None,
            waiting: None,
            rejected: None,
            turn: 0,
            stats: Stats::default(),
            config,
        }
    }

    /// Begins the next round of `tensors` (index in the table, data in the wire type) under the
    /// number `call`, which no running call has.
    ///
    /// # Errors
    /// [`Error::Stopped`] where a tensor does not exist, has another length than in the layout, is
    /// in flight or occurs twice, or `call` runs: nothing has begun then.
    pub fn submit(
        &mut self,
        now: u64,
        call: u64,
        tensors: Vec<(u16, Tensor)>,
    ) -> Result<(), Error> {
        let layout = &self.config.layout;
        let bytes_of = |index: u16| {
            let t = layout.tensors().get(usize::from(index))?;
            let full = u64::from(t.count.saturating_sub(1)) * u64::from(layout.chunk_bytes());
            Some(full + u64::from(t.last_bytes))
        };
        let mut seen = std::collections::HashSet::new();
        for (index, data) in &tensors {
            if bytes_of(*index) != Some(data.bytes().len() as u64) {
                return Err(Error::Stopped("a tensor is not as in the layout"));
            }
            if self.tensors[usize::from(*index)].is_some() || !seen.insert(*index) {
                return Err(Error::Stopped("a tensor is in flight"));
            }
        }
        if self.calls.contains_key(&call) {
            return Err(Error::Stopped("the call's number is in use"));
        }
        let mut report = Report { started_ns: now, first_sent_ns: 0, ..Report::default() };
        let mut parts = Vec::with_capacity(tensors.len());
        let mut left = 0;
        for (index, data) in tensors {
            report.bytes += data.bytes().len() as u64;
            let chunks = self.config.layout.tensors()[usize::from(index)].count;
            report.chunks += u64::from(chunks);
            if chunks == 0 {
                parts.push((index, Some(data)));
            } else {
                left += 1;
                parts.push((index, None));
                self.activate(call, index, data);
            }
        }
        let undelivered = report.chunks;
        self.calls.insert(call, Call { tensors: parts, left, undelivered, report });
        if left == 0 {
            self.complete(now, call);
        }
        Ok(())
    }

    fn activate(&mut self, call: u64, index: u16, data: Tensor) {
        let at = usize::from(index);
        let t = self.config.layout.tensors()[at];
        let shards = self.shards.len() as u32;
        let round = self.rounds[at];
        self.rounds[at] = round.wrapping_add(1);
        let mut low = vec![0; self.shards.len()];
        for within in 0..shards {
            let (shard, _) = self.config.layout.place(t.first + within);
            low[usize::from(shard)] = within;
            if within < t.count {
                let next = t.first + within;
                let fresh = Fresh { tensor: index, round, next, end: t.first + t.count };
                self.shards[usize::from(shard)].fresh.push_back(fresh);
            }
        }
        self.spans.insert(t.first, index);
        let chunk = Chunk { stamp: 0, state: State::Unsent, delivered: false };
        self.tensors[at] = Some(Box::new(Active {
            call,
            round,
            since: self.last_stamp,
            first: t.first,
            data,
            chunks: vec![chunk; t.count as usize],
            left: t.count,
            high: vec![0; low.len()],
            low,
        }));
    }

    /// Gives `call` up and returns its tensors, their contents a mixture of input and result.
    /// Ranks no longer agree on the round of these tensors: they must not be submitted again.
    /// `None` where there is no such call.
    pub fn cancel(&mut self, call: u64) -> Option<Vec<(u16, Tensor)>> {
        let call = self.calls.remove(&call)?;
        let take = |(index, data): (u16, Option<Tensor>)| {
            let data = data.or_else(|| self.retire(index)).unwrap_or_default();
            (index, data)
        };
        Some(call.tensors.into_iter().map(take).collect())
    }

    /// The calls that have not ended.
    pub fn running(&self) -> impl Iterator<Item = u64> {
        self.calls.keys().copied()
    }

    /// The next call that has ended.
    pub fn completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// Why the box refuses this worker, where it does. Nothing is sent from then on.
    #[must_use]
    pub const fn rejected(&self) -> Option<ErrorCode> {
        self.rejected
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            rtt_ns: self.shards.iter().map(Shard::srtt).max().unwrap_or(0),
            window: self.shards.iter().map(Shard::window).sum(),
            ..self.stats
        }
    }

    /// The payload of `packet`, empty where it has none. `None` where the tensor's round has ended
    /// since: the packet is not needed any more.
    #[must_use]
    pub fn payload(&self, packet: &Transmit) -> Option<&[u8]> {
        let Some((offset, len)) = packet.payload else { return Some(&[]) };
        let active = self.tensors.get(usize::from(packet.header.tensor.get()))?.as_ref()?;
        let bytes = active.data.bytes().get(offset..offset + usize::from(len))?;
        (active.round == packet.header.round.get()).then_some(bytes)
    }

    /// Takes a tensor out of the tables.
    fn retire(&mut self, index: u16) -> Option<Tensor> {
        let active = self.tensors.get_mut(usize::from(index))?.take()?;
        self.spans.remove(&active.first);
        for (i, chunk) in active.chunks.iter().enumerate() {
            let shard = (active.first as usize + i) % self.shards.len();
            match chunk.state {
                State::Flight => self.shards[shard].flight -= 1,
                State::Held => self.shards[shard].held -= 1,
                _ => {}
            }
        }
        Some(active.data)
    }

    /// Moves a chunk of a tensor that is active to another state and keeps the sums.
    fn move_to(&mut self, now: u64, tensor: u16, within: usize, to: State) {
        let Some(active) = self.tensors[usize::from(tensor)].as_deref_mut() else { return };
        let shard = (active.first as usize + within) % self.shards.len();
        let shard = &mut self.shards[shard];
        let chunk = &mut active.chunks[within];
        match chunk.state {
            State::Flight => shard.flight -= 1,
            State::Held => shard.held -= 1,
            _ => {}
        }
        match to {
            State::Flight => shard.flight += 1,
            State::Held => shard.held += 1,
            State::Finished => active.left -= 1,
            _ => {}
        }
        chunk.state = to;
        let has = matches!(to, State::Held | State::Done | State::Finished);
        if has && !chunk.delivered {
            chunk.delivered = true;
            if let Some(call) = self.calls.get_mut(&active.call) {
                call.undelivered -= 1;
                if call.undelivered == 0 {
                    call.report.delivered_ns = now;
                }
            }
        }
    }

    /// The last chunk of a tensor is finished.
    fn finish(&mut self, now: u64, tensor: u16) {
        let Some(id) = self.tensors[usize::from(tensor)].as_ref().map(|a| a.call) else { return };
        let data = self.retire(tensor);
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(part) = call.tensors.iter_mut().find(|(index, _)| *index == tensor) {
            part.1 = data;
            call.left -= 1;
        }
        if call.left == 0 {
            self.complete(now, id);
        }
    }

    fn complete(&mut self, now: u64, id: u64) {
        let Some(call) = self.calls.remove(&id) else { return };
        let mut report = call.report;
        report.finished_ns = now;
        if report.chunks == 0 {
            (report.first_sent_ns, report.delivered_ns) = (now, now);
        }
        let tensors =
            call.tensors.into_iter().map(|(index, data)| (index, data.unwrap_or_default()));
        self.completed.push_back(Completed { call: id, tensors: tensors.collect(), report });
    }
}
