//! `gradbox bench replay`: the all-reduces of a model's training step, by workers that are
//! processes of their own, over links of their own.
//!
//! All tensors are reduced in the order in which backward produces them, in buckets. Computing is
//! left out: the whole gradient is there when an iteration begins. An iteration lasts from when the
//! last worker was ready to when the last one had its result; the workers begin it together, so
//! that generating and verifying do not count.

mod busy;
mod link;
mod workers;

pub use link::Rate;

use super::figure::{Bench, Figure};
use super::network::{BOX_ADDRESS, BOX_INTERFACE, NetworkError, Star, Wire};
use super::running::{self, RunningBox, RunningError};
use super::spread::Spread;
use super::wire::Port;
use crate::model::{Model, ModelError};
use crate::record::{self, Record, RecordError};
use busy::Busy;
use gradbox_protocol::control::TensorEntry;
use gradbox_protocol::{DType, Reply, chunk_bytes};
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};
use workers::{PATIENCE, Workers};

/// Size of buckets: what PyTorch's `DistributedDataParallel` takes by default.
pub const BUCKET_MIB: u32 = 25;

/// How often the box and the workers are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Longest packets of the box, in bytes.
const MOST_MTU: u16 = 3498;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of a model that is built in, or path of a table.
    pub model: String,
    /// Workers, 2 to 32.
    pub workers: u8,
    /// Iterations, 1 or more.
    pub iterations: u32,
    /// Rate of each worker's link, where it is limited.
    pub link: Option<Rate>,
    /// Type of the gradient.
    pub dtype: DType,
    /// Type that it travels as, where that is another.
    pub wire_dtype: Option<DType>,
    /// MTU of all links, 144 to 3498.
    pub mtu: u16,
    /// How results come.
    pub reply: Reply,
    /// Port of the box.
    pub port: Port,
    /// CPU of the box's core, where it is to be pinned.
    pub cpu: Option<usize>,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A setting that is out of range.
    #[error("{setting} {found}: needs {needed}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What it is.
        found: u64,
        /// What it can be.
        needed: &'static str,
    },
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The box.
    #[error(transparent)]
    Box(#[from] RunningError),
    /// A worker's output has nowhere to go, or cannot be read.
    #[error("cannot keep what rank {rank} prints in memory, or watch it: {source}")]
    Memory {
        /// Rank.
        rank: u8,
        /// What the system said.
        source: io::Error,
    },
    /// A worker failed.
    #[error("rank {rank} failed ({status}): {said}")]
    Worker {
        /// Rank.
        rank: u8,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// Workers that do not end.
    #[error("the workers have not ended after {seconds} s and were killed: is the machine busy?")]
    Slow {
        /// Seconds that they were waited for.
        seconds: u64,
    },
    /// What a worker wrote.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl Settings {
    /// # Errors
    /// Where a setting is out of range.
    fn check(&self) -> Result<u16, ReplayError> {
        let wrong = |setting, found, needed| Err(ReplayError::Setting { setting, found, needed });
        if !(2..=32).contains(&self.workers) {
            return wrong("--workers", self.workers.into(), "2 to 32");
        }
        if self.iterations == 0 {
            return wrong("--iterations", 0, "1 or more");
        }
        match chunk_bytes(self.mtu.into()) {
            Some(bytes) if self.mtu <= MOST_MTU => Ok(bytes),
            _ => wrong("--mtu", self.mtu.into(), "144 to 3498"),
        }
    }

    const fn on_the_wire(&self) -> DType {
        match self.wire_dtype {
            Some(dtype) => dtype,
            None => self.dtype,
        }
    }

    /// The configuration of a box for a job of `buckets`.
    fn box_config(&self, buckets: &[TensorEntry], chunk_bytes: u16) -> String {
        let frame_bytes: u64 = if self.mtu <= 1500 { 2048 } else { 4096 };
        let size = self.on_the_wire().size() as u64;
        let chunks = buckets.iter().map(|b| (b.elements * size).div_ceil(chunk_bytes.into()));
        // For every chunk a frame of each worker and one of the result before; the barrier; rings.
        let frames = (chunks.sum::<u64>() + 1) * (u64::from(self.workers) + 1) + 65_536;
        let memory_mib = ((frames * frame_bytes) >> 20) + 1;
        let (port, mtu) = (self.port.name(), self.mtu);
        let mut text = format!(
            "[control]\nlisten = \"{BOX_ADDRESS}:9099\"\n\
             [data]\nport = \"{port}\"\naddresses = [\"{BOX_ADDRESS}\"]\nmtu = {mtu}\n\
             memory_mib = {memory_mib}\nfill_ring = 8192\nrx_ring = 8192\ntx_ring = 8192\n\
             completion_ring = 8192\nidle = \"poll\"\n"
        );
        if self.port == Port::Xdp {
            text += &format!("interface = \"{BOX_INTERFACE}\"\n");
        }
        if let Some(cpu) = self.cpu {
            text += &format!("cpus = [{cpu}]\n");
        }
        text
    }
}

/// Replays a training step; `program` is Gradbox, to be run as workers.
///
/// # Errors
/// Where a setting is out of range, there is no permission, no network, no box, or a worker fails:
/// also where a bit of a result is wrong.
pub fn measure(settings: &Settings, program: &Path) -> Result<Figure, ReplayError> {
    let chunk_bytes = settings.check()?;
    let model = Model::open(&settings.model)?;
    let buckets = model.buckets(settings.dtype, u64::from(BUCKET_MIB) << 20);
    let wire = Wire { mtu: settings.mtu, queues: 1 };
    let rate = settings.link.map(Rate::bits_per_second);
    let star = Star::new(settings.workers, wire, rate)?;
    let the_box = RunningBox::start(&star.boxes, &settings.box_config(&buckets, chunk_bytes))?;
    let before = the_box.reading();
    let mut workers = Workers::start(&star, settings, program, the_box.control())?;
    let busy = watch(&mut workers, &the_box, settings.iterations)?;
    let records = workers.records()?;
    let drops = running::drops(&before, &the_box.reading());
    let (port, mode) = (the_box.info().port.clone(), the_box.info().mode.clone());
    drop(the_box.stop());

    let spans = record::rounds(&records)?;
    let mut seconds: Vec<f64> = spans.iter().map(|(a, b)| (b - a) as f64 / 1e9).collect();
    let spread = Spread::of(&mut seconds);
    let bytes = records.first().and_then(|r| r.rounds.first()).map_or(0, |r| r.bytes);
    let ideal = settings.link.map(|rate| rate.ideal_seconds(bytes, chunk_bytes));
    let mut figure = Figure::new(Bench::Replay).with_spread(spread);
    figure.model = Some(model.name);
    figure.port = Some(port);
    figure.mode = Some(mode);
    figure.dtype = Some(settings.on_the_wire());
    figure.workers = Some(settings.workers.into());
    figure.mtu = Some(settings.mtu.into());
    figure.reply = Some(settings.reply);
    figure.link_gbps = settings.link.map(|r| r.bits_per_second() as f64 / 1e9);
    figure.seconds = Some(spread.median);
    figure.ideal_seconds = ideal;
    figure.limit = ideal;
    figure.percent_of_limit = ideal.map(|ideal| 100.0 * ideal / spread.median);
    figure.gbps = Some(f64::from(settings.workers) * bytes as f64 * 8e-9 / spread.median);
    figure.resent_share = Some(resent_share(&records));
    figure.busy_share = Some(busy.share(&spans));
    figure.drops = Some(drops);
    figure.checked = records.iter().all(|r| r.verified == Some(true));
    figure.command = Some(command(settings));
    Ok(figure)
}

/// Waits for the workers' end, and notes how busy the box is meanwhile.
fn watch(
    workers: &mut Workers,
    the_box: &RunningBox,
    iterations: u32,
) -> Result<Busy, ReplayError> {
    let mut busy = Busy::default();
    // Each of join, barrier and round is bounded; so this is for workers that do not run at all.
    let seconds = u64::from(PATIENCE) * (2 * u64::from(iterations) + 2);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        busy.note(record::monotonic_ns(), the_box.reading().busy_ns);
        if workers.have_ended()? {
            return Ok(busy);
        }
        if Instant::now() > deadline {
            return Err(ReplayError::Slow { seconds });
        }
        thread::sleep(LOOK);
    }
}

/// Share of the workers' PUSH that they sent again.
fn resent_share(records: &[Record]) -> f64 {
    let rounds = || records.iter().flat_map(|r| &r.rounds);
    let pushed: u64 = rounds().map(|r| r.pushed).sum();
    let resent: u64 = rounds().map(|r| r.resent).sum();
    resent as f64 / pushed.max(1) as f64
}

/// The command that replays the same again.
fn command(settings: &Settings) -> String {
    let Settings { model, workers, iterations, dtype, mtu, reply, port, .. } = settings;
    let mut text = format!(
        "gradbox bench replay --model {model} --workers {workers} --iterations {iterations} \
         --dtype {dtype} --mtu {mtu} --reply {reply} --port {}",
        port.name()
    );
    if let Some(wire) = settings.wire_dtype {
        text += &format!(" --wire-dtype {wire}");
    }
    if let Some(link) = settings.link {
        text += &format!(" --link {link}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn settings() -> Settings {
        Settings {
            model: "resnet18".into(),
            workers: 4,
            iterations: 3,
            link: None,
            dtype: DType::F32,
            wire_dtype: None,
            mtu: 1500,
            reply: Reply::Unicast,
            port: Port::Xdp,
            cpu: Some(1),
        }
    }

    #[test]
    fn settings_are_checked() {
        assert_eq!(settings().check().unwrap(), 1408);
        assert_eq!(Settings { mtu: 3498, ..settings() }.check().unwrap(), 3392);
        for (wrong, says) in [
            (Settings { workers: 1, ..settings() }, "--workers 1: needs 2 to 32"),
            (Settings { mtu: 9000, ..settings() }, "--mtu 9000"),
            (Settings { iterations: 0, ..settings() }, "--iterations 0"),
        ] {
            assert!(wrong.check().unwrap_err().to_string().starts_with(says));
        }
    }

    #[test]
    fn the_box_has_room_for_the_job() {
        let buckets = Model::open("resnet18").unwrap().buckets(DType::F32, 25 << 20);
        for settings in [
            settings(),
            Settings { port: Port::Udp, cpu: None, ..settings() },
            Settings { wire_dtype: Some(DType::Bf16), mtu: 3498, ..settings() },
        ] {
            let chunk = settings.check().unwrap();
            let config = settings.box_config(&buckets, chunk);
            let config = Config::parse(&config, Path::new("test")).unwrap();
            let bytes = 11_689_512 * settings.on_the_wire().size() as u64;
            assert!(config.job_frames_per_core() > 5 * bytes.div_ceil(chunk.into()));
        }
    }

    #[test]
    fn the_command_says_what_is_not_usual() {
        let link = Some("1gbit".parse().unwrap());
        let text = command(&Settings { link, wire_dtype: Some(DType::Bf16), ..settings() });
        assert!(text.contains("--model resnet18 --workers 4 --iterations 3"), "{text}");
        assert!(text.ends_with("--port xdp --wire-dtype bf16 --link 1gbit"), "{text}");
    }
}
