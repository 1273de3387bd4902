//! `gradbox bench`: how fast the box is here.

mod command;
mod output;
mod path;
mod peers;
mod replay;
mod sum;
mod wire;

use crate::bench::figure::{Figure, Figures, SCHEMA};
use crate::bench::machine::Machine;
use crate::bench::network::Namespace;
use crate::bench::peers::network::PeersError;
use crate::bench::show;
use crate::bench::wire::WireError;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use output::Output;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Measure how fast the box is here, beside what the machine allows and what others do.
#[derive(clap::Args)]
pub(super) struct RunBench {
    #[command(subcommand)]
    bench: Option<Bench>,
    /// Write the figures to this file (schema 1, see docs/benchmarks.md).
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page for people into this directory: index.html, with figures.json beside it.
    #[arg(long, global = true, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Measure nothing: take the figures of this file, which --json or --report wrote.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "tiny"])]
    from: Option<PathBuf>,
    /// Tiny sizes: shows that everything works, the figures mean nothing.
    #[arg(long, global = true)]
    tiny: bool,
}

/// Without one of these, a choice of all in less than three minutes.
#[derive(clap::Subcommand)]
enum Bench {
    /// The sum kernels, beside a plain read and write of the same memory.
    Sum(sum::RunSum),
    /// The data plane in memory, per core and for several cores.
    Path(path::RunPath),
    /// The box on an interface, under a load made in the kernel.
    Wire(wire::RunWire),
    /// The same work done by an aggregator in the kernel, over TCP and over UDP sockets.
    Peers(peers::RunPeers),
    /// The all-reduces of a model's training step, beside what the links allow.
    Replay(replay::RunReplay),
}

/// Measures, or takes what was measured, and prints and writes it.
///
/// # Errors
/// Where something cannot be measured, read or written, or a result was wrong.
pub(super) fn run(args: &RunBench) -> anyhow::Result<()> {
    let (figures, output) = if let Some(file) = &args.from {
        if args.bench.is_some() || args.json.is_some() || args.tiny {
            bail!("--from measures nothing: leave out the benchmark, --tiny and --json");
        }
        // Read before anything is written: it may be the file that lies beside the page.
        let figures = output::read(file)?;
        (figures, Output::prepare(None, args.report.as_deref())?)
    } else {
        // Before the work, not after it.
        let output = Output::prepare(args.json.as_deref(), args.report.as_deref())?;
        (measure(args)?, output)
    };
    print!("{}", show::tables(&figures.results));
    println!("medians; half of the samples lie between the quarters");
    output.write(&figures)
}

fn measure(args: &RunBench) -> anyhow::Result<Figures> {
    let mut machine = Machine::describe();
    println!(
        "{}, {} cores, {}, L2 {} KiB, L3 {} MiB, Linux {}\n",
        machine.cpu,
        machine.cores,
        machine.isa,
        machine.l2_bytes >> 10,
        machine.l3_bytes >> 20,
        machine.kernel
    );
    let mut found = Found::new(args.tiny);
    match &args.bench {
        Some(Bench::Sum(b)) => b.run(&mut found)?,
        Some(Bench::Path(b)) => b.run(&mut found)?,
        Some(Bench::Wire(b)) => b.run(&mut found)?,
        Some(Bench::Peers(b)) => b.run(&mut found)?,
        Some(Bench::Replay(b)) => b.run(&mut found)?,
        None => {
            sum::RunSum::default().run(&mut found)?;
            path::RunPath::default().run(&mut found)?;
            if found.has_networks("wire") {
                let done = wire::RunWire::default().run(&mut found);
                found.unless_no_live_frames("wire", done)?;
            }
            if found.has_networks("peers") {
                let done = peers::RunPeers::default().run(&mut found);
                found.unless_no_live_frames("peers on a network", done)?;
            }
            if found.has_networks("replay") {
                replay::RunReplay::suite(&mut found)?;
            }
        }
    }
    machine.nic = found.nic.take();
    Ok(Figures { schema: SCHEMA, machine, tiny: args.tiny, results: found.end() })
}

/// Collects figures, and shows how far it is.
struct Found {
    figures: Vec<Figure>,
    /// What `bench wire` ran on.
    nic: Option<String>,
    tiny: bool,
    progress: ProgressBar,
    start: Instant,
}

impl Found {
    fn new(tiny: bool) -> Self {
        let progress = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
        progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        progress.enable_steady_tick(Duration::from_millis(200));
        Self { figures: Vec::new(), nic: None, tiny, progress, start: Instant::now() }
    }

    /// Whether networks can be made here; says why `bench` is left out, where not.
    fn has_networks(&self, bench: &str) -> bool {
        let made = Namespace::new();
        if let Err(error) = &made {
            self.progress.suspend(|| eprintln!("{bench} is left out: {error}"));
        }
        made.is_ok()
    }

    /// What a benchmark came to; where the kernel refuses the load, that is said and it is left out.
    fn unless_no_live_frames(&self, bench: &str, done: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = done else { return Ok(()) };
        let wire = match error.downcast_ref::<PeersError>() {
            Some(PeersError::Wire(wire)) => Some(wire),
            _ => error.downcast_ref::<WireError>(),
        };
        if !wire.is_some_and(WireError::is_no_live_frames) {
            return Err(error);
        }
        self.progress.suspend(|| eprintln!("{bench} is left out: {error}"));
        Ok(())
    }

    /// Says what is measured now.
    fn working_on(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
    }

    fn add(&mut self, mut figure: Figure) {
        if figure.command.is_none() {
            figure.command = Some(command::of(&figure));
        }
        self.figures.push(figure);
    }

    fn end(self) -> Vec<Figure> {
        self.progress.finish_and_clear();
        println!("{} figures in {:.0} s\n", self.figures.len(), self.start.elapsed().as_secs_f64());
        self.figures
    }
}

/// Each line once for each value; as it is where there are none.
fn each<L: Copy, T: Copy>(lines: &mut Vec<L>, values: &[T], set: impl Fn(&mut L, T)) {
    if values.is_empty() {
        return;
    }
    let all = lines.iter().flat_map(|line| values.iter().map(move |&v| (*line, v)));
    *lines = all
        .map(|(mut line, value)| {
            set(&mut line, value);
            line
        })
        .collect();
}

/// CPUs of the box's core and of the load: the last ones, the first one is the system's own. The
/// same where there is only one.
fn core_and_load() -> (usize, usize) {
    let cpus = cpus();
    let last = cpus.last().copied().unwrap_or_default();
    (last, cpus.iter().rev().nth(1).copied().unwrap_or(last))
}

/// CPUs that this process may use.
fn cpus() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|c| c.id).collect()
}
