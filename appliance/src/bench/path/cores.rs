//! `step()` on one core, or on several at the same time, each with a box of its own.

use super::split::{self, Split};
use super::{Bench, PathError, Setup};
use crate::bench::figure::{self, Figure};
use crate::bench::groups;
use crate::bench::spread::Spread;
use gradbox_protocol::Reply;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rounds before those that are timed.
const WARM_UP: u32 = 2;
/// Longest wait for another core.
const PATIENCE: Duration = Duration::from_secs(30);
/// Spins between two looks at the clock.
const SPINS: u32 = 4096;
/// Packets that a measurement receives at least, per core.
const PACKETS: u64 = 1_000_000;

/// What one core did.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Nanoseconds for each packet received: its share of the sum and its answer included.
    pub ns_per_packet: Spread,
    /// Results whose bits were compared.
    pub verified: u64,
}

/// Runs a box on each of `cpus` through `rounds` rounds, after two that are not timed. The cores
/// begin each burst together, so that what is timed is timed while the others work too.
///
/// # Errors
/// Where there is no memory, a packet is lost, or a result is wrong.
pub fn measure(setup: Setup, rounds: u32, cpus: &[usize]) -> Result<Vec<Outcome>, PathError> {
    let meeting = Meeting::new(cpus.len());
    std::thread::scope(|s| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                let meeting = &meeting;
                s.spawn(move || {
                    core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
                    let outcome = one(setup, rounds, meeting);
                    if outcome.is_err() {
                        meeting.end.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        // All are waited for, and of two errors the one that says more comes first.
        let mut outcomes = Vec::new();
        for thread in threads {
            outcomes.push(thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        }
        outcomes.sort_by_key(|o| matches!(o, Err(PathError::Alone(_))));
        outcomes.into_iter().collect()
    })
}

fn one(setup: Setup, rounds: u32, meeting: &Meeting) -> Result<Outcome, PathError> {
    let mut bench = Bench::new(setup)?;
    let mut ready = || meeting.wait();
    let mut times: Vec<Vec<f64>> = Vec::new();
    for _ in 0..WARM_UP {
        bench.round(&mut ready)?;
    }
    for _ in 0..rounds {
        let round = bench.round(&mut ready)?;
        times.resize_with(round.len(), Vec::new);
        for (times, time) in times.iter_mut().zip(round) {
            times.push(time.as_nanos() as f64);
        }
    }
    bench.finish()?;
    // The same burst of every round does the same work, so each has a median of its own: one
    // that another process broke into does not spoil its round.
    let mut round = Spread::default();
    for times in &mut times {
        round += Spread::of(times);
    }
    let ns_per_packet = round.scaled(1.0 / setup.packets() as f64);
    Ok(Outcome { ns_per_packet, verified: bench.verified() })
}

/// Where the cores wait for each other.
struct Meeting {
    cores: u64,
    arrived: AtomicU64,
    end: AtomicBool,
}

impl Meeting {
    const fn new(cores: usize) -> Self {
        Self { cores: cores as u64, arrived: AtomicU64::new(0), end: AtomicBool::new(false) }
    }

    /// Waits, spinning, until all cores are here.
    fn wait(&self) -> Result<(), PathError> {
        let before = self.arrived.fetch_add(1, Ordering::Relaxed);
        let all = (before / self.cores + 1) * self.cores;
        let start = Instant::now();
        let mut spins = 0u32;
        while self.arrived.load(Ordering::Relaxed) < all {
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(SPINS) {
                if self.end.load(Ordering::Relaxed) || start.elapsed() > PATIENCE {
                    return Err(PathError::Alone(PATIENCE));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Enough to see that everything works; the figures mean nothing.
    Tiny,
    /// Enough for figures that mean something.
    Full,
}

/// Measures one setup on `cpus`, beside the limit of the same memory traffic; for one core, with
/// the split of the time.
///
/// # Errors
/// Those of [`measure`].
pub fn figure(setup: Setup, mtu: u32, cpus: &[usize], effort: Effort) -> Result<Figure, PathError> {
    let tiny = effort == Effort::Tiny;
    let setup = if tiny { setup.tiny() } else { setup };
    let rounds = if tiny { 2 } else { (PACKETS / setup.packets()).clamp(9, 400) as u32 };
    let outcomes = measure(setup, rounds, cpus)?;
    let ns = outcomes.iter().map(|o| o.ns_per_packet).collect::<Vec<_>>();
    let ns = Spread::mean(&ns);
    let bits = f64::from(setup.chunk_bytes) * 8.0;
    let gbps = ns.inverse(bits);

    let shape = (footprint(setup), setup.world, usize::from(setup.chunk_bytes));
    let (samples, sample) = if tiny { (1, 10) } else { (9, 1000) };
    let limit = groups::limit(
        cpus,
        shape,
        setup.reply == Reply::Unicast,
        samples,
        Duration::from_micros(sample),
    )?;
    let limit = limit.median * 8.0;

    let mut figure = Figure::new(figure::Bench::Path);
    figure.dtype = Some(setup.dtype);
    figure.workers = Some(setup.world as u32);
    figure.mtu = Some(mtu);
    figure.payload_bytes = Some(u32::from(setup.chunk_bytes));
    figure.working_set = Some(setup.working_set);
    figure.arrival = Some(setup.arrival);
    figure.reply = Some(setup.reply);
    figure.cores = Some(cpus.len() as u32);
    figure.gbps = Some(gbps.median * cpus.len() as f64);
    figure.gbps_per_core = Some(gbps.median);
    figure.ns_per_packet = Some(ns.median);
    figure.limit = Some(limit);
    figure.percent_of_limit = Some(100.0 * gbps.median / limit);
    figure.checked = outcomes.iter().all(|o| o.verified > 0);
    if let [_] = cpus {
        let Split { rings, parse_slot, sum, reflect } = split::measure(setup, rounds, ns.median)?;
        figure.ns_rings = Some(rings);
        figure.ns_parse_slot = Some(parse_slot);
        figure.ns_sum = Some(sum);
        figure.ns_reflect = Some(reflect);
    }
    Ok(figure.with_spread(gbps))
}

/// Bytes of payload that a setup goes through before it comes back to the same frame.
fn footprint(setup: Setup) -> u64 {
    let parts = u64::from(setup.window) * setup.world as u64;
    (u64::from(setup.ring) + u64::from(setup.chunks) + parts) * u64::from(setup.chunk_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Arrival, WorkingSet};
    use gradbox_protocol::DType;

    #[test]
    fn one_core_and_two() {
        for (cpus, reply) in [(&[0][..], Reply::Unicast), (&[0, 0], Reply::Multicast)] {
            let setup =
                Setup::new(4, DType::F32, 1408, WorkingSet::L2, Arrival::InStep, reply).tiny();
            let figure = figure(setup, 1500, cpus, Effort::Tiny).expect("a figure");
            assert!(figure.checked && figure.gbps_per_core > Some(0.0), "{figure:?}");
            assert_eq!(figure.ns_sum.is_some(), cpus.len() == 1);
        }
    }
}
