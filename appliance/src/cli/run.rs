//! `gradbox run`: the box itself.

use super::notify::notify;
use crate::appliance::{Appliance, Privileges};
use crate::config::Config;
use crate::privileges;
use anyhow::Context;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
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
    // Capabilities are a thread's own: the one that sets the box up keeps them until it has done
    // so, and this one, and that of the signals, which it starts, are without from the beginning.
    let setup = thread::Builder::new()
        .name("setup".into())
        .spawn(move || Appliance::start(&config, Privileges::Drop))
        .context("cannot start the thread that sets the box up")?;
    let dropped = privileges::drop_all();
    let (stop, stopped) = mpsc::channel();
    // At once, so that a signal during the start is not lost.
    ctrlc::set_handler(move || {
        // Nobody listens any more when the box is stopping already.
        let _ = stop.send(());
    })
    .context("cannot handle signals")?;
    let appliance =
        setup.join().map_err(|_| anyhow::anyhow!("the thread that sets the box up panicked"))??;
    dropped?;
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
    notify("READY=1")?;
    // A sender that is gone means that no signal can come: then there is nothing to wait for.
    let _ = stopped.recv();
    let told = notify("STOPPING=1");
    print!("{}", appliance.stop());
    told
}
