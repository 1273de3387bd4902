//! The state of every chunk of a tensor that is being reduced.

use crate::tensor::Tensor;

/// What is known of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not sent in this round.
    Unsent,
    /// Sent; the box may have it or not.
    Flight,
    /// The box said that it holds it: waiting for other ranks.
    Held,
    /// The box said that the round is done here: the RESULT must be on its way.
    Done,
    /// PUSH or RESULT was lost: queued to be sent again.
    Lost,
    /// The result is here, in place of the input.
    Finished,
}

/// One chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Stamp of the last PUSH.
    pub(super) stamp: u64,
    pub(super) state: State,
    /// The box has had it at least once.
    pub(super) delivered: bool,
}

/// A tensor that is being reduced.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) call: u64,
    pub(super) round: u32,
    /// The newest stamp when the round began: answers to older packets speak of earlier rounds.
    pub(super) since: u64,
    /// Index in the job of its first chunk.
    pub(super) first: u32,
    pub(super) data: Tensor,
    pub(super) chunks: Vec<Chunk>,
    /// Chunks that are not finished.
    pub(super) left: u32,
    /// By shard: no unfinished chunk lies below this place within the tensor.
    pub(super) low: Vec<u32>,
    /// By shard: the highest place within the tensor that a result came for, plus one.
    pub(super) high: Vec<u32>,
}

impl Active {
    /// The place in [`Self::chunks`] of the first unfinished chunk of `shard`, or one behind.
    pub(super) fn lowest(&mut self, shard: usize) -> usize {
        let step = self.low.len();
        let mut at = self.low[shard] as usize;
        while self.chunks.get(at).is_some_and(|c| c.state == State::Finished) {
            at += step;
        }
        self.low[shard] = at as u32;
        at
    }
}
