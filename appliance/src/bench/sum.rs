//! The sum kernels alone, beside what memory allows for the same traffic.
//!
//! Payloads lie in frames as in the box, and as many frames are visited, in turn, as the working
//! set has room for. Kernels and limit take turns too, sample by sample, so that a busy machine
//! slows both.

use super::figure::{Bench, Figure, WorkingSet};
use super::groups::{self, Groups};
use super::machine::Caches;
use super::spread::Spread;
use crate::dataplane::umem::UmemError;
use crate::sum::{self, Isa, MAX_WORLD, Reduce, SumError, Visit};
use gradbox_protocol::{DType, Op};
use std::time::Duration;

/// Gradient bytes of a packet of 1500 bytes.
const PAYLOAD: usize = 1408;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Element types.
    pub dtypes: Vec<DType>,
    /// Operations.
    pub ops: Vec<Op>,
    /// Numbers of ranks, each 1 to [`MAX_WORLD`].
    pub workers: Vec<usize>,
    /// Working sets.
    pub working_sets: Vec<WorkingSet>,
    /// Vector unit.
    pub isa: Isa,
    /// Samples of each figure.
    pub samples: usize,
    /// Time that a sample takes at least.
    pub sample: Duration,
    /// Bytes to work on at most, whatever the working set: tiny for a smoke run.
    pub bytes: u64,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum SumBenchError {
    /// No such kernel here.
    #[error(transparent)]
    Kernel(#[from] SumError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] UmemError),
    /// A kernel gave another result than the reference.
    #[error("{dtype} {op} of {workers} ranks on {isa} differs from the reference: do not use it")]
    Wrong {
        /// Element type.
        dtype: DType,
        /// Operation.
        op: Op,
        /// Ranks.
        workers: usize,
        /// Vector unit.
        isa: Isa,
    },
}

/// Measures, and calls `found` with each figure.
///
/// # Errors
/// Where a kernel is not to be had, or gives a wrong result.
pub fn measure(settings: &Settings, mut found: impl FnMut(Figure)) -> Result<(), SumBenchError> {
    for &working_set in &settings.working_sets {
        let bytes = Caches::read().bytes(working_set).min(settings.bytes);
        for &workers in &settings.workers {
            if !(1..=MAX_WORLD).contains(&workers) {
                return Err(SumError::World(workers).into());
            }
            let mut groups = Groups::new(bytes, workers, PAYLOAD)?;
            kernels(&mut groups, settings, working_set, &mut found)?;
        }
    }
    Ok(())
}

/// The kernels of one number of ranks in one working set.
fn kernels(
    groups: &mut Groups,
    settings: &Settings,
    working_set: WorkingSet,
    found: &mut impl FnMut(Figure),
) -> Result<(), SumBenchError> {
    let (isa, workers) = (settings.isa, groups.workers());
    let mut kernels = Vec::new();
    for &dtype in &settings.dtypes {
        for &op in &settings.ops {
            let reduce = Reduce::select(isa, dtype, op, workers)?;
            check(&reduce)?;
            kernels.push((reduce, Vec::with_capacity(settings.samples)));
        }
    }
    let count = groups.warm_up(isa, settings.sample);
    let mut limits = Visit::ALL.map(|visit| (visit, Vec::with_capacity(settings.samples)));
    for _ in 0..settings.samples {
        for (visit, rates) in &mut limits {
            rates.push(groups.rate(count, |now, next| {
                sum::stream(isa, now, next, *visit, true);
            }));
        }
        for (reduce, rates) in &mut kernels {
            rates.push(groups.rate(count, |now, next| reduce.slices(now, next, true)));
        }
    }
    // The best way to go through the memory is what it allows.
    let limit = limits.map(|(_, mut rates)| Spread::of(&mut rates).median);
    let limit = limit.into_iter().fold(0.0, f64::max);
    for (reduce, mut rates) in kernels {
        let spread = Spread::of(&mut rates);
        let mut figure = Figure::new(Bench::Sum);
        figure.dtype = Some(reduce.dtype());
        figure.op = Some(reduce.op());
        figure.workers = Some(workers as u32);
        figure.payload_bytes = Some(PAYLOAD as u32);
        figure.working_set = Some(working_set);
        figure.isa = Some(isa.name().to_owned());
        figure.gbytes_per_s = Some(spread.median);
        figure.limit = Some(limit);
        figure.percent_of_limit = Some(100.0 * spread.median / limit);
        figure.checked = true;
        found(figure.with_spread(spread));
    }
    Ok(())
}

/// Compares one result of a kernel with the reference.
fn check(reduce: &Reduce) -> Result<(), SumBenchError> {
    let (dtype, op, workers) = (reduce.dtype(), reduce.op(), reduce.world());
    let mut payloads: Vec<Vec<u8>> = vec![vec![0; PAYLOAD]; workers];
    for (rank, payload) in payloads.iter_mut().enumerate() {
        groups::values(payload, 31 * rank);
    }
    let mut expected = vec![0; PAYLOAD];
    let inputs: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    sum::reference(dtype, op, &inputs, &mut expected);
    let mut slices: Vec<&mut [u8]> = payloads.iter_mut().map(Vec::as_mut_slice).collect();
    reduce.slices(&mut slices, &[], true);
    if payloads.iter().any(|p| *p != expected) {
        return Err(SumBenchError::Wrong { dtype, op, workers, isa: reduce.isa() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_limit() {
        let settings = Settings {
            dtypes: DType::ALL.to_vec(),
            ops: Op::ALL.to_vec(),
            workers: vec![2, 3],
            working_sets: vec![WorkingSet::L1, WorkingSet::L2],
            isa: Isa::detect(),
            samples: 1,
            sample: Duration::from_micros(10),
            bytes: 1 << 20,
        };
        let mut figures = Vec::new();
        measure(&settings, |f| figures.push(f)).expect("figures");
        assert_eq!(figures.len(), 2 * 2 * DType::ALL.len() * Op::ALL.len());
        for figure in figures {
            assert!(figure.checked && figure.limit > Some(0.0), "{figure:?}");
        }
    }
}
