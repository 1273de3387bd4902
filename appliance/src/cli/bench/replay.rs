//! `gradbox bench replay`.

use super::{Found, cpus};
use crate::bench::replay::{self, Rate, Settings};
use crate::bench::wire::Port;
use anyhow::Context;
use gradbox_protocol::{DType, Reply};

/// The all-reduces of a training step, by worker processes over links of their own. Needs root.
#[derive(clap::Args)]
pub(super) struct RunReplay {
    /// Model, such as resnet50, or a table of tensors (header `index,name,numel`).
    #[arg(long, value_name = "NAME|CSV", default_value = "resnet50")]
    model: String,
    /// Workers, 2 to 32.
    #[arg(long, default_value_t = 4)]
    workers: u8,
    /// Iterations of the training.
    #[arg(long, default_value_t = 5)]
    iterations: u32,
    /// Rate of each worker's link, such as 1gbit; not limited without.
    #[arg(long, value_name = "RATE")]
    link: Option<Rate>,
    /// Type of the gradient: f32, f16, bf16 or i32.
    #[arg(long, default_value_t = DType::F32)]
    dtype: DType,
    /// Type that f32 travels as: bf16 or f16.
    #[arg(long, value_name = "DTYPE")]
    wire_dtype: Option<DType>,
    /// MTU of the links, 144 to 3498.
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// How results come: unicast, one for each worker, or multicast, one for all.
    #[arg(long, default_value_t = Reply::Unicast)]
    reply: Reply,
    /// Port of the box.
    #[arg(long, default_value_t = Port::Xdp)]
    port: Port,
}

impl Default for RunReplay {
    fn default() -> Self {
        Self {
            model: "resnet50".into(),
            workers: 4,
            iterations: 3,
            link: None,
            dtype: DType::F32,
            wire_dtype: None,
            mtu: 1500,
            reply: Reply::Unicast,
            port: Port::Xdp,
        }
    }
}

impl RunReplay {
    pub(super) fn run(&self, found: &mut Found) -> anyhow::Result<()> {
        let cpus = cpus();
        let mut settings = Settings {
            model: self.model.clone(),
            workers: self.workers,
            iterations: self.iterations,
            link: self.link,
            dtype: self.dtype,
            wire_dtype: self.wire_dtype,
            mtu: self.mtu,
            reply: self.reply,
            port: self.port,
            cpu: cpus.last().copied().filter(|_| cpus.len() > 1),
        };
        if found.tiny {
            (settings.model, settings.workers) = ("resnet18".into(), 2);
            settings.iterations = 1;
        }
        let link = settings.link.map_or("no limit".to_owned(), |rate| rate.to_string());
        let Settings { model, workers, .. } = &settings;
        found.working_on(format!("replay: {model}, {workers} workers, links: {link}"));
        let program = std::env::current_exe().context("where is this program?")?;
        found.add(replay::measure(&settings, &program)?);
        Ok(())
    }

    /// What runs where nothing was asked for: without a limit, and at the rate of a usual
    /// network, with both sizes of packets.
    pub(super) fn suite(found: &mut Found) -> anyhow::Result<()> {
        let usual = Self::default();
        usual.run(found)?;
        let link = "1gbit".parse().map_err(anyhow::Error::msg)?;
        let limited = Self { link: Some(link), ..usual };
        limited.run(found)?;
        // Here the CPUs of a small machine are not what limits it.
        Self { mtu: 3498, ..limited }.run(found)
    }
}
