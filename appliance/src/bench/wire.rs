//! The whole box on an interface, under a load that costs its core nothing.
//!
//! Load comes from the generator in the kernel, on another CPU, so the box's core is what is
//! measured: how much it takes in, sums and answers, and for what share of the time it works.
//!
//! * [`Settings`], [`Place`]: what is measured, and where
//! * [`measure`]: does it, and gives back [`Outcome`]

mod load;
mod place;

pub use place::{Place, PlaceError};

use super::bpf;
use super::figure::{Bench, Figure};
use super::generator::Counts;
use super::running::{RunningBox, RunningError};
use super::spread::Spread;
use crate::appliance::Summary;
use crate::config::Transmit;
use crate::dataplane::counters::{Counter, Reading};
use gradbox_protocol::{DType, Reply, chunk_bytes};
use load::Load;
use std::fmt::{self, Write};
use std::io;
use std::time::{Duration, Instant};

/// UDP port of the box's first shard.
const PORT_BASE: u16 = 9100;

/// Entries of each ring.
const RING: u32 = 8192;

/// Chunks of the job: enough for the window, few enough to stay in the last-level cache.
const CHUNKS: u32 = 1024;

/// How packets reach the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// AF_XDP.
    Xdp,
    /// Ordinary sockets.
    Udp,
}

impl Port {
    /// Name in configuration and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Port {
    type Err = &'static str;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let of_name = |port: &Self| port.name() == name;
        [Self::Xdp, Self::Udp].into_iter().find(of_name).ok_or("needs xdp or udp")
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How packets reach the box.
    pub port: Port,
    /// What sends the answers of the `xdp` port.
    pub transmit: Transmit,
    /// Workers, 1 to 32.
    pub workers: u8,
    /// Element type.
    pub dtype: DType,
    /// Bytes of an IP packet; at most [`MAX_MTU`].
    pub mtu: u16,
    /// Replies to each worker, or one to all.
    pub reply: Reply,
    /// Packets in flight at most.
    pub window: u32,
    /// Time before the first sample.
    pub warm_up: Duration,
    /// Time of each sample.
    pub sample: Duration,
    /// Samples.
    pub samples: usize,
    /// Of so many RESULTs one is compared with the reference.
    pub sample_every: u64,
    /// CPU of the box's core.
    pub box_cpu: usize,
    /// CPU of the load.
    pub load_cpu: usize,
}

/// Largest MTU: a live frame of the generator has no room for a longer packet.
pub const MAX_MTU: u16 = 3434;

impl Settings {
    /// The usual: samples of a quarter of a second on the first two CPUs.
    #[must_use]
    pub const fn new(port: Port, workers: u8, mtu: u16, reply: Reply) -> Self {
        Self {
            port,
            transmit: Transmit::Auto,
            workers,
            dtype: DType::F32,
            mtu,
            reply,
            window: 4096,
            warm_up: Duration::from_millis(300),
            sample: Duration::from_millis(250),
            samples: 9,
            sample_every: 2048,
            box_cpu: 1,
            load_cpu: 0,
        }
    }

    /// Enough to see that it works; the figures mean nothing.
    #[must_use]
    pub const fn tiny(mut self) -> Self {
        self.warm_up = Duration::from_millis(50);
        self.sample = Duration::from_millis(100);
        self.samples = 2;
        self.sample_every = 64;
        self
    }
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The box.
    #[error(transparent)]
    Box(#[from] RunningError),
    /// The load.
    #[error(transparent)]
    Load(#[from] bpf::Error),
    /// A thread.
    #[error("cannot start the thread of the load: {0}")]
    Thread(#[source] io::Error),
    /// An MTU that does not do.
    #[error("an MTU of {found}: needs 144 to {MAX_MTU}, for the load's packets lie in one page")]
    Mtu {
        /// What was asked for.
        found: u16,
    },
    /// A result differs from the reference.
    #[error("{wrong} of {checked} results differ from the reference: do not trust this box")]
    Wrong {
        /// So many were wrong.
        wrong: u64,
        /// Of so many.
        checked: u64,
    },
    /// Nothing came back.
    #[error(
        "the box answered nothing: {sent} packets were sent, {received} reached it, drops: {drops:?}"
    )]
    Silent {
        /// Packets sent.
        sent: u64,
        /// Packets that the box received.
        received: u64,
        /// What became of them.
        drops: Vec<(String, u64)>,
    },
}

impl WireError {
    /// Whether it is the kernel that keeps the load from its live frames.
    #[must_use]
    pub const fn is_no_live_frames(&self) -> bool {
        matches!(self, Self::Load(bpf::Error::LiveFrames { .. }))
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the port got its packets.
    pub mode: String,
    /// What sent the answers.
    pub transmit: String,
    /// Gradient bytes of a packet.
    pub payload: u16,
    /// Gigabits per second that were summed and answered.
    pub gbps: Spread,
    /// Gigabits per second that were sent.
    pub offered: Spread,
    /// Gigabits per second that came.
    pub received: Spread,
    /// Share of the time that the core worked.
    pub busy: Spread,
    /// CPU seconds of the core's thread for 1e9 bytes summed.
    pub cpu_s_per_gb: Spread,
    /// Packets that were not served, by reason, over the whole run.
    pub drops: Vec<(String, u64)>,
    /// What the load counted over the whole run.
    pub load: Counts,
    /// What the box says of itself.
    pub summary: Summary,
    /// Results whose bits were compared.
    pub checked: u64,
}

/// One look at box and load.
struct Look {
    at: Instant,
    reading: Reading,
    counts: Counts,
    cpu: Duration,
}

/// Measures a box at `place`.
///
/// # Errors
/// Where something cannot be had, nothing comes back, or a result is wrong.
pub fn measure(settings: &Settings, place: &Place) -> Result<Outcome, WireError> {
    let mtu = WireError::Mtu { found: settings.mtu };
    if settings.mtu > MAX_MTU {
        return Err(mtu);
    }
    let payload = chunk_bytes(usize::from(settings.mtu)).ok_or(mtu)?;
    let running = RunningBox::start(place.boxes(), &config(settings, place))?;
    let (mode, transmit) = (running.info().mode.clone(), running.info().transmit.clone());
    let mut load = Load::start(settings, place, &running, CHUNKS)?;
    let look = |load: &Load| -> Result<Look, WireError> {
        let (at, reading) = (Instant::now(), running.reading());
        Ok(Look { at, reading, counts: load.counts()?, cpu: running.cpu_time()? })
    };
    std::thread::sleep(settings.warm_up);
    let mut looks = vec![look(&load)?];
    for _ in 0..settings.samples {
        std::thread::sleep(settings.sample);
        load.check();
        looks.push(look(&load)?);
    }
    let (checked, wrong) = load.stop()?;
    let counts = load.counts()?;
    let summary = running.stop();
    let drops = drops(&summary);
    if wrong > 0 {
        return Err(WireError::Wrong { wrong, checked });
    }
    if checked == 0 {
        let received = summary.cores.iter().map(|c| c.counters.get(Counter::RxPackets)).sum();
        return Err(WireError::Silent { sent: counts.sent, received, drops });
    }
    let bits = f64::from(payload) * 8e-9;
    let parts = bits * f64::from(settings.workers);
    let counted =
        |c, a: &Look, b: &Look| (b.reading.counters.get(c) - a.reading.counters.get(c)) as f64;
    let completed = |a: &Look, b: &Look| counted(Counter::Completed, a, b) * parts;
    let received = |a: &Look, b: &Look| counted(Counter::RxPackets, a, b) * bits;
    Ok(Outcome {
        mode,
        transmit,
        payload,
        gbps: spread(&looks, |a, b, s| completed(a, b) / s),
        offered: spread(&looks, |a, b, s| (b.counts.sent - a.counts.sent) as f64 * bits / s),
        received: spread(&looks, |a, b, s| received(a, b) / s),
        busy: spread(&looks, |a, b, s| (b.reading.busy_ns - a.reading.busy_ns) as f64 * 1e-9 / s),
        cpu_s_per_gb: spread(&looks, |a, b, _| {
            (b.cpu - a.cpu).as_secs_f64() / (completed(a, b) / 8.0)
        }),
        drops,
        load: counts,
        summary,
        checked,
    })
}

/// What changed from look to look; the last argument is the seconds between them.
fn spread(looks: &[Look], change: impl Fn(&Look, &Look, f64) -> f64) -> Spread {
    let pairs = looks.windows(2).map(|pair| (&pair[0], &pair[1]));
    let mut samples: Vec<f64> =
        pairs.map(|(a, b)| change(a, b, (b.at - a.at).as_secs_f64())).collect();
    Spread::of(&mut samples)
}

/// The outcome as a line of `gradbox bench wire`.
#[must_use]
pub fn figure(settings: &Settings, outcome: &Outcome) -> Figure {
    let mut figure = Figure::new(Bench::Wire);
    figure.port = Some(settings.port.name().to_owned());
    figure.mode = Some(outcome.mode.clone());
    figure.transmit = Some(outcome.transmit.clone());
    figure.dtype = Some(settings.dtype);
    figure.workers = Some(u32::from(settings.workers));
    figure.mtu = Some(u32::from(settings.mtu));
    figure.payload_bytes = Some(u32::from(outcome.payload));
    figure.reply = Some(settings.reply);
    figure.cores = Some(1);
    figure.gbps = Some(outcome.gbps.median);
    figure.offered_gbps = Some(outcome.offered.median);
    figure.received_gbps = Some(outcome.received.median);
    figure.busy_share = Some(outcome.busy.median);
    figure.gbps_per_core = Some(outcome.gbps.median / outcome.busy.median);
    figure.derived = Some(true);
    figure.cpu_s_per_gb = Some(outcome.cpu_s_per_gb.median);
    figure.drops = Some(outcome.drops.clone());
    if let [core, ..] = &outcome.summary.cores[..] {
        let at = |q| Some(core.latency_us.value_at_quantile(q));
        figure.latency_p50_us = at(0.5);
        figure.latency_p99_us = at(0.99);
        figure.latency_p999_us = at(0.999);
    }
    figure.checked = outcome.checked > 0;
    // The quarters are of what was measured, as a share of what follows from it.
    figure.with_spread(outcome.gbps.scaled(1.0 / outcome.busy.median))
}

/// Packets that were not served over the life of a box, by reason.
fn drops(summary: &Summary) -> Vec<(String, u64)> {
    let mut drops = Vec::new();
    for &counter in Counter::ALL.iter().filter(|c| c.is_drop()) {
        let n = summary.cores.iter().map(|c| c.counters.get(counter)).sum();
        drops.push((counter.name(), n));
    }
    drops.extend(summary.verdicts.iter().filter(|(name, _)| name.starts_with("drop")));
    drops.retain(|(_, n)| *n > 0);
    drops.into_iter().map(|(name, n): (&str, u64)| (name.to_owned(), n)).collect()
}

/// The box's configuration.
fn config(settings: &Settings, place: &Place) -> String {
    let mut text = String::from("[control]\nlisten = \"127.0.0.1:0\"\n[data]\n");
    let jobs = u64::from(CHUNKS) * (u64::from(settings.workers) + 1) + 4 * u64::from(RING);
    let frame_bytes = if settings.mtu > 1500 { 4096 } else { 2048 };
    let memory_mib = ((jobs * frame_bytes) >> 20) + 1;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "port = \"{}\"", settings.port);
    if settings.port == Port::Xdp {
        let _ = writeln!(text, "interface = \"{}\"", place.box_interface());
        let _ = writeln!(text, "transmit = \"{}\"", settings.transmit.name());
    }
    let _ = writeln!(
        text,
        "addresses = [\"{}\"]\nport_base = {PORT_BASE}\nqueues = 1\ncpus = [{}]\nmtu = {}\n\
         memory_mib = {memory_mib}\nfill_ring = {RING}\nrx_ring = {RING}\ntx_ring = {RING}\n\
         completion_ring = {RING}\nidle = \"poll\"",
        super::network::BOX_ADDRESS,
        settings.box_cpu,
        settings.mtu,
    );
    text
}
