//! `gradbox bench sum`.

use super::Found;
use crate::bench::figure::WorkingSet;
use crate::bench::sum::{self, Settings};
use crate::sum::Isa;
use anyhow::{Context, bail};
use gradbox_protocol::{DType, Op};
use std::time::Duration;

/// The sum kernels.
#[derive(clap::Args, Default)]
pub(super) struct RunSum {
    /// Element types, such as f32,bf16 (all).
    #[arg(long, value_delimiter = ',', value_parser = |s: &str| s.parse::<DType>())]
    dtype: Vec<DType>,
    /// Operations, such as sum,avg (sum).
    #[arg(long, value_delimiter = ',', value_parser = |s: &str| s.parse::<Op>())]
    op: Vec<Op>,
    /// Numbers of workers (2,4,8,16).
    #[arg(long, value_delimiter = ',')]
    workers: Vec<usize>,
    /// Working sets (l1,l2,l3,dram).
    #[arg(long, value_delimiter = ',')]
    working_set: Vec<WorkingSet>,
    /// Vector unit: avx512, avx2, neon or portable (the widest there is).
    #[arg(long)]
    isa: Option<String>,
}

/// What was asked for, or else the usual.
fn or<T: Clone>(asked: &[T], usual: &[T]) -> Vec<T> {
    if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
}

impl RunSum {
    pub(super) fn run(&self, found: &mut Found) -> anyhow::Result<()> {
        let isa = match &self.isa {
            None => Isa::detect(),
            Some(name) => Isa::ALL
                .into_iter()
                .find(|i| i.name() == name)
                .with_context(|| format!("--isa {name}: needs avx512, avx2, neon or portable"))?,
        };
        if self.workers.iter().any(|w| !(1..=crate::sum::MAX_WORLD).contains(w)) {
            bail!("--workers {:?}: each needs 1 to {}", self.workers, crate::sum::MAX_WORLD);
        }
        let mut settings = Settings {
            dtypes: or(&self.dtype, &DType::ALL),
            ops: or(&self.op, &[Op::Sum]),
            workers: or(&self.workers, &[2, 4, 8, 16]),
            working_sets: or(&self.working_set, &WorkingSet::ALL),
            isa,
            samples: 25,
            sample: Duration::from_millis(1),
            bytes: u64::MAX,
        };
        if found.tiny {
            settings.samples = 1;
            settings.sample = Duration::from_micros(10);
            settings.bytes = 1 << 20;
        }
        found.working_on("sum kernels");
        sum::measure(&settings, |figure| {
            if let (Some(memory), Some(workers)) = (figure.working_set, figure.workers) {
                found.working_on(format!("sum kernels, {workers} workers, {}", memory.name()));
            }
            found.add(figure);
        })?;
        Ok(())
    }
}
