//! What a worker writes of its rounds (`all-reduce --json`), and what follows from the records of
//! all workers of a job.

use gradbox_client::{Report, Stats};
use gradbox_protocol::{DType, Op, Reply};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// One worker's run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Job.
    pub job: String,
    /// Rank.
    pub rank: u8,
    /// Number of workers.
    pub world: u8,
    /// Operation.
    pub op: Op,
    /// How results came.
    pub reply: Reply,
    /// Type of the tensors.
    pub dtype: DType,
    /// Type that they travelled as.
    pub wire_dtype: DType,
    /// Port of the box.
    pub box_port: String,
    /// Its mode, as the kernel reports it.
    pub box_mode: String,
    /// Shards of the box.
    pub shards: u16,
    /// Payload bytes of a full chunk.
    pub chunk_bytes: u16,
    /// Number of tensors.
    pub tensors: usize,
    /// Every bit of every round equals the reference; null where nobody looked.
    pub verified: Option<bool>,
    /// What was done.
    pub rounds: Vec<Round>,
}

/// One round. Times are CLOCK_MONOTONIC in nanoseconds, comparable between the processes of one
/// machine; counters are packets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The worker was ready: before its values became those that travel.
    pub started_ns: u64,
    /// Its first chunk was handed to the kernel.
    pub first_sent_ns: u64,
    /// The box was known to have all of its chunks.
    pub delivered_ns: u64,
    /// The results were there, as values of the tensors' type.
    pub finished_ns: u64,
    /// Payload in each direction, without repeats.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// PUSH sent, those sent again included.
    pub pushed: u64,
    /// PUSH sent again.
    pub resent: u64,
    /// RESULTs taken.
    pub results: u64,
    /// Of those, RESULTs that were for all ranks.
    pub multicast: u64,
    /// RESULTs for chunks that were already there.
    pub duplicates: u64,
    /// Packets that are not of now.
    pub stale: u64,
    /// QUERY sent.
    pub queries: u64,
    /// STATUS received.
    pub statuses: u64,
    /// Chunks that were judged lost.
    pub losses: u64,
    /// Packets that told of congestion.
    pub congestion: u64,
    /// Smoothed round-trip time at the end.
    pub rtt_ns: u64,
    /// Packets that might be in flight at the end.
    pub window: u32,
}

/// Why records are of no use.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that is not a record.
    #[error("{from} is not what a worker writes by all-reduce --json: {source}")]
    Json {
        /// File or worker.
        from: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// No records, or too many.
    #[error("{found} records of a job of {needed} workers: needs one of each")]
    Number {
        /// Records there are.
        found: usize,
        /// Workers of the job.
        needed: usize,
    },
    /// A worker that stopped before its first round.
    #[error("rank {rank} has done no round")]
    NoRound {
        /// Rank.
        rank: u8,
    },
    /// Records of different runs.
    #[error("rank {first} and rank {other} are not of the same run")]
    Differ {
        /// Rank of the first record.
        first: u8,
        /// Rank of another.
        other: u8,
    },
}

impl Record {
    /// Reads a record from `path`.
    ///
    /// # Errors
    /// Where there is none.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let failed = |source| RecordError::Read { path: path.to_owned(), source };
        Self::parse(&fs::read_to_string(path).map_err(failed)?, &path.display().to_string())
    }

    /// Reads a record from `text`; `from` is for messages.
    ///
    /// # Errors
    /// Where it is none.
    pub fn parse(text: &str, from: &str) -> Result<Self, RecordError> {
        serde_json::from_str(text)
            .map_err(|source| RecordError::Json { from: from.to_owned(), source })
    }
}

impl Round {
    /// A round that was called for at `started_ns` and gave its results at `finished_ns`, with the
    /// worker's counters before and after it.
    #[must_use]
    pub const fn new(
        started_ns: u64,
        finished_ns: u64,
        report: Report,
        before: Stats,
        after: Stats,
    ) -> Self {
        Self {
            started_ns,
            first_sent_ns: report.first_sent_ns,
            delivered_ns: report.delivered_ns,
            finished_ns,
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
            window: after.window,
        }
    }

    /// Seconds from the call to the last result.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.finished_ns.saturating_sub(self.started_ns) as f64 / 1e9
    }
}

/// CLOCK_MONOTONIC, which always exists, in nanoseconds: the clock of a [`Round`].
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    now.as_nanos() as u64
}

/// Begin and end of every round of a job, in nanoseconds: from when the last worker was ready to
/// when the last one had its result. `workers` are the records of all its workers.
///
/// # Errors
/// Where they are not of one run.
pub fn rounds(workers: &[Record]) -> Result<Vec<(u64, u64)>, RecordError> {
    let first = workers.first().ok_or(RecordError::Number { found: 0, needed: 1 })?;
    if workers.len() != usize::from(first.world) {
        let (found, needed) = (workers.len(), first.world.into());
        return Err(RecordError::Number { found, needed });
    }
    if first.rounds.is_empty() {
        return Err(RecordError::NoRound { rank: first.rank });
    }
    let run = |w: &Record| (w.rounds.len(), w.world, w.tensors);
    if let Some(other) = workers.iter().find(|w| run(w) != run(first)) {
        return Err(RecordError::Differ { first: first.rank, other: other.rank });
    }
    let round = |r: usize| {
        let started = workers.iter().map(|w| w.rounds[r].started_ns).max().unwrap_or(0);
        let finished = workers.iter().map(|w| w.rounds[r].finished_ns).max().unwrap_or(0);
        (started, finished.max(started))
    };
    Ok((0..first.rounds.len()).map(round).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rank: u8, times: &[(u64, u64)]) -> Record {
        let round = |&(started_ns, finished_ns): &(u64, u64)| {
            let stats = Stats::default();
            Round::new(started_ns, finished_ns, Report::default(), stats, stats)
        };
        Record {
            job: "j".into(),
            rank,
            world: 2,
            op: Op::Sum,
            reply: Reply::Unicast,
            dtype: DType::F32,
            wire_dtype: DType::F32,
            box_port: "udp".into(),
            box_mode: "udp".into(),
            shards: 1,
            chunk_bytes: 1408,
            tensors: 3,
            verified: None,
            rounds: times.iter().map(round).collect(),
        }
    }

    #[test]
    fn a_round_is_from_the_last_start_to_the_last_end() {
        let workers = [record(0, &[(1, 7), (10, 19)]), record(1, &[(2, 6), (9, 20)])];
        assert_eq!(rounds(&workers).unwrap(), [(2, 7), (10, 20)]);
        let text = serde_json::to_string(&workers[0]).unwrap();
        assert_eq!(serde_json::to_string(&Record::parse(&text, "x").unwrap()).unwrap(), text);
    }

    #[test]
    fn records_must_be_of_one_run() {
        let says = |workers: &[Record]| rounds(workers).unwrap_err().to_string();
        assert!(says(&[]).contains("0 records"));
        assert!(says(&[record(0, &[(1, 2)])]).contains("1 records of a job of 2"));
        assert!(says(&[record(0, &[]), record(1, &[])]).contains("rank 0 has done no round"));
        let other = says(&[record(0, &[(1, 2)]), record(1, &[(1, 2), (3, 4)])]);
        assert!(other.contains("rank 0 and rank 1"), "{other}");
        let error = Record::parse("{}", "w0.json").unwrap_err().to_string();
        assert!(error.contains("w0.json") && error.contains("missing field"), "{error}");
    }
}
