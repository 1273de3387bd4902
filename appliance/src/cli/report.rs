//! `gradbox report`: what a run of workers amounted to, from the files that they and the box
//! wrote.

use crate::record::{self, Record};
use anyhow::{Context, bail, ensure};
use comfy_table::{Table, presets};
use gradbox_protocol::control::Status;
use gradbox_protocol::{DType, Op};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Put together what the workers of a job and the box wrote.
#[derive(clap::Args)]
pub(super) struct MakeReport {
    /// What each worker wrote by `all-reduce --json`.
    #[arg(required = true, value_name = "WORKER.json")]
    workers: Vec<PathBuf>,
    /// What `status --json --watch` wrote meanwhile: one object a line.
    #[arg(long, value_name = "FILE")]
    statuses: PathBuf,
    /// Fail unless all other workers had delivered everything before this rank sent a byte.
    #[arg(long, value_name = "RANK")]
    straggler: Option<u8>,
    /// Write the figures to this file, as one object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The figures, as they are written to the JSON file.
#[derive(Serialize)]
struct Figures {
    verified: bool,
    port: String,
    mode: String,
    mtu: u16,
    workers: u8,
    rounds: usize,
    dtype: DType,
    op: Op,
    tensors: usize,
    gradient_bytes: u64,
    seconds_per_round: f64,
    seconds_per_round_min: f64,
    seconds_per_round_max: f64,
    goodput_gbps_per_worker: f64,
    resent_share: f64,
    box_busy_share: f64,
    frames_balanced: bool,
    frame_samples: usize,
    steered: u64,
    drops: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    straggler_margin_s: Option<f64>,
}

/// Reads, computes, prints.
///
/// # Errors
/// Where a file is missing or does not fit to the others, a worker did not verify its results, a
/// frame was lost, or the straggler was not one.
pub(super) fn run(args: &MakeReport) -> anyhow::Result<()> {
    let workers = args.workers.iter().map(|p| Record::read(p)).collect::<Result<Vec<_>, _>>()?;
    let statuses = fs::read_to_string(&args.statuses)
        .with_context(|| format!("cannot read {}", args.statuses.display()))?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Status>, _>>()
        .with_context(|| format!("{} is not a list of statuses", args.statuses.display()))?;
    let figures = figures(&workers, &statuses, args.straggler)?;
    println!("{}", table(&figures));
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(margin) = figures.straggler_margin_s {
        ensure!(
            margin > 0.0,
            "the others had not delivered everything when the straggler began: {margin:.3} s late"
        );
        println!(
            "whole-gradient cache: all other workers had delivered their whole gradient \
             {margin:.2} s before the straggler sent its first byte"
        );
    }
    ensure!(figures.frames_balanced, "the box has lost a frame: see the statuses");
    ensure!(figures.verified, "not every worker has verified its results");
    println!(
        "verified: {} tensors x {} rounds bit-identical to the rank-order reference",
        figures.tensors, figures.rounds
    );
    Ok(())
}

/// Everything that follows from the files.
fn figures(
    workers: &[Record],
    statuses: &[Status],
    straggler: Option<u8>,
) -> anyhow::Result<Figures> {
    let (Some(first), Some(before), Some(after)) =
        (workers.first(), statuses.first(), statuses.last())
    else {
        bail!("needs at least one worker and one status");
    };
    let rounds = first.rounds.len();
    let spans = record::rounds(workers)?;
    let mut seconds: Vec<f64> =
        spans.iter().map(|(started, finished)| (finished - started) as f64 / 1e9).collect();
    seconds.sort_by(f64::total_cmp);
    let median = (seconds[(rounds - 1) / 2] + seconds[rounds / 2]) / 2.0;
    let bytes = first.rounds[0].bytes;
    let all = || workers.iter().flat_map(|w| &w.rounds);
    let pushed: u64 = all().map(|r| r.pushed).sum();
    let resent: u64 = all().map(|r| r.resent).sum();
    let balanced = |s: &Status| {
        s.cores.iter().all(|c| c.frames.iter().map(|(_, n)| n).sum::<u64>() == c.frames_total)
    };
    let counter = |s: &Status, name: &str| -> u64 {
        s.cores.iter().flat_map(|c| &c.counters).filter(|(n, _)| n == name).map(|(_, v)| v).sum()
    };
    let mut drops = BTreeMap::new();
    for (name, _) in after.cores.iter().flat_map(|c| &c.counters) {
        if name.starts_with("drop_") || name.starts_with("fault_") {
            drops.insert(
                name.clone(),
                counter(after, name) - counter(before, name).min(counter(after, name)),
            );
        }
    }
    Ok(Figures {
        verified: workers.iter().all(|w| w.verified == Some(true)),
        port: first.box_port.clone(),
        mode: first.box_mode.clone(),
        mtu: after.info.mtu,
        workers: first.world,
        rounds,
        dtype: first.wire_dtype,
        op: first.op,
        tensors: first.tensors,
        gradient_bytes: bytes,
        seconds_per_round: median,
        seconds_per_round_min: seconds[0],
        seconds_per_round_max: seconds[rounds - 1],
        goodput_gbps_per_worker: if median > 0.0 { bytes as f64 * 8.0 / median / 1e9 } else { 0.0 },
        resent_share: if pushed > 0 { resent as f64 / pushed as f64 } else { 0.0 },
        box_busy_share: busy_share(before, after),
        frames_balanced: statuses.iter().all(balanced),
        frame_samples: statuses.len(),
        steered: counter(after, "steered")
            - counter(before, "steered").min(counter(after, "steered")),
        drops,
        straggler_margin_s: straggler.map(|rank| margin(workers, rank)).transpose()?,
    })
}

/// Share of the time between two statuses that the cores were busy, on average.
fn busy_share(before: &Status, after: &Status) -> f64 {
    let span = (after.uptime_s - before.uptime_s) * after.cores.len() as f64;
    let busy = |s: &Status| s.cores.iter().map(|c| c.busy_share * s.uptime_s).sum::<f64>();
    if span > 0.0 { (busy(after) - busy(before)) / span } else { 0.0 }
}

/// Seconds from when the last of the others had delivered its first round to when `rank` sent
/// its first byte; negative where it was the other way round.
fn margin(workers: &[Record], rank: u8) -> anyhow::Result<f64> {
    let first_sent = workers
        .iter()
        .find(|w| w.rank == rank)
        .map(|w| w.rounds[0].first_sent_ns)
        .with_context(|| format!("--straggler {rank}: no worker has that rank"))?;
    let others = workers.iter().filter(|w| w.rank != rank);
    let delivered = others.map(|w| w.rounds[0].delivered_ns);
    let last = delivered.max().context("the straggler is alone")?;
    Ok((first_sent as f64 - last as f64) / 1e9)
}

/// The table that a person reads.
fn table(f: &Figures) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let drops: Vec<_> =
        f.drops.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    let rows = [
        ("port and mode", format!("{} {}", f.port, f.mode)),
        ("MTU", f.mtu.to_string()),
        ("workers", f.workers.to_string()),
        ("type, operation", format!("{} {}", f.dtype, f.op)),
        (
            "gradient",
            format!("{} tensors, {:.1} MiB", f.tensors, f.gradient_bytes as f64 / 1_048_576.0),
        ),
        (
            "time per round",
            format!(
                "{:.3} s median of {} ({:.3} to {:.3})",
                f.seconds_per_round, f.rounds, f.seconds_per_round_min, f.seconds_per_round_max
            ),
        ),
        ("goodput per worker", format!("{:.3} Gbit/s", f.goodput_gbps_per_worker)),
        ("sent again", format!("{:.3} % of all chunks", f.resent_share * 100.0)),
        ("box cores busy", format!("{:.1} % of the time", f.box_busy_share * 100.0)),
        (
            "frames",
            if f.frames_balanced {
                format!("balanced in all {} samples", f.frame_samples)
            } else {
                "LOST".to_owned()
            },
        ),
        ("steered between cores", f.steered.to_string()),
        ("drops", if drops.is_empty() { "none".to_owned() } else { drops.join(", ") }),
    ];
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table
}
