//! `gradbox status`: what a running box is doing, and whom it is waiting for.

use anyhow::{Context, bail};
use comfy_table::{Table, presets};
use gradbox_protocol::control::Status;
use std::io::Write;
use std::time::Duration;

/// Longest wait for one answer.
const REQUEST: Duration = Duration::from_secs(5);

/// Show what a running box is doing.
#[derive(clap::Args)]
pub(super) struct ShowStatus {
    /// Control plane of the box.
    #[arg(long = "box", value_name = "HOST:PORT")]
    address: String,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
    /// Ask again every so many seconds, until interrupted or the box is gone.
    #[arg(long, value_name = "SECONDS")]
    watch: Option<f64>,
}

/// Asks and prints.
///
/// # Errors
/// Where the box does not answer.
pub(super) fn run(args: &ShowStatus) -> anyhow::Result<()> {
    let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(REQUEST)).build();
    let agent = ureq::Agent::from(config);
    let url = format!("http://{}/v1/status", args.address);
    loop {
        let status: Status = agent
            .get(&url)
            .call()
            .and_then(|mut answer| answer.body_mut().read_json())
            .with_context(|| format!("no status from the box at {}", args.address))?;
        if args.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", serde_json::to_string(&status)?)?;
            out.flush()?;
        } else {
            print!("{}", text(&status));
        }
        let Some(seconds) = args.watch else { return Ok(()) };
        if !(0.01..=3600.0).contains(&seconds) {
            bail!("--watch {seconds}: needs 0.01 to 3600 seconds");
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

/// The tables that a person reads.
fn text(status: &Status) -> String {
    let info = &status.info;
    let mut out = format!(
        "gradbox {} up {:.0} s, {} {}, mtu {}, ports {}-{}\n",
        info.version,
        status.uptime_s,
        info.port,
        info.mode,
        info.mtu,
        info.port_base,
        info.port_base + info.shards.saturating_sub(1)
    );
    let mut cores = Table::new();
    cores.load_preset(presets::NOTHING);
    cores.set_header(["core", "cpu", "busy", "rx packets", "completed", "frames"]);
    for core in &status.cores {
        let counter = |name| {
            core.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value).to_string()
        };
        let frames: Vec<_> = core.frames.iter().map(|(s, n)| format!("{s} {n}")).collect();
        cores.add_row([
            core.shard.to_string(),
            core.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
            format!("{:.1} %", core.busy_share * 100.0),
            counter("rx_packets"),
            counter("completed"),
            format!("{} of {}", frames.join(", "), core.frames_total),
        ]);
    }
    out += &format!("{cores}\n");
    for job in &status.jobs {
        out += &format!(
            "job {} generation {}: {} workers, {} {} by {}, {} MiB reserved\n",
            job.name,
            job.generation,
            job.world,
            job.dtype,
            job.op,
            job.reply,
            job.reserved_bytes >> 20
        );
        if !job.joining.is_empty() {
            out += &format!("  joining for {:.0} s, missing {:?}\n", job.joining_s, job.joining);
        }
        for rank in &job.ranks {
            let waiting =
                if job.waiting_for == Some(rank.rank) { "  <- waiting for it" } else { "" };
            out += &format!(
                "  rank {} at {}: {} chunks pushed, last to arrive for {}{}{waiting}\n",
                rank.rank,
                rank.address,
                rank.pushed,
                rank.last,
                if rank.left { ", has left" } else { "" }
            );
        }
    }
    out
}
