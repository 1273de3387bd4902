//! What the box has done, printed when it stops.

use crate::dataplane::core::Core;
use crate::dataplane::counters::{Counter, Counters, FrameCounts};
use crate::dataplane::port::Port;
use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use std::fmt;
use std::time::Duration;

/// What one core has done.
#[derive(Clone, Debug)]
pub struct CoreSummary {
    /// Its shard.
    pub shard: u16,
    /// CPU that it was to be pinned to.
    pub cpu: Option<usize>,
    /// How long it ran.
    pub ran: Duration,
    /// How long it had work.
    pub busy: Duration,
    /// Its counters.
    pub counters: Counters,
    /// Its frames at the end.
    pub frames: FrameCounts,
    /// Microseconds from a slot's first part to its completion.
    pub latency_us: Histogram<u64>,
}

impl CoreSummary {
    /// The numbers of `core` as it stops.
    pub(super) fn of(
        core: &Core,
        port: &impl Port,
        shard: u16,
        cpu: Option<usize>,
        ran: Duration,
    ) -> Self {
        Self {
            shard,
            cpu,
            ran,
            busy: core.busy(),
            counters: core.counters().clone(),
            frames: core.frames(port),
            latency_us: core.report().latency_us.clone(),
        }
    }

    /// Gigabits of gradient taken in per second of work.
    #[must_use]
    pub fn gbps_while_busy(&self) -> f64 {
        let bits = self.counters.get(Counter::PushedBytes) as f64 * 8.0;
        let seconds = self.busy.as_secs_f64();
        if seconds > 0.0 { bits / seconds / 1e9 } else { 0.0 }
    }

    /// Share of the time that had work, from 0 to 1.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        let ran = self.ran.as_secs_f64();
        if ran > 0.0 { self.busy.as_secs_f64() / ran } else { 0.0 }
    }

    /// Packets that were not served, by reason, without those that never occurred.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counters.iter().filter(|(c, n)| *n > 0 && c.is_drop()).map(|(c, n)| (c.name(), n))
    }
}

/// What the box has done.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How long it served.
    pub uptime: Duration,
    /// The cores, by shard.
    pub cores: Vec<CoreSummary>,
    /// What the XDP program decided, by name; empty for the `udp` port.
    pub verdicts: Vec<(&'static str, u64)>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "served {:.1} s", self.uptime.as_secs_f64())?;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header([
            "core",
            "cpu",
            "rx packets",
            "tx packets",
            "completed",
            "resent",
            "busy",
            "Gbps while busy",
            "p50 us",
            "p99 us",
            "max us",
            "frames",
        ]);
        for c in &self.cores {
            let count = |counter| c.counters.get(counter).to_string();
            let latency = |q| c.latency_us.value_at_quantile(q).to_string();
            table.add_row([
                c.shard.to_string(),
                c.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
                count(Counter::RxPackets),
                count(Counter::TxPackets),
                count(Counter::Completed),
                count(Counter::Resent),
                format!("{:.1} %", c.busy_share() * 100.0),
                format!("{:.2}", c.gbps_while_busy()),
                latency(0.5),
                latency(0.99),
                c.latency_us.max().to_string(),
                if c.frames.balanced() {
                    "balanced".to_owned()
                } else {
                    format!("LOST: {:?}", c.frames)
                },
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{table}")?;
        for c in &self.cores {
            for (name, count) in c.drops() {
                writeln!(f, "core {}: {name} {count}", c.shard)?;
            }
        }
        for (name, count) in self.verdicts.iter().filter(|(_, n)| *n > 0) {
            writeln!(f, "xdp: {name} {count}")?;
        }
        Ok(())
    }
}
