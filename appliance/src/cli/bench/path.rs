//! `gradbox bench path`.

use super::{Found, cpus, each};
use crate::bench::figure::{Arrival, WorkingSet};
use crate::bench::path::Setup;
use crate::bench::path::cores::{self, Effort};
use anyhow::bail;
use gradbox_protocol::{DType, Reply, chunk_bytes};

/// The data plane in memory. Without options, a choice of all there is.
#[derive(clap::Args, Default)]
pub(super) struct RunPath {
    /// Element types, such as f32,bf16.
    #[arg(long, value_delimiter = ',', value_parser = |s: &str| s.parse::<DType>())]
    dtype: Vec<DType>,
    /// Numbers of workers, 2 to 32.
    #[arg(long, value_delimiter = ',')]
    workers: Vec<usize>,
    /// MTUs: 1500, 3498.
    #[arg(long, value_delimiter = ',')]
    mtu: Vec<u32>,
    /// Working sets: l2, l3, dram.
    #[arg(long, value_delimiter = ',')]
    working_set: Vec<WorkingSet>,
    /// Orders of arrival: in_step, async.
    #[arg(long, value_delimiter = ',')]
    arrival: Vec<Arrival>,
    /// Replies: unicast, multicast.
    #[arg(long, value_delimiter = ',', value_parser = |s: &str| s.parse::<Reply>())]
    reply: Vec<Reply>,
    /// Numbers of cores that work at the same time.
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
}

/// One measurement.
#[derive(Clone, Copy)]
struct Line {
    workers: usize,
    dtype: DType,
    mtu: u32,
    memory: WorkingSet,
    arrival: Arrival,
    reply: Reply,
    cores: usize,
}

/// What everything else differs from in one thing.
const USUAL: Line = Line {
    workers: 4,
    dtype: DType::F32,
    mtu: 1500,
    memory: WorkingSet::L3,
    arrival: Arrival::InStep,
    reply: Reply::Unicast,
    cores: 1,
};

impl RunPath {
    pub(super) fn run(&self, found: &mut Found) -> anyhow::Result<()> {
        let cpus = cpus();
        let lines = self.lines(cpus.len());
        let effort = if found.tiny { Effort::Tiny } else { Effort::Full };
        for line in lines {
            let Line { workers, dtype, mtu, memory, arrival, reply, cores } = line;
            if !(2..=32).contains(&workers) {
                bail!("--workers {workers}: needs 2 to 32");
            }
            if cores == 0 || cores > cpus.len() {
                bail!("--cores {cores}: this process may use {} CPUs", cpus.len());
            }
            let fits = |bytes: &u16| (64..=3392).contains(bytes);
            let Some(chunk_bytes) = chunk_bytes(mtu as usize).filter(fits) else {
                bail!("--mtu {mtu}: needs 144 to 3498");
            };
            found.working_on(format!(
                "path: {dtype}, {workers} workers, mtu {mtu}, {}, {}, {reply}, {cores} cores",
                memory.name(),
                arrival.name(),
            ));
            let setup = Setup::new(workers, dtype, chunk_bytes, memory, arrival, reply);
            found.add(cores::figure(setup, mtu, &cpus[..cores], effort)?);
        }
        Ok(())
    }

    /// Every combination of what was asked for; the sweeps, where nothing was.
    fn lines(&self, cpus: usize) -> Vec<Line> {
        if self.is_empty() {
            return sweeps(cpus);
        }
        let mut lines = vec![USUAL];
        each(&mut lines, &self.dtype, |l, v| l.dtype = v);
        each(&mut lines, &self.workers, |l, v| l.workers = v);
        each(&mut lines, &self.mtu, |l, v| l.mtu = v);
        each(&mut lines, &self.working_set, |l, v| l.memory = v);
        each(&mut lines, &self.arrival, |l, v| l.arrival = v);
        each(&mut lines, &self.reply, |l, v| l.reply = v);
        each(&mut lines, &self.cores, |l, v| l.cores = v);
        lines
    }

    const fn is_empty(&self) -> bool {
        self.dtype.is_empty()
            && self.workers.is_empty()
            && self.mtu.is_empty()
            && self.working_set.is_empty()
            && self.arrival.is_empty()
            && self.reply.is_empty()
            && self.cores.is_empty()
    }
}

/// One thing after the other changed.
fn sweeps(cpus: usize) -> Vec<Line> {
    let dram = Line { memory: WorkingSet::Dram, ..USUAL };
    let late = Line { arrival: Arrival::Async, ..dram };
    let jumbo = Line { mtu: 3498, ..USUAL };
    let bf16 = Line { dtype: DType::Bf16, ..USUAL };
    let mut lines = vec![
        USUAL,
        Line { memory: WorkingSet::L2, ..USUAL },
        dram,
        late,
        jumbo,
        Line { mtu: 3498, ..late },
        bf16,
        Line { dtype: DType::Bf16, ..late },
        Line { dtype: DType::F16, ..USUAL },
        Line { dtype: DType::I32, ..USUAL },
        Line { workers: 2, ..USUAL },
        Line { workers: 8, ..USUAL },
        Line { workers: 16, ..USUAL },
        Line { workers: 8, ..late },
        Line { reply: Reply::Multicast, ..USUAL },
        Line { reply: Reply::Multicast, workers: 16, ..USUAL },
        Line { reply: Reply::Multicast, ..late },
    ];
    let mut cores = 2;
    while cores <= cpus {
        lines.extend([USUAL, dram, late].map(|line| Line { cores, ..line }));
        cores = if cores < cpus && 2 * cores > cpus { cpus } else { 2 * cores };
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_combined() {
        let args = RunPath { workers: vec![2, 4], mtu: vec![1500, 3498], ..RunPath::default() };
        let lines = args.lines(2);
        let found: Vec<_> = lines.iter().map(|l| (l.workers, l.mtu, l.cores)).collect();
        assert_eq!(found, [(2, 1500, 1), (2, 3498, 1), (4, 1500, 1), (4, 3498, 1)]);
    }

    #[test]
    fn sweeps_end_with_all_cores() {
        for cpus in [1, 2, 3, 4, 6, 8] {
            let cores: Vec<_> = sweeps(cpus).iter().map(|l| l.cores).collect();
            assert_eq!(cores.iter().max(), Some(&cpus), "{cores:?}");
        }
    }
}
