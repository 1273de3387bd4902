//! The subcommands of the `gradbox` binary.

mod all_reduce;
mod bench;
mod capture;
mod host;
mod notify;
mod report;
mod run;
mod status;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Gradbox: sums gradients of distributed training, bit for bit the same every time.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the box until Ctrl-C or SIGTERM.
    Run(run::Run),
    /// Be one worker: all-reduce the tensors of a file.
    AllReduce(all_reduce::AllReduce),
    /// Show what a running box is doing, and whom it is waiting for.
    Status(status::ShowStatus),
    /// Write the packets of a running box to a file for Wireshark.
    Capture(capture::RunCapture),
    /// Measure how fast the box is here, beside what the machine allows and what others do.
    Bench(bench::RunBench),
    /// Look whether the box can run on this machine, set it so, and put it back.
    Host(host::Host),
    /// Put together what the workers of a job and the box wrote.
    Report(report::MakeReport),
}

/// Does what the command line says, and returns the exit status of what says more than "done".
///
/// # Errors
/// What went wrong, in words for the user.
pub fn main() -> anyhow::Result<ExitCode> {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::AllReduce(args) => all_reduce::run(args),
        Command::Status(args) => status::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Host(args) => return host::run(&args),
        Command::Report(args) => report::run(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}
