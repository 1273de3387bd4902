//! The headline: a handful of figures, each with what it is of.

use super::axis::drawable;
use super::chart::short;
use super::terms::{Term, distance, key};
use super::views::{is_gradbox, per_cpu_second};
use crate::bench::figure::{Bench, Figure, WorkingSet};

/// What XAgg (IEEE/ACM Transactions on Networking 2024, doi 10.1109/tnet.2023.3339524) reports:
/// 100 Gbps with 10 cores.
const XAGG_GBPS_PER_CORE: f64 = 10.0;
/// Peers that get a tile.
const PEERS: usize = 3;

/// A figure to be seen first.
pub(super) struct Tile {
    pub(super) value: String,
    pub(super) unit: &'static str,
    /// What it is.
    pub(super) name: String,
    /// What it is of.
    pub(super) note: String,
}

/// The data plane's most usual figure of one core with this working set. Where there is one for
/// each order of arrival, the slower one.
pub(super) fn per_core(figures: &[Figure], memory: WorkingSet) -> Option<(&Figure, f64)> {
    let value = |f: &Figure| f.gbps_per_core.filter(|&v| drawable(v));
    let far = |f: &Figure| {
        let mut f = f.clone();
        f.arrival = None;
        distance(&f)
    };
    figures
        .iter()
        .filter(|f| f.bench == Bench::Path && f.cores == Some(1) && f.working_set == Some(memory))
        .filter_map(|f| Some((f, value(f)?)))
        .min_by(|(a, x), (b, y)| far(a).cmp(&far(b)).then(x.total_cmp(y)))
}

/// All tiles that there are figures for.
pub(super) fn tiles(figures: &[Figure]) -> Vec<Tile> {
    let l3 = per_core(figures, WorkingSet::L3);
    let dram = per_core(figures, WorkingSet::Dram);
    let mut tiles = Vec::new();
    for (found, place) in [(l3, "the last-level cache (L3)"), (dram, "memory (DRAM)")] {
        let Some((f, value)) = found else { continue };
        let name = format!("per core in the data plane, from {place}");
        tiles.push(Tile { value: short(value), unit: "Gbps", name, note: setup(f) });
    }
    tiles.extend(percent(l3, dram));
    tiles.extend(on_a_wire(figures));
    tiles.extend(xagg(figures, l3.or(dram), dram));
    tiles.extend(peers(figures));
    tiles
}

/// What a figure is of, without the working set, which is said already.
fn setup(f: &Figure) -> String {
    let words = key(f, &[Term::WorkingSet, Term::Cores]);
    words.into_iter().map(|(_, words)| words).collect::<Vec<_>>().join(", ")
}

fn percent(l3: Option<(&Figure, f64)>, dram: Option<(&Figure, f64)>) -> Option<Tile> {
    let of = |found: Option<(&Figure, f64)>| found.and_then(|(f, _)| f.percent_of_limit);
    let (value, place, other) = match (of(dram), of(l3)) {
        (Some(dram), l3) => {
            (dram, "memory", l3.map(|p| format!(" From L3: {p:.0} % of its limit.")))
        }
        (None, l3) => (l3?, "the last-level cache", None),
    };
    Some(Tile {
        value: format!("{value:.0}"),
        unit: "%",
        name: format!("of what {place} allows"),
        note: format!(
            "The limit is a plain read and write of the same frames, measured in the same run.{}",
            other.unwrap_or_default()
        ),
    })
}

/// The figure of an interface that moved most.
fn fastest_wire(figures: &[Figure]) -> Option<(&Figure, f64)> {
    let wire = figures.iter().filter(|f| f.bench == Bench::Wire);
    let known = wire.filter_map(|f| Some((f, f.gbps.filter(|&v| drawable(v))?)));
    known.max_by(|a, b| a.1.total_cmp(&b.1))
}

fn on_a_wire(figures: &[Figure]) -> Option<Tile> {
    let (f, value) = fastest_wire(figures)?;
    let busy = f.busy_share.map(|b| format!("; core busy {:.0} %", b * 100.0));
    Some(Tile {
        value: short(value),
        unit: "Gbps",
        name: "aggregated on an interface".to_owned(),
        note: setup(f) + &busy.unwrap_or_default(),
    })
}

/// So many times, never more than it is.
fn times(ratio: f64) -> String {
    if ratio >= 10.0 {
        format!("{:.0}", ratio.floor())
    } else if ratio >= 1.0 {
        format!("{:.1}", (ratio * 10.0).floor() / 10.0)
    } else {
        format!("{ratio:.2}")
    }
}

fn xagg(
    figures: &[Figure],
    best: Option<(&Figure, f64)>,
    dram: Option<(&Figure, f64)>,
) -> Option<Tile> {
    let (f, value) = best?;
    let place = f.working_set.map(|w| w.name().to_uppercase()).unwrap_or_default();
    let ratio = |v: f64| times(v / XAGG_GBPS_PER_CORE);
    let mut note = format!(
        "XAgg (IEEE/ACM ToN 2024) reports 100 Gbps with 10 cores over a network; this is the \
         data plane in memory ({place}), so the two are not whole systems side by side."
    );
    if let Some((_, dram)) = dram.filter(|(d, _)| d.working_set != f.working_set) {
        note += &format!(" From DRAM: {}×.", ratio(dram));
    }
    let wire = fastest_wire(figures).and_then(|(w, _)| w.gbps_per_core.filter(|&v| drawable(v)));
    if let Some(wire) = wire {
        note += &format!(" On the interface here: {}×.", ratio(wire));
    }
    let name = "the 10 Gbps per core that XAgg published".to_owned();
    Some(Tile { value: ratio(value), unit: "×", name, note })
}

/// For each peer the setup in which it comes closest.
fn peers(figures: &[Figure]) -> Vec<Tile> {
    let mut closest: Vec<(&str, &Figure, f64)> = Vec::new();
    for f in figures.iter().filter(|f| f.bench == Bench::Peers && !is_gradbox(f)) {
        let (Some(system), Some(ratio)) = (&f.system, f.ratio.filter(|r| *r > 1e-9)) else {
            continue;
        };
        match closest.iter_mut().find(|(name, ..)| name == system) {
            Some(found) if found.2 < ratio => *found = (system, f, ratio),
            Some(_) => {}
            None => closest.push((system, f, ratio)),
        }
    }
    closest.sort_by(|a, b| b.2.total_cmp(&a.2));
    closest.truncate(PEERS);
    let tile = |(system, f, ratio): (&str, &Figure, f64)| {
        let work = per_cpu_second(f).map(|v| format!("{system}: {} Gbps per core; ", short(v)));
        let words = key(f, &[Term::System]).into_iter().map(|(_, words)| words);
        Tile {
            value: times(1.0 / ratio),
            unit: "×",
            name: format!("the work of {system} per CPU second"),
            note: work.unwrap_or_default() + &words.collect::<Vec<_>>().join(", "),
        }
    };
    closest.into_iter().map(tile).collect()
}
