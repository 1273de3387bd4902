//! Figures as tables.

use super::figure::{Bench, Figure};
use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};

/// One column: its title, and what a figure has to say there.
type Column = (&'static str, fn(&Figure) -> String);

/// The table of one benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet {
    /// The benchmark.
    pub bench: Bench,
    /// What it is.
    pub title: &'static str,
    /// Titles of the columns, and whether they hold numbers.
    pub columns: Vec<(&'static str, bool)>,
    /// The lines, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The tables of all benchmarks that there are figures of. A column that no line has anything to
/// say in is left out.
#[must_use]
pub fn sheets(figures: &[Figure]) -> Vec<Sheet> {
    [
        (Bench::Sum, "sum: kernels beside a plain read and write of the same frames"),
        (Bench::Path, "path: step() on the mem port"),
        (Bench::Wire, "wire: the box on an interface"),
        (Bench::Peers, "peers: the same work done by others"),
        (Bench::Replay, "replay: the all-reduces of a training step"),
    ]
    .into_iter()
    .filter_map(|(bench, title)| {
        let lines: Vec<&Figure> = figures.iter().filter(|f| f.bench == bench).collect();
        let columns: Vec<Column> = columns(bench)
            .iter()
            .filter(|(_, cell)| lines.iter().any(|f| !cell(f).is_empty()))
            .copied()
            .collect();
        let number =
            |f: &&Figure, (_, cell): &Column| cell(f).starts_with(|c: char| c.is_ascii_digit());
        (!lines.is_empty()).then(|| Sheet {
            bench,
            title,
            columns: columns
                .iter()
                .map(|column| (column.0, lines.iter().any(|f| number(f, column))))
                .collect(),
            rows: lines.iter().map(|f| columns.iter().map(|(_, cell)| cell(f)).collect()).collect(),
        })
    })
    .collect()
}

/// The tables of all benchmarks that there are figures of, each with a title.
#[must_use]
pub fn tables(figures: &[Figure]) -> String {
    let mut out = String::new();
    for sheet in sheets(figures) {
        out += &format!("{}\n{}\n\n", sheet.title, table(&sheet));
    }
    out
}

fn table(sheet: &Sheet) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_HORIZONTAL_ONLY)
        .remove_style(TableComponent::HorizontalLines)
        .remove_style(TableComponent::MiddleIntersections)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(sheet.columns.iter().map(|(title, _)| *title))
        .add_rows(&sheet.rows);
    for (column, (_, number)) in table.column_iter_mut().zip(&sheet.columns) {
        if *number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |v| format!("{v:.digits$}"))
}

fn word(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |v| v.to_string())
}

fn spread(f: &Figure) -> String {
    let [low, high] = f.spread;
    let digits = if high < 10.0 { 2 } else { usize::from(high < 100.0) };
    format!("{low:.digits$} - {high:.digits$}")
}

const SYSTEM: Column = ("", |f| word(f.system.clone()));
const DTYPE: Column = ("type", |f| word(f.dtype.map(|d| d.name())));
const OP: Column = ("op", |f| word(f.op.map(|o| o.name())));
const WORKERS: Column = ("workers", |f| word(f.workers));
const MTU: Column = ("mtu", |f| word(f.mtu));
const MEMORY: Column = ("memory", |f| word(f.working_set.map(|w| w.name())));
const ARRIVAL: Column = ("arrival", |f| word(f.arrival.map(|a| a.name())));
const REPLY: Column = ("reply", |f| word(f.reply.map(|r| r.name())));
const PORT: Column = ("port", |f| word(f.port.clone()));
const CORES: Column = ("cores", |f| word(f.cores));
const GBPS: Column = ("Gbps", |f| number(f.gbps, 1));
const PER_CORE: Column = ("Gbps/core", |f| {
    let derived = if f.derived == Some(true) { " *" } else { "" };
    f.gbps_per_core.map_or_else(String::new, |v| format!("{v:.1}{derived}"))
});
const CPU: Column = ("CPU s/GB", |f| number(f.cpu_s_per_gb, 3));
const SPREAD: Column = ("quarters", spread);
const PERCENT: Column = ("% of limit", |f| number(f.percent_of_limit, 0));
const CHECKED: Column = ("bits", |f| if f.checked { "checked" } else { "" }.to_owned());
const BUSY: Column =
    ("busy", |f| f.busy_share.map_or_else(String::new, |b| format!("{:.0} %", b * 100.0)));

const fn columns(bench: Bench) -> &'static [Column] {
    match bench {
        Bench::Sum => &[
            ("unit", |f| word(f.isa.clone())),
            MEMORY,
            WORKERS,
            DTYPE,
            OP,
            ("GB/s", |f| number(f.gbytes_per_s, 1)),
            SPREAD,
            ("limit", |f| number(f.limit, 1)),
            PERCENT,
            CHECKED,
        ],
        Bench::Path => &[
            DTYPE,
            WORKERS,
            MTU,
            MEMORY,
            ARRIVAL,
            REPLY,
            CORES,
            PER_CORE,
            SPREAD,
            PERCENT,
            ("ns/packet", |f| number(f.ns_per_packet, 1)),
            ("rings", |f| number(f.ns_rings, 1)),
            ("parse+slot", |f| number(f.ns_parse_slot, 1)),
            ("sum", |f| number(f.ns_sum, 1)),
            ("reflect", |f| number(f.ns_reflect, 1)),
            CHECKED,
        ],
        Bench::Wire => &[
            PORT,
            ("mode", |f| word(f.mode.clone())),
            ("answers", |f| word(f.transmit.clone())),
            DTYPE,
            WORKERS,
            MTU,
            REPLY,
            ("offered", |f| number(f.offered_gbps, 1)),
            ("received", |f| number(f.received_gbps, 1)),
            GBPS,
            SPREAD,
            BUSY,
            PER_CORE,
            CPU,
            ("drops", drops),
            ("p50 us", |f| word(f.latency_p50_us)),
            ("p99 us", |f| word(f.latency_p99_us)),
            ("p99.9 us", |f| word(f.latency_p999_us)),
            CHECKED,
        ],
        Bench::Peers => &[
            SYSTEM,
            DTYPE,
            WORKERS,
            MTU,
            REPLY,
            ("offloads", |f| word(f.offloads.map(|o| if o { "on" } else { "off" }))),
            ("congestion", |f| word(f.congestion_control.clone())),
            GBPS,
            PER_CORE,
            SPREAD,
            CPU,
            ("of Gradbox", |f| number(f.ratio, 2)),
            CHECKED,
        ],
        Bench::Replay => &[
            ("model", |f| word(f.model.clone())),
            PORT,
            DTYPE,
            WORKERS,
            MTU,
            REPLY,
            ("link Gbit/s", |f| f.link_gbps.map_or_else(|| "-".to_owned(), |l| l.to_string())),
            ("s/iteration", |f| number(f.seconds, 3)),
            SPREAD,
            ("ideal", |f| number(f.ideal_seconds, 3)),
            ("% of ideal", |f| number(f.percent_of_limit, 0)),
            GBPS,
            BUSY,
            ("sent again", |f| {
                f.resent_share.map_or_else(String::new, |s| format!("{:.2} %", s * 100.0))
            }),
            ("drops", drops),
            CHECKED,
        ],
    }
}

fn drops(f: &Figure) -> String {
    let drops = f.drops.as_deref().unwrap_or_default();
    let words: Vec<_> = drops.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    if words.is_empty() && f.drops.is_some() { "0".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_columns_are_left_out() {
        let mut figure = Figure::new(Bench::Path);
        figure.workers = Some(4);
        figure.gbps_per_core = Some(212.34);
        let text = tables(&[figure]);
        assert!(text.contains("workers") && text.contains("212.3"), "{text}");
        assert!(!text.contains("arrival") && !text.contains("sum:"), "{text}");
    }
}
