//! The workers: processes of their own, each in its namespace.

use super::{ReplayError, Settings};
use crate::bench::network::{Star, capture, printed};
use crate::record::Record;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Seconds that a worker waits for the others, at join and in each round.
pub(super) const PATIENCE: u32 = 60;

/// All workers of a job. Dropping it kills those that still run.
#[derive(Debug)]
pub(super) struct Workers {
    all: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    rank: u8,
    child: Child,
    /// What it writes to standard output, its record, and to standard error: files in memory, of
    /// which nothing is left however this process ends.
    out: File,
    err: File,
    ended: bool,
}

impl Workers {
    /// Starts a worker in each namespace of `star`: `program`, which is Gradbox.
    pub(super) fn start(
        star: &Star,
        settings: &Settings,
        program: &Path,
        control: SocketAddr,
    ) -> Result<Self, ReplayError> {
        let mut workers = Self { all: Vec::with_capacity(star.workers.len()) };
        for (rank, namespace) in (0u8..).zip(&star.workers) {
            let failed = |source| ReplayError::Memory { rank, source };
            let (out, out_end) = capture().map_err(failed)?;
            let (err, err_end) = capture().map_err(failed)?;
            let mut command = Command::new(program);
            command.args(arguments(settings, rank, control));
            command.stdin(Stdio::null()).stdout(out_end).stderr(err_end);
            let child = namespace.spawn(&mut command)?;
            workers.all.push(Worker { rank, child, out, err, ended: false });
        }
        Ok(workers)
    }

    /// Whether all have ended well.
    ///
    /// # Errors
    /// Where one has failed.
    pub(super) fn have_ended(&mut self) -> Result<bool, ReplayError> {
        for worker in self.all.iter_mut().filter(|w| !w.ended) {
            let rank = worker.rank;
            let status = worker.child.try_wait();
            let Some(status) = status.map_err(|source| ReplayError::Memory { rank, source })?
            else {
                continue;
            };
            if !status.success() {
                let said = worker.err.try_clone().and_then(printed).unwrap_or_default();
                return Err(ReplayError::Worker { rank, status, said: said.trim().to_owned() });
            }
            worker.ended = true;
        }
        Ok(self.all.iter().all(|w| w.ended))
    }

    /// What the workers wrote, by rank.
    pub(super) fn records(&self) -> Result<Vec<Record>, ReplayError> {
        let record = |w: &Worker| {
            let text = w.out.try_clone().and_then(printed);
            let text = text.map_err(|source| ReplayError::Memory { rank: w.rank, source })?;
            Ok(Record::parse(&text, &format!("what rank {} wrote", w.rank))?)
        };
        self.all.iter().map(record).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.all {
            // Both fail only where it has ended and was waited for.
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

/// The command line of a worker.
fn arguments(settings: &Settings, rank: u8, control: SocketAddr) -> Vec<String> {
    let Settings { model, workers, iterations, dtype, wire_dtype, reply, .. } = settings;
    let mib = super::BUCKET_MIB;
    let mut line = format!(
        "--box {control} --job replay --rank {rank} --world {workers} --bucket-mib {mib} \
         --dtype {dtype} --reply {reply} --rounds {iterations} --timeout {PATIENCE} \
         --in-step --verify --json /proc/self/fd/1"
    );
    if let Some(wire) = wire_dtype {
        line += &format!(" --wire-dtype {wire}");
    }
    // A file's name may have spaces.
    let head = ["all-reduce", "--model", model].map(str::to_owned);
    head.into_iter().chain(line.split_whitespace().map(str::to_owned)).collect()
}
