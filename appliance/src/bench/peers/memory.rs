//! The data plane beside an aggregator in the kernel: packets in, sums out, no network.

use super::GRADBOX;
use crate::bench::figure::{Arrival, Bench, Figure, WorkingSet};
use crate::bench::kernel_aggregator::{KernelAggregator, Settings};
use crate::bench::path::cores::{self, Effort};
use crate::bench::path::{PathError, Setup};
use crate::bench::spread::Spread;
use crate::bench::{self};
use gradbox_protocol::{DType, Reply};

/// MTU of both: the aggregator in the kernel knows no other.
const MTU: u32 = 1500;
/// Gradient bytes of a packet.
const PAYLOAD: u16 = 1408;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The data plane.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The aggregator in the kernel.
    #[error(transparent)]
    Kernel(#[from] bench::Error),
}

/// Measures both with 4 workers and i32, the only type that the kernel can add, in a working set of
/// a few MiB: the box in its two ways to reply, the kernel in the only one that it has.
///
/// # Errors
/// Where one of them cannot be measured, or is wrong.
pub fn measure(cpu: usize, effort: Effort) -> Result<Vec<Figure>, MemoryError> {
    let mut figures = Vec::new();
    for reply in [Reply::Multicast, Reply::Unicast] {
        let setup = Setup::new(4, DType::I32, PAYLOAD, WorkingSet::L3, Arrival::InStep, reply);
        let mut figure = cores::figure(setup, MTU, &[cpu], effort)?;
        figure.bench = Bench::Peers;
        figure.system = Some(format!("{GRADBOX}, step() in memory"));
        figure.cpu_s_per_gb = figure.gbps_per_core.map(|gbps| 8.0 / gbps);
        figure.ratio = Some(1.0);
        figures.push(figure);
    }
    let own = figures.first().and_then(|f| f.gbps_per_core).unwrap_or_default();
    for (copies, name) in [(1, "XDP in the kernel"), (2, "XDP in the kernel, results kept")] {
        figures.push(kernel(copies, name, own, effort)?);
    }
    Ok(figures)
}

/// The aggregator in the kernel. `copies` is 2 where a lost result is to be had again, as the box
/// always can.
fn kernel(copies: u32, name: &str, own: f64, effort: Effort) -> Result<Figure, MemoryError> {
    let (samples, packets) = match effort {
        Effort::Tiny => (1, 1),
        Effort::Full => (15, 200_000),
    };
    let settings = Settings { world: 4, chunks: 2048, copies, burst: 64 };
    let mut measured = KernelAggregator::load(&settings)?.measure(samples, packets)?;
    let ns = Spread::of(&mut measured.aggregation);
    let gbps = ns.inverse(f64::from(PAYLOAD) * 8.0);
    let mut figure = Figure::new(Bench::Peers);
    figure.system = Some(name.to_owned());
    figure.dtype = Some(DType::I32);
    figure.workers = Some(settings.world);
    figure.mtu = Some(MTU);
    figure.payload_bytes = Some(u32::from(PAYLOAD));
    figure.working_set = Some(WorkingSet::L3);
    figure.arrival = Some(Arrival::InStep);
    figure.reply = Some(Reply::Multicast);
    figure.cores = Some(1);
    figure.gbps = Some(gbps.median);
    figure.gbps_per_core = Some(gbps.median);
    figure.ns_per_packet = Some(ns.median);
    figure.cpu_s_per_gb = Some(8.0 / gbps.median);
    figure.ratio = Some(gbps.median / own);
    figure.checked = true;
    Ok(figure.with_spread(gbps))
}
