//! `gradbox run`: the box itself.

use super::notify::notify;
use crate::appliance::{Appliance, Privileges};
use crate::config::{Attach, Config, PortConfig, XdpMode};
use crate::privileges;
use anyhow::Context;
use std::fmt::{Display, Write};
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
    /// With --check: print what a script needs to prepare the machine, as KEY=VALUE lines.
    #[arg(long, requires = "check")]
    shell: bool,
}

/// Runs the box.
///
/// # Errors
/// Where it cannot start.
pub(super) fn run(args: &Run) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    if args.shell {
        print!("{}", shell(&config));
        return Ok(());
    }
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

/// What `scripts/launch.sh` reads. Values are plain words and are not quoted; lists have commas.
fn shell(config: &Config) -> String {
    let data = &config.data;
    let (port, interface, mode, attach) = match &data.port {
        PortConfig::Xdp { interface, mode, attach, .. } => {
            let mode = match mode {
                XdpMode::Auto => "auto",
                XdpMode::Zerocopy => "zerocopy",
                XdpMode::Copy => "copy",
            };
            let attach = match attach {
                Attach::Driver => "driver",
                Attach::Skb => "skb",
            };
            ("xdp", interface.as_str(), mode, attach)
        }
        PortConfig::Udp => ("udp", "", "", ""),
    };
    let core_bytes = config.frames_per_core() * u64::from(config.frame_bytes());
    // Each core's memory is a mapping of its own, in whole pages.
    let pages = if data.huge_pages { core_bytes.div_ceil(2 << 20) } else { 0 };
    let queues = u64::from(data.queues);
    let values: [(&str, &dyn Display); 18] = [
        ("port", &port),
        ("interface", &interface),
        ("mode", &mode),
        ("attach", &attach),
        ("queues", &data.queues),
        ("cpus", &list(&data.cpus)),
        ("addresses", &list(&data.addresses)),
        ("port_base", &data.port_base),
        ("mtu", &data.mtu),
        ("chunk_bytes", &data.chunk_bytes),
        ("frame_bytes", &config.frame_bytes()),
        ("frames", &config.frames_per_core()),
        ("fill_ring", &data.rings.fill),
        ("rx_ring", &data.rings.rx),
        ("tx_ring", &data.rings.tx),
        ("memory_bytes", &(core_bytes * queues)),
        ("huge_pages", &(pages * queues)),
        ("control", &config.control.listen),
    ];
    values.iter().fold(String::new(), |mut out, (key, value)| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{key}={value}");
        out
    })
}

fn list(values: &[impl Display]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_a_script_reads() {
        let text = "[data]\nport = \"xdp\"\ninterface = \"eth1\"\nqueues = 2\ncpus = [2, 3]\n\
                    mtu = 3498\nmemory_mib = 130\nhuge_pages = true\n";
        let out = shell(&Config::parse(text, Path::new("box.toml")).unwrap());
        for line in ["port=xdp", "interface=eth1", "mode=auto", "cpus=2,3", "huge_pages=130"] {
            assert!(out.lines().any(|l| l == line), "{line} is not in\n{out}");
        }
        let udp = Config::parse("[data]\nport = \"udp\"\n", Path::new("box.toml")).unwrap();
        assert!(shell(&udp).contains("\ninterface=\n"));
    }
}
