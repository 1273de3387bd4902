//! Why a call has not finished.

use super::{Engine, MILLISECOND, State};

/// Without an answer for this long, the box counts as silent: probes follow each other in a
/// quarter of it.
const SILENCE: u64 = 600 * MILLISECOND;
/// What the box said about missing ranks holds for this long: probes repeat it sooner.
const FRESH: u64 = 1000 * MILLISECOND;

/// Whom the box waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// A bit for each rank.
    pub missing: u32,
}

impl Waiting {
    /// The ranks, ascending.
    #[must_use]
    pub fn ranks(&self) -> Vec<u8> {
        (0..32).filter(|rank| self.missing >> rank & 1 == 1).collect()
    }
}

/// What an engine knows of a call that has not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Nanoseconds since the call began.
    pub waited: u64,
    /// Its first unfinished tensor.
    pub tensor: u16,
    /// Chunks of that tensor whose result is here.
    pub done: u64,
    /// Chunks of that tensor.
    pub total: u64,
    /// Chunks of the call that the box is known to have.
    pub delivered: u64,
    /// Chunks of the call.
    pub chunks: u64,
    /// Nanoseconds that the box owes an answer, where it is silent.
    pub silent: Option<u64>,
    /// Whom the box waits for, as it said lately.
    pub waiting: Option<Waiting>,
}

impl Engine {
    /// What is known of `call`; `None` where it has ended or never was.
    #[must_use]
    pub fn diagnose(&self, now: u64, call: u64) -> Option<Diagnosis> {
        let call = self.calls.get(&call)?;
        let (tensor, _) = call.tensors.iter().find(|(_, data)| data.is_none())?;
        let active = self.tensors.get(usize::from(*tensor))?.as_ref()?;
        let waited = now.saturating_sub(call.report.started_ns);
        // A short call is silent already where nothing at all came since it began.
        let none_since = self.heard_at.is_none_or(|at| at < call.report.started_ns);
        let silent = self.asked_at.map(|at| now.saturating_sub(at));
        let silent = silent.filter(|silent| *silent >= SILENCE || (none_since && *silent > 0));
        let waiting = self.waiting.filter(|(at, _)| now.saturating_sub(*at) < FRESH);
        Some(Diagnosis {
            waited,
            tensor: *tensor,
            done: active.chunks.iter().filter(|c| c.state == State::Finished).count() as u64,
            total: active.chunks.len() as u64,
            delivered: call.report.chunks - call.undelivered,
            chunks: call.report.chunks,
            silent,
            waiting: waiting.map(|(_, waiting)| waiting),
        })
    }
}
