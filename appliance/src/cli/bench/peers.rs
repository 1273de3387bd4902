//! `gradbox bench peers`.

use super::{Found, core_and_load};
use crate::bench::path::cores::Effort;
use crate::bench::peers::{memory, network};
use anyhow::bail;

/// The same work done by what one would use instead. Needs root.
#[derive(clap::Args, Default)]
pub(super) struct RunPeers {
    /// Numbers of workers on the network, 1 to 32 (4).
    #[arg(long, value_delimiter = ',')]
    workers: Vec<u8>,
}

impl RunPeers {
    pub(super) fn run(&self, found: &mut Found) -> anyhow::Result<()> {
        let usual = [4];
        let workers = if self.workers.is_empty() { &usual[..] } else { &self.workers };
        if let Some(workers) = workers.iter().find(|w| !(1..=32).contains(*w)) {
            bail!("--workers {workers}: needs 1 to 32");
        }
        let effort = if found.tiny { Effort::Tiny } else { Effort::Full };
        let cpus = core_and_load();
        found.working_on("peers: in memory");
        for figure in memory::measure(cpus.0, effort)? {
            found.add(figure);
        }
        for &workers in workers {
            found.working_on(format!("peers: {workers} workers on a network"));
            network::measure(workers, cpus, effort, |figure| found.add(figure))?;
        }
        Ok(())
    }
}
