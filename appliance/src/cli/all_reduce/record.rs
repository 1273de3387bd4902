//! What `--json` writes.

use super::AllReduce;
use super::source::Source;
use anyhow::Context;
use gradbox_client::{Report, Stats, Worker};
use gradbox_protocol::{DType, Op, Reply};
use serde::Serialize;
use std::path::Path;

/// The whole run.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    job: String,
    rank: u8,
    world: u8,
    op: Op,
    reply: Reply,
    dtype: DType,
    wire_dtype: DType,
    /// `port` and `mode` of the box, as its kernel reports them.
    box_port: String,
    box_mode: String,
    shards: u16,
    chunk_bytes: u16,
    /// Number of tensors.
    tensors: usize,
    /// Every bit of every round equals the reference; null where nobody looked.
    pub(super) verified: Option<bool>,
    pub(super) rounds: Vec<Round>,
}

/// One round. Times are CLOCK_MONOTONIC, comparable between the processes of one machine.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    started_ns: u64,
    first_sent_ns: u64,
    delivered_ns: u64,
    finished_ns: u64,
    /// Payload in each direction, without repeats.
    pub(super) bytes: u64,
    chunks: u64,
    pushed: u64,
    pub(super) resent: u64,
    results: u64,
    /// Of those, RESULTs that were for all ranks.
    multicast: u64,
    duplicates: u64,
    stale: u64,
    queries: u64,
    statuses: u64,
    losses: u64,
    congestion: u64,
    rtt_ns: u64,
}

impl Record {
    pub(super) fn new(args: &AllReduce, worker: &Worker, source: &Source, wire: DType) -> Self {
        let (info, joined) = (worker.box_info(), worker.joined());
        Self {
            job: args.job.clone(),
            rank: args.rank,
            world: args.world,
            op: args.op,
            reply: args.reply,
            dtype: source.dtype(),
            wire_dtype: wire,
            box_port: info.port.clone(),
            box_mode: info.mode.clone(),
            shards: joined.shards,
            chunk_bytes: joined.chunk_bytes,
            tensors: source.table().len(),
            verified: None,
            rounds: Vec::new(),
        }
    }

    /// Writes the record to `path`, where there is one.
    pub(super) fn write(&self, path: Option<&Path>) -> anyhow::Result<()> {
        let Some(path) = path else { return Ok(()) };
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

impl Round {
    /// A round with the worker's counters before and after it.
    pub(super) const fn new(report: Report, before: Stats, after: Stats) -> Self {
        Self {
            started_ns: report.started_ns,
            first_sent_ns: report.first_sent_ns,
            delivered_ns: report.delivered_ns,
            finished_ns: report.finished_ns,
            bytes: report.bytes,
            chunks: report.chunks,
            pushed: after.pushed - before.pushed,
            resent: after.resent - before.resent,
            results: after.results - before.results,
            multicast: after.multicast - before.multicast,
            duplicates: after.duplicates - before.duplicates,
            stale: after.stale - before.stale,
            queries: after.queries - before.queries,
            statuses: after.statuses - before.statuses,
            losses: after.losses - before.losses,
            congestion: after.congestion - before.congestion,
            rtt_ns: after.rtt_ns,
        }
    }

    /// Seconds from the call to the last result.
    pub(super) fn seconds(&self) -> f64 {
        self.finished_ns.saturating_sub(self.started_ns) as f64 / 1e9
    }
}
