//! A box that a benchmark runs: the whole appliance, in this process, in a namespace.

use super::network::{Namespace, NetworkError};
use crate::appliance::{Appliance, Privileges, StartError, Summary};
use crate::config::{Config, ConfigError};
use crate::dataplane::counters::{Counter, Reading};
use gradbox_protocol::control::{BoxInfo, JoinRequest, Joined};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for all ranks of a job to be in.
const JOIN: Duration = Duration::from_secs(10);

/// Why there is no box, or no job on it.
#[derive(Debug, thiserror::Error)]
pub enum RunningError {
    /// The network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The box does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A join was refused, or not answered.
    #[error("rank {rank} cannot join the box at {control}: {reason}")]
    Join {
        /// Rank.
        rank: u8,
        /// The box.
        control: SocketAddr,
        /// What it said.
        reason: String,
    },
    /// The CPU time of a thread is not to be had.
    #[error("cannot read the CPU time of the box's cores from /proc/self/task: {0}")]
    CpuTime(#[from] io::Error),
}

/// A running box.
pub struct RunningBox {
    appliance: Appliance,
}

impl RunningBox {
    /// Starts a box in `namespace` with this configuration.
    pub(super) fn start(namespace: &Namespace, config: &str) -> Result<Self, RunningError> {
        let config = Config::parse(config, Path::new("the configuration of the benchmark"))?;
        let appliance =
            namespace.run_with_sysfs(|| Appliance::start(&config, Privileges::Keep))??;
        Ok(Self { appliance })
    }

    pub(super) const fn info(&self) -> &BoxInfo {
        self.appliance.info()
    }

    pub(super) const fn control(&self) -> SocketAddr {
        self.appliance.control()
    }

    /// What the cores show, added up.
    pub(super) fn reading(&self) -> Reading {
        let mut all: Option<Reading> = None;
        for reading in self.appliance.readings() {
            match &mut all {
                None => all = Some(reading),
                Some(all) => {
                    all.busy_ns += reading.busy_ns;
                    for (counter, n) in reading.counters.iter() {
                        all.counters.add(counter, n);
                    }
                }
            }
        }
        all.unwrap_or_default()
    }

    /// CPU time of the cores' threads, what the kernel does on their behalf included.
    pub(super) fn cpu_time(&self) -> Result<Duration, RunningError> {
        let mut total = Duration::ZERO;
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            // A thread that has just ended is none of ours.
            let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
            if name.starts_with("core-") {
                let stat = fs::read_to_string(task.join("schedstat"))?;
                let ns = stat.split(' ').next().and_then(|n| n.parse().ok());
                let ns = ns.ok_or_else(|| io::Error::other(format!("schedstat says {stat:?}")))?;
                total += Duration::from_nanos(ns);
            }
        }
        Ok(total)
    }

    /// Joins ranks 0 to the last of `requests` from `namespace`, which are of one job.
    pub(super) fn join(
        &self,
        namespace: &Namespace,
        job: &str,
        requests: &[JoinRequest],
    ) -> Result<Vec<Joined>, RunningError> {
        let control = self.control();
        namespace.run(|| join(control, job, requests))?
    }

    /// Stops it, and tells what it has done.
    pub(super) fn stop(self) -> Summary {
        self.appliance.stop()
    }
}

/// Packets that were not served between two readings, by reason.
pub(super) fn drops(before: &Reading, after: &Reading) -> Vec<(String, u64)> {
    let all = Counter::ALL.iter().filter(|c| c.is_drop());
    let change = |c: &Counter| {
        let n = after.counters.get(*c) - before.counters.get(*c);
        (n > 0).then(|| (c.name().to_owned(), n))
    };
    all.filter_map(change).collect()
}

fn join(
    control: SocketAddr,
    job: &str,
    requests: &[JoinRequest],
) -> Result<Vec<Joined>, RunningError> {
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .timeout_global(Some(JOIN))
        .http_status_as_error(false)
        .build();
    let agent = ureq::Agent::from(config);
    let url = format!("http://{control}/v1/jobs/{job}/join");
    let deadline = Instant::now() + JOIN;
    let mut joined: Vec<Option<Joined>> = vec![None; requests.len()];
    loop {
        for (request, place) in requests.iter().zip(&mut joined).filter(|(_, p)| p.is_none()) {
            let failed =
                |reason: String| RunningError::Join { rank: request.rank, control, reason };
            let answer = agent.post(&url).send_json(request);
            let mut answer = answer.map_err(|e| failed(e.to_string()))?;
            match answer.status().as_u16() {
                200 => {
                    let body = answer.body_mut().read_json();
                    *place = Some(body.map_err(|e| failed(e.to_string()))?);
                }
                202 => {}
                status => {
                    let text = answer.body_mut().read_to_string().unwrap_or_default();
                    return Err(failed(format!("HTTP {status}: {text}")));
                }
            }
        }
        if joined.iter().all(Option::is_some) {
            return Ok(joined.into_iter().flatten().collect());
        }
        if Instant::now() > deadline {
            let reason = format!("not all ranks are in after {JOIN:?}");
            return Err(RunningError::Join { rank: 0, control, reason });
        }
    }
}
