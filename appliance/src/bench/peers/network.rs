//! The box beside aggregators over sockets, each on a veth pair of its own, on the same two CPUs.

use super::GRADBOX;
use super::tcp::{self, CONGESTION, TcpError};
use crate::bench::figure::{Bench, Figure};
use crate::bench::network::{NetworkError, Pair, Wire};
use crate::bench::path::cores::Effort;
use crate::bench::spread::Spread;
use crate::bench::wire::{self, Place, PlaceError, Port, WireError};
use gradbox_protocol::{DType, Reply};
use std::time::Duration;

/// MTU of all.
const MTU: u16 = 1500;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// A place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The box.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The TCP aggregator.
    #[error(transparent)]
    Tcp(#[from] TcpError),
}

/// Measures all with so many workers and f32. `found` gets each line as soon as it is there.
///
/// # Errors
/// Where one of them cannot be measured, or is wrong.
pub fn measure(
    workers: u8,
    (box_cpu, load_cpu): (usize, usize),
    effort: Effort,
    mut found: impl FnMut(Figure),
) -> Result<(), PeersError> {
    for reply in Reply::ALL {
        let mut own = None;
        for (port, name) in [(Port::Xdp, GRADBOX), (Port::Udp, "UDP sockets (port udp)")] {
            let mut settings = wire::Settings::new(port, workers, MTU, reply);
            (settings.box_cpu, settings.load_cpu) = (box_cpu, load_cpu);
            if effort == Effort::Tiny {
                settings = settings.tiny();
            }
            let place = Place::own(port, workers, MTU)?;
            let outcome = wire::measure(&settings, &place)?;
            let mut figure = line(name, workers, reply, outcome.gbps, outcome.cpu_s_per_gb);
            figure.checked = outcome.checked > 0;
            figure.port = Some(port.name().to_owned());
            figure.mode = Some(outcome.mode);
            figure.payload_bytes = Some(u32::from(outcome.payload));
            figure.busy_share = Some(outcome.busy.median);
            figure.drops = Some(outcome.drops);
            found(with_ratio(figure, &mut own));
        }
        for offloads in [true, false] {
            let pair = Pair::new(workers, Wire { mtu: MTU, queues: 1 })?;
            pair.offloads(offloads)?;
            let all = reply == Reply::Unicast;
            let mut settings = tcp::Settings::tuned(workers, DType::F32, all, offloads);
            (settings.server_cpu, settings.client_cpu) = (box_cpu, load_cpu);
            // As long as the box's lines.
            (settings.samples, settings.time) = (9, Duration::from_millis(250));
            if effort == Effort::Tiny {
                (settings.samples, settings.time) = (1, Duration::from_millis(200));
            }
            let mut samples = tcp::measure(&pair, &settings)?;
            let gbps = Spread::of(&mut samples.gbps);
            let cost = Spread::of(&mut samples.cpu_s_per_gb);
            let mut figure = line("TCP aggregator", workers, reply, gbps, cost);
            figure.checked = samples.checked > 0;
            figure.offloads = Some(offloads);
            figure.congestion_control = Some(CONGESTION.to_owned());
            found(with_ratio(figure, &mut own));
        }
    }
    Ok(())
}

fn line(system: &str, workers: u8, reply: Reply, gbps: Spread, cost: Spread) -> Figure {
    let mut figure = Figure::new(Bench::Peers);
    figure.system = Some(system.to_owned());
    figure.dtype = Some(DType::F32);
    figure.workers = Some(u32::from(workers));
    figure.mtu = Some(u32::from(MTU));
    figure.reply = Some(reply);
    figure.cores = Some(1);
    figure.gbps = Some(gbps.median);
    figure.cpu_s_per_gb = Some(cost.median);
    let per_core = cost.inverse(8.0);
    figure.gbps_per_core = Some(per_core.median);
    figure.derived = Some(true);
    figure.with_spread(per_core)
}

/// Compares with the first line, which is Gradbox's.
fn with_ratio(mut figure: Figure, own: &mut Option<f64>) -> Figure {
    let per_core = figure.gbps_per_core.unwrap_or_default();
    figure.ratio = Some(per_core / *own.get_or_insert(per_core));
    figure
}
