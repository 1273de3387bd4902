//! The metrics, in the text format of OpenMetrics that Prometheus reads.

use super::plane::{CoreSide, Plane};
use crate::dataplane::counters::{Counter, Reading};
use crate::dataplane::handle::Report;
use gradbox_protocol::control::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// Content type of what [`render`] gives.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of the completion histogram's buckets, in microseconds; the last bucket has none.
const BUCKETS_US: [u64; 16] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
    10_000_000, 60_000_000,
];

/// All numbers of one moment.
#[derive(Debug)]
struct Snapshot {
    status: Status,
    cores: Vec<Core>,
    capturing: bool,
    /// Verdicts of the source filter.
    filter: Vec<(&'static str, u64)>,
}

#[derive(Debug)]
struct Core {
    name: String,
    reading: Reading,
    reserved: u64,
    capacity: u64,
    latency: Option<Latency>,
}

/// Completion latency in seconds.
#[derive(Debug)]
struct Latency {
    sum: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl Latency {
    fn of(report: &Report) -> Self {
        let mut counts = [0; BUCKETS_US.len() + 1];
        let mut sum_us = 0.0;
        for step in report.latency_us.iter_recorded() {
            let (us, count) = (step.value_iterated_to(), step.count_at_value());
            counts[BUCKETS_US.partition_point(|end| *end < us)] += count;
            sum_us += us as f64 * count as f64;
        }
        let ends = BUCKETS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::MAX]);
        let count = report.latency_us.len();
        Self { sum: sum_us / 1e6, count, buckets: ends.zip(counts).collect() }
    }
}

/// The metrics as of now.
///
/// # Errors
/// Where the text cannot be written, which a string always can.
pub(super) fn render(plane: &mut Plane) -> Result<String, fmt::Error> {
    let status = plane.status();
    let reserved = plane.registry.reserved();
    let core = |(core, reserved): (&CoreSide, u64)| Core {
        name: core.handle.shard.to_string(),
        reading: core.handle.shown.read(),
        reserved,
        capacity: core.handle.capacity,
        latency: core.report.as_deref().map(Latency::of),
    };
    let cores = plane.cores.iter().zip(reserved).map(core).collect();
    let filter = plane.sources.counters().unwrap_or_else(|error| {
        tracing::warn!(%error, "the source filter's counters cannot be read");
        Vec::new()
    });
    let capturing = plane.captures.is_on();
    let mut registry = Registry::with_prefix("gradbox");
    registry.register_collector(Box::new(Snapshot { status, cores, capturing, filter }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.the_box(&mut encoder)?;
        self.cores(&mut encoder)?;
        self.frames(&mut encoder)?;
        self.jobs(&mut encoder)
    }
}

/// Name, help and value of a gauge that each core has.
type OfCore = (&'static str, &'static str, fn(&Core) -> u64);

type Encoder<'a, 'b> = &'a mut DescriptorEncoder<'b>;

impl Snapshot {
    fn the_box(&self, e: Encoder<'_, '_>) -> fmt::Result {
        let info = &self.status.info;
        let (version, protocol) = (info.version.as_str(), info.protocol.to_string());
        let labels = [
            ("version", version),
            ("protocol", protocol.as_str()),
            ("port", info.port.as_str()),
            ("mode", info.mode.as_str()),
        ];
        e.encode_descriptor("build", "What this box is.", None, MetricType::Info)?
            .encode_info(&labels)?;
        gauge(e, "uptime_seconds", "Seconds since the box became ready.")?
            .encode_gauge(&self.status.uptime_s)?;
        gauge(e, "capture_on", "1 while packets are captured.")?
            .encode_gauge(&u64::from(self.capturing))?;
        gauge(e, "jobs", "Jobs, forming ones included.")?
            .encode_gauge(&(self.status.jobs.len() as u64))?;
        if self.filter.is_empty() {
            return Ok(());
        }
        let help = "Packets by what the XDP program decided.";
        let mut metric = counter(e, "xdp_packets", help)?;
        for (verdict, n) in &self.filter {
            count(&mut metric, &[("verdict", verdict)], *n)?;
        }
        Ok(())
    }

    fn cores(&self, e: Encoder<'_, '_>) -> fmt::Result {
        for &what in Counter::ALL {
            let mut metric = counter(e, what.name(), what.help())?;
            for core in &self.cores {
                count(&mut metric, &[("core", &core.name)], core.reading.counters.get(what))?;
            }
        }
        let mut metric = counter(e, "busy_seconds", "Seconds spent in steps that had work.")?;
        for core in &self.cores {
            metric
                .encode_family(&[("core", core.name.as_str())])?
                .encode_counter::<NoLabelSet, f64, u64>(
                    &(core.reading.busy_ns as f64 / 1e9),
                    None,
                )?;
        }
        let help = "Seconds from a slot's first part to its completion.";
        let mut metric =
            e.encode_descriptor("completion_seconds", help, None, MetricType::Histogram)?;
        for core in &self.cores {
            let Some(l) = &core.latency else { continue };
            metric
                .encode_family(&[("core", core.name.as_str())])?
                .encode_histogram::<NoLabelSet>(l.sum, l.count, &l.buckets, None)?;
        }
        Ok(())
    }

    fn frames(&self, e: Encoder<'_, '_>) -> fmt::Result {
        let mut metric = gauge(e, "frames", "Frames by state; they add up to frames_all.")?;
        for core in &self.cores {
            for (state, n) in core.reading.frames.states() {
                let labels = [("core", core.name.as_str()), ("state", state)];
                metric.encode_family(&labels)?.encode_gauge(&n)?;
            }
        }
        let of_cores: [OfCore; 4] = [
            ("frames_all", "Frames of the UMEM.", |c| c.reading.frames.total),
            ("frames_balanced", "1 where the states add up to all frames.", |c| {
                c.reading.frames.balanced().into()
            }),
            ("job_frames_reserved", "Frames that jobs have reserved.", |c| c.reserved),
            ("job_frames_available", "Frames that jobs may still reserve.", |c| {
                c.capacity.saturating_sub(c.reserved)
            }),
        ];
        for (name, help, value) in of_cores {
            let mut metric = gauge(e, name, help)?;
            for core in &self.cores {
                let labels = [("core", core.name.as_str())];
                metric.encode_family(&labels)?.encode_gauge(&value(core))?;
            }
        }
        Ok(())
    }

    fn jobs(&self, e: Encoder<'_, '_>) -> fmt::Result {
        let ranks = || {
            self.status.jobs.iter().flat_map(|job| {
                job.ranks.iter().map(move |rank| (job, rank, rank.rank.to_string()))
            })
        };
        let mut metric = counter(e, "job_pushed", "Chunks taken from a rank in its generation.")?;
        for (job, rank, name) in ranks() {
            count(&mut metric, &[("job", &job.name), ("rank", &name)], rank.pushed)?;
        }
        let help = "Chunks that were complete only when this rank's part came.";
        let mut metric = counter(e, "job_last", help)?;
        for (job, rank, name) in ranks() {
            count(&mut metric, &[("job", &job.name), ("rank", &name)], rank.last)?;
        }
        let help = "1 for the rank that has pushed least, where others have pushed more.";
        let mut metric = gauge(e, "job_waiting_for", help)?;
        for (job, rank, name) in ranks() {
            let labels = [("job", job.name.as_str()), ("rank", name.as_str())];
            let waiting = u64::from(job.waiting_for == Some(rank.rank));
            metric.encode_family(&labels)?.encode_gauge(&waiting)?;
        }
        let per_job = |e: Encoder<'_, '_>, name, help, value: fn(&_) -> u64| {
            let mut metric = gauge(e, name, help)?;
            for job in &self.status.jobs {
                metric.encode_family(&[("job", job.name.as_str())])?.encode_gauge(&value(job))?;
            }
            Ok(())
        };
        type Job = gradbox_protocol::control::JobStatus;
        per_job(e, "job_generation", "Generation that is running.", |j: &Job| j.generation.into())?;
        per_job(
            e,
            "job_reserved_bytes",
            "Bytes of frames that the job holds reserved.",
            |j: &Job| j.reserved_bytes,
        )
    }
}

fn counter<'a>(
    e: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    e.encode_descriptor(name, help, None, MetricType::Counter)
}

fn gauge<'a>(
    e: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    e.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn count<const N: usize>(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    value: u64,
) -> fmt::Result {
    metric.encode_family(labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)
}
