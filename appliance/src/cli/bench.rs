//! `gradbox bench`: how fast the box is here.

mod output;
mod path;
mod sum;

use crate::bench::figure::{Figure, Figures, SCHEMA};
use crate::bench::machine::Machine;
use crate::bench::show;
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
        None => {
            sum::RunSum::default().run(&mut found)?;
            path::RunPath::default().run(&mut found)?;
        }
    }
    Ok(Figures { schema: SCHEMA, machine, tiny: args.tiny, results: found.end() })
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
