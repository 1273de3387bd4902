//! Counters of a worker and times of a call.

use std::time::Duration;

/// Counters since the worker joined. Packets, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// PUSH sent, those sent again included.
    pub pushed: u64,
    /// PUSH sent again.
    pub resent: u64,
    /// RESULT that were taken.
    pub results: u64,
    /// Of those, RESULT that came to the job's multicast group.
    pub multicast: u64,
    /// RESULT for chunks that were already there.
    pub duplicates: u64,
    /// Packets that are not ours or not of now: another job or cookie, an old round.
    pub stale: u64,
    /// STATUS received.
    pub statuses: u64,
    /// QUERY sent.
    pub queries: u64,
    /// Chunks whose PUSH or RESULT was judged lost.
    pub losses: u64,
    /// Packets that told of congestion: marked by a router, or answers to marked ones.
    pub congestion: u64,
    /// Payload bytes in PUSH, those sent again included.
    pub bytes_sent: u64,
    /// Payload bytes in RESULT that were taken.
    pub bytes_received: u64,
    /// Smoothed round-trip time to the box and back, in nanoseconds; the largest of all shards.
    pub rtt_ns: u64,
    /// Packets that may be in flight now, all shards together.
    pub window: u32,
}

/// What one call of all-reduce did. Times are CLOCK_MONOTONIC in nanoseconds, comparable between
/// the processes of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The call was made.
    pub started_ns: u64,
    /// Its first chunk was handed to the kernel; the start where there was none to send.
    pub first_sent_ns: u64,
    /// The box was known to have every chunk of this rank.
    pub delivered_ns: u64,
    /// The last result was there.
    pub finished_ns: u64,
    /// Payload bytes on the wire in each direction, without repeats.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
}

impl Report {
    /// From the call to the last result.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        Duration::from_nanos(self.finished_ns.saturating_sub(self.started_ns))
    }
}
