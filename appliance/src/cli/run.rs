//! `gradbox run`: the box itself.

use crate::appliance::Appliance;
use crate::config::Config;
use anyhow::Context;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc;
use tracing_subscriber::EnvFilter;

/// Run the box until Ctrl-C or SIGTERM.
#[derive(clap::Args)]
pub(super) struct Run {
    /// Configuration file (TOML); every field is explained in configs/reference.toml.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the configuration, and say what it would do.
    #[arg(long)]
    check: bool,
}

/// Runs the box.
///
/// # Errors
/// Where it cannot start.
pub(super) fn run(args: &Run) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    if args.check {
        println!(
            "{}: good: {} queue(s), {} frames of {} bytes each, chunks of {} bytes",
            args.config.display(),
            config.data.queues,
            config.frames_per_core(),
            config.frame_bytes(),
            config.data.chunk_bytes
        );
        return Ok(());
    }
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(config.level.name()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let (stop, stopped) = mpsc::channel();
    // Before the start, so that a signal during it is not lost.
    ctrlc::set_handler(move || {
        // Nobody listens any more when the box is stopping already.
        let _ = stop.send(());
    })
    .context("cannot handle signals")?;
    let appliance = Appliance::start(&config)?;
    let info = appliance.info();
    println!(
        "READY {} mode {} transmit {} control http://{} data {} ports {}-{} mtu {}",
        info.port,
        info.mode,
        info.transmit,
        appliance.control(),
        info.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        info.port_base,
        info.port_base + (info.shards - 1),
        info.mtu
    );
    // A sender that is gone means that no signal can come: then there is nothing to wait for.
    let _ = stopped.recv();
    print!("{}", appliance.stop());
    Ok(())
}
