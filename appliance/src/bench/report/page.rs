//! The page around the charts.

use super::tiles::{Tile, per_core, tiles};
use super::views::{View, views};
use crate::bench::figure::{Bench, Figure, Figures, WorkingSet};
use crate::bench::machine::Machine;
use crate::bench::report::chart::short;
use crate::bench::show::{Sheet, sheets};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// The page, as the text of an HTML file.
#[must_use]
pub fn page(figures: &Figures) -> String {
    let Figures { machine, results, .. } = figures;
    let title = format!("Gradbox on {}", machine.cpu);
    let (tiles, views) = (tiles(results), views(results));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p.summary { (summary(results)) }
                    @if figures.tiny {
                        p.warning {
                            "Taken with --tiny: this shows that everything works. The figures mean "
                            "nothing."
                        }
                    }
                }
                main {
                    @if !tiles.is_empty() { (headline(&tiles)) }
                    (about(machine, results))
                    @if !views.is_empty() {
                        section id="charts" {
                            h2 { "Charts" }
                            div.charts { @for view in &views { (one_chart(view)) } }
                        }
                    }
                    (reading(results))
                    section id="tables" {
                        h2 { "All figures" }
                        @for sheet in sheets(results) { (table(&sheet)) }
                        @if results.iter().any(|f| f.derived == Some(true)) {
                            p.small { "* worked out from the share of time that the core was busy" }
                        }
                    }
                }
                footer {
                    p {
                        "Gradbox " (machine.version)
                        @if let Some(date) = &machine.date { ", " (date) }
                        ". The figures for programs: "
                        a href="figures.json" { "figures.json" }
                        " (schema " (figures.schema) "). This page again: "
                        code { "gradbox bench --from figures.json --report ." }
                    }
                }
            }
        }
    }
    .into_string()
}

/// What a reader in a hurry should know.
fn summary(results: &[Figure]) -> String {
    let found = |memory| per_core(results, memory).map(|(_, value)| short(value));
    let (l3, dram) = (found(WorkingSet::L3), found(WorkingSet::Dram));
    let speed = match (l3, dram) {
        (Some(l3), Some(dram)) => format!("{l3} Gbps of gradients from L3 and {dram} from DRAM"),
        (Some(l3), None) => format!("{l3} Gbps of gradients from L3"),
        (None, Some(dram)) => format!("{dram} Gbps of gradients from DRAM"),
        (None, None) => {
            return "Gradbox sums the gradients of distributed training, bit for bit the same \
                    every time; this is how fast, on one machine."
                .to_owned();
        }
    };
    format!(
        "Gradbox sums the gradients of distributed training, bit for bit the same every time: in \
         memory, one core of this machine takes in, sums and answers {speed}."
    )
}

fn headline(tiles: &[Tile]) -> Markup {
    html! {
        section id="headline" aria-label="Headline figures" {
            div.tiles {
                @for tile in tiles {
                    div.tile {
                        p.number { (tile.value) span.unit { " " (tile.unit) } }
                        p.name { (tile.name) }
                        p.note { (tile.note) }
                    }
                }
            }
        }
    }
}

/// The machine, as names and what to say of them.
fn about(m: &Machine, results: &[Figure]) -> Markup {
    let mut modes: Vec<&str> = results.iter().filter_map(|f| f.mode.as_deref()).collect();
    modes.sort_unstable();
    modes.dedup();
    let nic = match (&m.nic, modes.is_empty()) {
        (Some(nic), true) => Some(nic.clone()),
        (Some(nic), false) => Some(format!("{nic}; mode: {}", modes.join(", "))),
        (None, true) => None,
        (None, false) => Some(format!("not named; mode: {}", modes.join(", "))),
    };
    let kind = if m.virtual_machine {
        "virtual: others may use the same caches and memory"
    } else {
        "no hypervisor seen"
    };
    let rows = [
        ("CPU", Some(m.cpu.clone())),
        ("cores for this process", Some(m.cores.to_string())),
        ("vector unit of the sums", Some(m.isa.clone())),
        (
            "caches",
            Some(format!(
                "L1d {}, L2 {}, L3 {}",
                size(m.l1_bytes),
                size(m.l2_bytes),
                size(m.l3_bytes)
            )),
        ),
        ("memory", (m.memory_bytes < u64::MAX).then(|| size(m.memory_bytes))),
        ("machine", Some(kind.to_owned())),
        ("NIC", Some(nic.unwrap_or_else(|| "none: these figures are taken in memory".to_owned()))),
        ("kernel", Some(format!("Linux {}", m.kernel))),
        ("governor", m.governor.clone()),
        ("huge pages", m.huge_pages.clone()),
        ("Gradbox", Some(m.version.clone())),
        ("date", m.date.clone()),
    ];
    html! {
        section id="machine" {
            h2 { "The machine" }
            dl {
                @for (name, value) in rows {
                    @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
                }
            }
        }
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{:.1} GiB", b as f64 / f64::from(1 << 30)),
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

fn one_chart(view: &View) -> Markup {
    html! {
        figure id=(view.id) {
            h3 { (view.title) }
            @if !view.common.is_empty() { p.common { (view.common) } }
            ul.legend {
                @for (class, name) in &view.legend {
                    li { span class=(format!("swatch {class}")) {} (name) }
                }
            }
            (view.drawing)
            figcaption {
                p { (view.shows) }
                p { strong { "What it does not say. " } (view.does_not_say) }
                @if !view.commands.is_empty() {
                    pre { @for line in &view.commands { (command(line)) "\n" } }
                }
            }
        }
    }
}

/// A command that breaks before its options rather than within.
fn command(line: &str) -> Markup {
    html! {
        code {
            @for (i, part) in line.split(" --").enumerate() {
                @if i > 0 { " " span { "--" (part) } } @else { span { (part) } }
            }
        }
    }
}

/// How to read it all.
fn reading(results: &[Figure]) -> Markup {
    let checked = results.iter().filter(|f| f.checked).count();
    html! {
        section id="reading" {
            h2 { "How to read this" }
            ul {
                li {
                    "Gbps are gradient bits taken in and summed per second, without headers: one "
                    "bit of each worker's gradient counts as one."
                }
                li {
                    "Figures are medians. Half of the samples lie between the quarters, which the "
                    "charts show as thin bars with ends."
                }
                @if results.iter().any(|f| f.limit.is_some() && f.bench != Bench::Replay) {
                    li {
                        "The limit is the machine's own: a plain read and write of the same frames "
                        "in the same run. It may be a little below a figure, by chance."
                    }
                }
                li {
                    "Bits checked: for " (checked) " of " (results.len()) " figures, a sample of "
                    "the results was compared bit by bit with a plain loop in the order of ranks."
                }
            }
        }
    }
}

fn table(sheet: &Sheet) -> Markup {
    let class = |number: bool| number.then_some("number");
    html! {
        h3 { (sheet.title) }
        div.scroll tabindex="0" role="region" aria-label=(sheet.title) {
            table {
                thead {
                    tr {
                        @for (title, number) in &sheet.columns {
                            th scope="col" class=[class(*number)] { (title) }
                        }
                    }
                }
                tbody {
                    @for row in &sheet.rows {
                        tr {
                            @for (cell, (_, number)) in row.iter().zip(&sheet.columns) {
                                td class=[class(*number)] { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}
