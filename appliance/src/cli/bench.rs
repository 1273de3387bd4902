//! `gradbox bench`: how fast the box is here.

mod path;
mod replay;
mod sum;

use crate::bench::figure::{Figure, Figures, SCHEMA};
use crate::bench::machine::Machine;
use crate::bench::network::Namespace;
use crate::bench::show;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
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
    /// The all-reduces of a model's training step, beside what the links allow.
    Replay(replay::RunReplay),
}

/// Measures and prints.
///
/// # Errors
/// Where something cannot be measured, or a result was wrong.
pub(super) fn run(args: &RunBench) -> anyhow::Result<()> {
    if let Some(file) = &args.json {
        // Before the work, not after it.
        fs::write(file, "")
            .with_context(|| format!("--json {} cannot be written", file.display()))?;
    }
    let machine = Machine::describe();
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
        Some(Bench::Replay(b)) => b.run(&mut found)?,
        None => {
            sum::RunSum::default().run(&mut found)?;
            path::RunPath::default().run(&mut found)?;
            if found.has_networks("replay") {
                replay::RunReplay::suite(&mut found)?;
            }
        }
    }
    let results = found.end();
    print!("{}", show::tables(&results));
    println!("medians; half of the samples lie between the quarters");
    let figures = Figures { schema: SCHEMA, machine, results };
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&figures)?;
        fs::write(file, text + "\n")
            .with_context(|| format!("--json {} cannot be written", file.display()))?;
    }
    Ok(())
}

/// Collects figures, and shows how far it is.
struct Found {
    figures: Vec<Figure>,
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
        Self { figures: Vec::new(), tiny, progress, start: Instant::now() }
    }

    /// Says what is measured now.
    fn working_on(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
    }

    fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Whether networks can be made here; says why `bench` is left out, where not.
    fn has_networks(&self, bench: &str) -> bool {
        let made = Namespace::new();
        if let Err(error) = &made {
            self.progress.suspend(|| eprintln!("{bench} is left out: {error}"));
        }
        made.is_ok()
    }

    fn end(self) -> Vec<Figure> {
        self.progress.finish_and_clear();
        println!("{} figures in {:.0} s\n", self.figures.len(), self.start.elapsed().as_secs_f64());
        self.figures
    }
}

/// CPUs that this process may use.
fn cpus() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|c| c.id).collect()
}
