//! A bar on a terminal, otherwise a line per round.

use crate::record::Round;
use gradbox_client::{Error, Report, Tensor, Worker};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often the bar moves.
const LOOK: Duration = Duration::from_millis(100);

/// How a run is shown on standard error.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `bytes` is what one of the `rounds` receives.
    pub(super) fn new(wanted: bool, rounds: u32, bytes: u64) -> Self {
        let shown = wanted && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let bar = ProgressBar::new(bytes * u64::from(rounds));
            let style = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {elapsed} {msg}";
            // The template is a constant: were it wrong, the default style would do.
            bar.with_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        Self { bar }
    }

    /// All-reduces `tensors`, at most for `timeout`.
    pub(super) fn reduce(
        &self,
        worker: &Worker,
        tensors: &mut Vec<Tensor>,
        timeout: Duration,
    ) -> Result<Report, Error> {
        let start = Instant::now();
        let look = if self.bar.is_some() { LOOK } else { timeout };
        let mut handle =
            worker.all_reduce_async(std::mem::take(tensors).into_iter().enumerate().collect())?;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match handle.wait(Some(left.min(look))) {
                Ok(finished) => {
                    self.moved(worker, "");
                    tensors.extend(finished.tensors.into_iter().map(|(_, tensor)| tensor));
                    return Ok(finished.report);
                }
                Err(Error::Timeout(stall)) if !left.is_zero() => {
                    self.moved(worker, &stall.to_string());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn moved(&self, worker: &Worker, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(worker.stats().bytes_received);
            bar.set_message(message.to_owned());
        }
    }

    /// Tells of a round that is done.
    pub(super) fn line(&self, round: u32, done: &Round) {
        if self.bar.is_none() {
            let seconds = done.seconds();
            let gbps = done.bytes as f64 * 8e-9 / seconds.max(1e-9);
            eprintln!(
                "round {round}: {} bytes in {seconds:.3} s, {gbps:.2} Gbit/s, {} packets sent again",
                done.bytes, done.resent
            );
        }
    }

    /// Ends the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}
