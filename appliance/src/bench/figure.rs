//! What a benchmark found, as it is written to a file: schema 1, described in
//! `docs/benchmarks.md`.

use super::machine::Machine;
use super::spread::Spread;
use gradbox_protocol::{DType, Op, Reply};
use serde::{Deserialize, Serialize};

/// Version of the file's layout. A field may be added without a new version; none changes its
/// meaning or goes.
pub const SCHEMA: u32 = 1;

/// A file of figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Where they were taken.
    pub machine: Machine,
    /// Taken with tiny sizes: they mean nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tiny: bool,
    /// One for each line of the tables.
    pub results: Vec<Figure>,
}

/// Why there are no figures in a file.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    /// It was not written by a benchmark.
    #[error("not a file of figures: {0}; needs one that bench wrote with --json or --report")]
    Format(#[from] serde_json::Error),
    /// It was written by another Gradbox.
    #[error(
        "figures of schema {found}; this Gradbox reads schema {SCHEMA}: read them with the one \
         that wrote them, or measure again"
    )]
    Schema {
        /// The file's schema.
        found: u32,
    },
}

impl Figures {
    /// Reads what was written with [`Figures::to_json`].
    ///
    /// # Errors
    /// Where `text` is something else, or has another schema.
    pub fn from_json(text: &str) -> Result<Self, FiguresError> {
        /// What all schemas have.
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        // First of all, as nothing else may be there in another schema.
        let Head { schema: found } = serde_json::from_str(text)?;
        if found != SCHEMA {
            return Err(FiguresError::Schema { found });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The text of a file, with the end of its last line.
    ///
    /// # Errors
    /// None, as far as is known: every figure can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bench {
    /// The sum kernels alone.
    Sum,
    /// `step()` on the `mem` port.
    Path,
    /// The box on an interface.
    Wire,
    /// The same work done by others.
    Peers,
    /// The all-reduces of a model's training step.
    Replay,
}

/// Where the memory that is worked on has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum WorkingSet {
    /// The first-level cache.
    L1,
    /// The second-level cache.
    L2,
    /// The last-level cache.
    L3,
    /// Memory.
    Dram,
}

impl WorkingSet {
    /// All of them, smallest first.
    pub const ALL: [Self; 4] = [Self::L1, Self::L2, Self::L3, Self::Dram];

    /// Name in tables and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::L2 => "l2",
            Self::L3 => "l3",
            Self::Dram => "dram",
        }
    }
}

/// In which order the ranks' packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// Each rank sends a window of chunks, then the next rank sends the same.
    #[value(name = "in_step")]
    InStep,
    /// Each rank sends its whole gradient, then the next rank does.
    Async,
}

impl Arrival {
    /// Name in tables and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InStep => "in_step",
            Self::Async => "async",
        }
    }
}

macro_rules! figure {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// One line. Fields that do not apply are left out.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct Figure {
            /// The benchmark.
            pub bench: Bench,
            $(
                $(#[$doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )*
            /// Quarters of the main figure, in its unit: of `seconds` where that is given, else of
            /// `gbps_per_core`, `gbps` or `gbytes_per_s`, whichever comes first.
            pub spread: [f64; 2],
            /// The bits of a sample of results were compared with the reference.
            pub checked: bool,
        }

        impl Figure {
            /// A figure without any figures.
            #[must_use]
            pub const fn new(bench: Bench) -> Self {
                Self { bench, $($name: None,)* spread: [0.0, 0.0], checked: false }
            }
        }
    };
}

figure! {
    /// Who does the work, where it may be another than Gradbox.
    system: String,
    /// Element type on the wire.
    dtype: DType,
    /// Operation, where it is not the sum.
    op: Op,
    /// Workers.
    workers: u32,
    /// MTU that the packets fill.
    mtu: u32,
    /// Gradient bytes of a packet.
    payload_bytes: u32,
    /// Where the memory has room.
    working_set: WorkingSet,
    /// Order of the packets.
    arrival: Arrival,
    /// Replies: `unicast` is one for each worker, `multicast` one in all.
    reply: Reply,
    /// Port of the data plane: `xdp` or `udp`.
    port: String,
    /// How the port got its packets: `copy`, `zerocopy`, `udp`.
    mode: String,
    /// What sent the answers: `ring`, `socket`.
    transmit: String,
    /// Segmentation and checksum offloads of the interfaces: on or off.
    offloads: bool,
    /// TCP's congestion control.
    congestion_control: String,
    /// Vector unit of the sums.
    isa: String,
    /// Model that was replayed.
    model: String,
    /// Rate of each worker's link in Gbit/s, where it is limited.
    link_gbps: f64,
    /// Cores that worked at the same time.
    cores: u32,
    /// Gradient bits taken in and summed, per second: one bit of each worker's gradient counts
    /// as one.
    gbps: f64,
    /// The same per core that was busy all the time.
    gbps_per_core: f64,
    /// `gbps_per_core` is worked out from the share of time that the core was busy.
    derived: bool,
    /// For each packet received.
    ns_per_packet: f64,
    /// Of `ns_per_packet`: rings.
    ns_rings: f64,
    /// Of `ns_per_packet`: parsing, checks and slots.
    ns_parse_slot: f64,
    /// Of `ns_per_packet`: its share of the sum.
    ns_sum: f64,
    /// Of `ns_per_packet`: turning the packet round.
    ns_reflect: f64,
    /// Gradient bytes summed, 1e9 per second.
    gbytes_per_s: f64,
    /// The machine's own limit for the same memory traffic, in the same run, in the unit of the
    /// main figure.
    limit: f64,
    /// Main figure in percent of the limit.
    percent_of_limit: f64,
    /// CPU seconds of the aggregator for 1e9 bytes of gradient.
    cpu_s_per_gb: f64,
    /// This line's work per CPU second over that of Gradbox's line of the same kind.
    ratio: f64,
    /// Gradient bits per second that the load offered.
    offered_gbps: f64,
    /// Gradient bits per second that reached the box.
    received_gbps: f64,
    /// Share of time that the box's core worked.
    busy_share: f64,
    /// Share of the workers' packets that were sent again.
    resent_share: f64,
    /// Packets that were not served, by reason.
    drops: Vec<(String, u64)>,
    /// Microseconds from a chunk's first packet to its sum: half of them.
    latency_p50_us: u64,
    /// The same: 99 of 100.
    latency_p99_us: u64,
    /// The same: 999 of 1000.
    latency_p999_us: u64,
    /// Seconds for an iteration.
    seconds: f64,
    /// Seconds for an iteration that the links allow.
    ideal_seconds: f64,
    /// Command that gives this figure again.
    command: String,
}

impl Figure {
    /// Sets the spread of the main figure.
    #[must_use]
    pub const fn with_spread(mut self, spread: Spread) -> Self {
        self.spread = [spread.low, spread.high];
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_apply_is_left_out() {
        let mut figure = Figure::new(Bench::Path);
        figure.working_set = Some(WorkingSet::L3);
        figure.arrival = Some(Arrival::InStep);
        figure.gbps_per_core = Some(200.0);
        figure.checked = true;
        let figure = figure.with_spread(Spread { low: 190.0, median: 200.0, high: 210.0 });
        let text = serde_json::to_string(&figure).expect("JSON");
        let expected = r#"{"bench":"path","working_set":"l3","arrival":"in_step","gbps_per_core":200.0,"spread":[190.0,210.0],"checked":true}"#;
        assert_eq!(text, expected);
        let back: Figure = serde_json::from_str(&text).expect("a figure");
        assert_eq!(back, figure);
    }

    #[test]
    fn a_file_is_read_back_and_another_schema_is_refused() {
        let results = vec![Figure::new(Bench::Sum)];
        let figures = Figures { schema: SCHEMA, machine: Machine::describe(), tiny: true, results };
        let text = figures.to_json().expect("JSON");
        assert_eq!(Figures::from_json(&text).expect("figures"), figures);
        let message = |text: &str| Figures::from_json(text).expect_err("a refusal").to_string();
        let other = message(r#"{"schema":2,"new":"field"}"#);
        assert!(other.contains("schema 2") && other.contains("reads schema 1"), "{other}");
        for text in ["", "[]", "{}", r#"{"schema":-1}"#, r#"{"schema":1,"results":[]}"#] {
            assert!(message(text).starts_with("not a file of figures"), "{text}");
        }
    }
}
