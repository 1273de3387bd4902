//! Which figures make which chart, and what is to be known of it. A chart without figures is none.

use super::chart::{self, Columns, Row, Value};
use super::terms::{Term, apart, commands, distance, key};
use crate::bench::figure::{Bench, Figure};
use maud::Markup;

/// Series of a chart with columns: more do not fit on a phone.
const SERIES: usize = 3;
/// Groups of columns.
const GROUPS: usize = 10;
/// Rows of a chart with bars.
const ROWS: usize = 8;

/// A chart with everything around it.
pub(super) struct View {
    /// Its name within the page.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What all that is shown has in common.
    pub(super) common: String,
    /// Names of the series, with the classes of their colours.
    pub(super) legend: Vec<(&'static str, String)>,
    pub(super) drawing: Markup,
    pub(super) shows: &'static str,
    pub(super) does_not_say: &'static str,
    pub(super) commands: Vec<String>,
}

const IN_MEMORY: &str = "Anything about a network: packets come from memory and go there, their \
     headers are written by the same core, and no kernel or NIC uses the same caches.";
/// Whose limit is drawn.
const MACHINE: &str = "limit of this machine";
const COLOURS: [&str; 4] = ["c0", "c1", "c2", "c3"];

/// All charts that there are figures for.
pub(super) fn views(figures: &[Figure]) -> Vec<View> {
    let of = |bench| figures.iter().filter(|f| f.bench == bench).collect::<Vec<_>>();
    let path = of(Bench::Path);
    [
        sweep(
            &path,
            Term::Cores,
            ("cores", "Gbps per core, against cores", "cores at the same time"),
            "Gradient bits that a core takes in, sums and answers in a second, when so many cores \
             work at the same time, each on a share of its own. Level columns: twice the cores, \
             twice the work.",
        ),
        sweep(
            &path,
            Term::Mtu,
            ("mtu", "Gbps per core, against MTU", "MTU"),
            "The same for packets of other sizes: what a packet costs whatever its length is \
             spread over more bytes in a large one.",
        ),
        sweep(
            &path,
            Term::Workers,
            ("workers", "Gbps per core, against workers", "workers"),
            "The same for jobs of other sizes. Gradients of all workers count, so level columns \
             mean that a worker more costs its own packets and nothing else.",
        ),
        sweep(
            &path,
            Term::WorkingSet,
            ("memory", "Gbps per core, against working set", "where the memory in use has room"),
            "The same when frames have room in a cache or only in memory. Small jobs live in a \
             cache; whole gradients of large models come from memory (DRAM).",
        ),
        split(&path),
        sums(&of(Bench::Sum)),
        wire(&of(Bench::Wire)),
        peers(&of(Bench::Peers)),
        replay(&of(Bench::Replay)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Figures that differ in one thing at most, which is `across` a chart.
type Group<'a> = (Vec<(Term, String)>, Vec<&'a Figure>);

/// Figures in groups of the same key, in the order of their first ones.
fn groups<'a>(figures: &[&'a Figure], without: &[Term]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &f in figures {
        let key = key(f, without);
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, group)) => group.push(f),
            None => groups.push((key, vec![f])),
        }
    }
    groups
}

/// The places of figures on an axis, in order.
fn places(term: Term, figures: &[&Figure]) -> Vec<(u32, String)> {
    let mut places: Vec<_> = figures.iter().filter_map(|f| term.place(f)).collect();
    places.sort_unstable();
    places.dedup();
    places.truncate(GROUPS);
    places
}

fn per_core(f: &Figure) -> Option<Value> {
    Value::new(f.gbps_per_core, f.spread, f.limit)
}

/// Gbps per core against one thing: a series for everything that was measured with two or more
/// values of it.
fn sweep(
    path: &[&Figure],
    term: Term,
    (id, title, across): (&'static str, &'static str, &'static str),
    shows: &'static str,
) -> Option<View> {
    let known: Vec<_> = path.iter().filter(|f| per_core(f).is_some()).copied().collect();
    let mut all = groups(&known, &[term]);
    all.retain(|(_, figures)| places(term, figures).len() > 1);
    // The longest first, of those as long the most usual.
    all.sort_by_key(|(_, figures)| {
        let least = figures.iter().map(|f| distance(f)).min();
        (usize::MAX - places(term, figures).len(), least)
    });
    all.truncate(SERIES);
    let (keys, series): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    columns(term, &keys, &series, per_core, (id, title, "Gbps per core", across), shows, IN_MEMORY)
}

/// The sum kernels: a series for each type.
fn sums(sum: &[&Figure]) -> Option<View> {
    let percent = |f: &Figure| {
        let scale = 100.0 / f.limit?;
        Value::new(f.percent_of_limit, f.spread.map(|q| q * scale), Some(100.0))
    };
    let known: Vec<_> = sum.iter().filter(|f| percent(f).is_some()).copied().collect();
    let across = Term::WorkingSet;
    let chosen = groups(&known, &[across, Term::DType]);
    let (common, figures) = chosen.into_iter().min_by_key(|(_, figures)| {
        let least = figures.iter().map(|f| distance(f)).min();
        (usize::MAX - places(across, figures).len(), least)
    })?;
    let mut series = groups(&figures, &[across]);
    series.truncate(COLOURS.len());
    let (keys, series): (Vec<_>, Vec<_>) = series.into_iter().unzip();
    let mut view = columns(
        across,
        &keys,
        &series,
        percent,
        ("sums", "Sum kernels in percent of the limit", "% of limit", "where the frames have room"),
        "The sum of all workers' payloads alone, without packets, beside a plain read and write of \
         the same frames in the same run: at 100 % the sum itself costs nothing.",
        "How fast that is: each cache has a limit of its own. The table below has GB/s.",
    )?;
    view.common = apart(&[common]).0;
    Some(view)
}

/// A chart with columns: `series` of figures, each with the value that it has at each place.
fn columns(
    term: Term,
    keys: &[Vec<(Term, String)>],
    series: &[Vec<&Figure>],
    value: impl Fn(&Figure) -> Option<Value>,
    (id, title, unit, across): (&'static str, &'static str, &'static str, &'static str),
    shows: &'static str,
    does_not_say: &'static str,
) -> Option<View> {
    let mut shown: Vec<&Figure> = series.iter().flatten().copied().collect();
    shown.sort_by_key(|f| term.place(f));
    let places = places(term, &shown);
    if places.is_empty() {
        return None;
    }
    let at = |figures: &[&Figure], place: &(u32, String)| {
        figures.iter().find(|f| term.place(f).as_ref() == Some(place)).and_then(|f| value(f))
    };
    let values: Vec<Vec<Option<Value>>> =
        series.iter().map(|s| places.iter().map(|place| at(s, place)).collect()).collect();
    let (common, names) = apart(keys);
    let mut legend: Vec<_> =
        COLOURS.into_iter().zip(names).filter(|(_, n)| !n.is_empty()).collect();
    marks(&mut legend, MACHINE, values.iter().flatten().flatten());
    let groups = places.into_iter().map(|(_, name)| name).collect();
    let columns = Columns { name: title.to_owned(), unit, across, groups, series: values };
    let drawing = columns.draw();
    let commands = commands(&shown);
    Some(View { id, title, common, legend, drawing, shows, does_not_say, commands })
}

/// Adds to the legend what is drawn of limits and quarters.
fn marks<'a>(
    legend: &mut Vec<(&'static str, String)>,
    limit: &str,
    values: impl Iterator<Item = &'a Value> + Clone,
) {
    let has = |what: fn(&Value) -> bool| values.clone().any(what);
    if has(|v| v.limit.is_some()) {
        legend.push(("limit", limit.to_owned()));
    }
    if has(|v| v.low < v.high) {
        legend.push(("quarters", "quarters".to_owned()));
    }
}

/// What of a packet's time goes where.
fn split(path: &[&Figure]) -> Option<View> {
    let parts = |f: &Figure| {
        let parts = [f.ns_rings?, f.ns_parse_slot?, f.ns_sum?, f.ns_reflect?];
        parts.iter().all(|&p| super::axis::drawable(p)).then_some(parts.to_vec())
    };
    let mut shown: Vec<_> = path.iter().filter(|f| parts(f).is_some()).copied().collect();
    // The most usual ones, in the order that they have in the tables.
    let mut distances: Vec<_> = shown.iter().map(|f| distance(f)).collect();
    distances.sort_unstable();
    let most = distances.get(ROWS - 2).copied().unwrap_or(usize::MAX);
    shown.retain(|f| distance(f) <= most);
    shown.truncate(ROWS - 2);
    let keys: Vec<_> = shown.iter().map(|f| key(f, &[])).collect();
    let (common, names) = apart(&keys);
    let rows: Vec<_> = names.into_iter().zip(shown.iter().filter_map(|f| parts(f))).collect();
    let (id, title) = ("split", "A packet's time");
    (!rows.is_empty()).then(|| View {
        id,
        title,
        common,
        legend: ["rings", "parse and slot", "sum", "reflect"]
            .iter()
            .zip(COLOURS)
            .map(|(name, colour)| (colour, (*name).to_owned()))
            .collect(),
        drawing: chart::stacks(title, "ns per packet received", rows),
        shows: "Where the nanoseconds of a packet go: rings (in and out), parsing with checks and \
                the chunk's slot, its share of the sum, and turning it round into the answer.",
        does_not_say: "The parts' exact borders: each is measured by leaving the others away, and \
                       parse and slot, which is the rest, includes waiting for headers that are \
                       not in a cache.",
        commands: commands(&shown),
    })
}

/// Figures as rows of bars.
struct Rows<'a> {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    legend: &'a [(&'static str, &'static str)],
    shows: &'static str,
    does_not_say: &'static str,
}

impl Rows<'_> {
    /// Rows of those figures that have bars, each with its note.
    fn view<'f>(
        self,
        figures: &[&'f Figure],
        row: impl Fn(&'f Figure) -> Option<(Vec<(&'static str, Value)>, String)>,
    ) -> Option<View> {
        let shown: Vec<_> =
            figures.iter().filter(|f| row(f).is_some()).take(ROWS).copied().collect();
        let keys: Vec<_> = shown.iter().map(|f| key(f, &[])).collect();
        let (common, names) = apart(&keys);
        let rows: Vec<_> = names
            .into_iter()
            .zip(shown.iter().filter_map(|f| row(f)))
            .map(|(label, (bars, note))| Row { label, note, bars })
            .collect();
        if rows.is_empty() {
            return None;
        }
        let mut legend: Vec<_> =
            self.legend.iter().map(|(class, name)| (*class, (*name).to_owned())).collect();
        let values = rows.iter().flat_map(|r| r.bars.iter().map(|(_, value)| value));
        marks(&mut legend, "ideal: what the links allow", values);
        Some(View {
            id: self.id,
            title: self.title,
            common,
            legend,
            drawing: chart::bars(self.title, self.unit, &rows),
            shows: self.shows,
            does_not_say: self.does_not_say,
            commands: commands(&shown),
        })
    }
}

/// The box on an interface.
fn wire(wire: &[&Figure]) -> Option<View> {
    let rows = Rows {
        id: "wire",
        title: "On an interface",
        unit: "Gbps of gradients",
        legend: &[("c1", "offered"), ("c2", "received"), ("c0", "aggregated")],
        shows: "What the workers offer, what of it reaches the box, and what the box has summed and \
                answered; at the right how much of the time its core worked.",
        does_not_say: "What another NIC, driver or mode gives: those of these figures are above \
                       under the machine. Where workers run on the same machine, they take cores \
                       and memory from the box.",
    };
    rows.view(wire, |f| {
        // The quarters are those of the main figure, and what follows from it has them in scale.
        let scale = f.gbps_per_core.map_or(1.0, |main| f.gbps.unwrap_or(main) / main);
        let bars: Vec<_> = [
            ("c1", Value::plain(f.offered_gbps)),
            ("c2", Value::plain(f.received_gbps)),
            ("c0", Value::new(f.gbps, f.spread.map(|q| q * scale), None)),
        ]
        .into_iter()
        .filter_map(|(class, value)| Some((class, value?)))
        .collect();
        let busy = f.busy_share.map(|b| format!("core busy {:.0} %", b * 100.0));
        (!bars.is_empty()).then(|| (bars, busy.unwrap_or_default()))
    })
}

/// Gradient bits for a second of CPU time: what a peer's speed comes to on one core.
pub(super) fn per_cpu_second(f: &Figure) -> Option<f64> {
    let derived = f.cpu_s_per_gb.filter(|&s| s > 0.0).map(|s| 8.0 / s);
    f.gbps_per_core.or(derived).filter(|&v| super::axis::drawable(v))
}

/// Whether a line of the peers is Gradbox's own.
pub(super) fn is_gradbox(f: &Figure) -> bool {
    f.system.as_ref().is_none_or(|s| s.to_lowercase().starts_with("gradbox"))
}

/// Others beside the box.
fn peers(peers: &[&Figure]) -> Option<View> {
    // Those that most systems did the same work for.
    let same = |f: &Figure| {
        let keep = [Term::DType, Term::Op, Term::Workers];
        let kept = key(f, &[]);
        kept.into_iter().filter(|(t, _)| keep.contains(t)).collect::<Vec<_>>()
    };
    let systems = |like: &Figure| {
        let mut names: Vec<_> =
            peers.iter().filter(|f| same(f) == same(like)).map(|f| &f.system).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    };
    let most = peers.iter().max_by_key(|f| (systems(f), usize::MAX - distance(f)))?;
    let work: Vec<_> = peers.iter().filter(|f| same(f) == same(most)).copied().collect();
    let rows = Rows {
        id: "peers",
        title: "The same work done by others",
        unit: "Gbps per core second",
        legend: &[("c0", "Gradbox"), ("other", "others")],
        shows: "Gradient bits aggregated for each second that the aggregator's cores worked, and \
                at the right the ratio to Gradbox's line of the same kind.",
        does_not_say: "How long a training step takes, which is a matter of links too; nor what an \
                       expert of a system could still get out of it.",
    };
    rows.view(&work, |f| {
        let value = per_cpu_second(f)?;
        let quarters = if f.gbps_per_core.is_some() { f.spread } else { [value; 2] };
        let value = Value::new(Some(value), quarters, None)?;
        let note = match f.ratio {
            Some(ratio) if !is_gradbox(f) => format!("{ratio:.2} of Gradbox"),
            _ => String::new(),
        };
        Some((vec![(if is_gradbox(f) { "c0" } else { "other" }, value)], note))
    })
}

/// A model's training step.
fn replay(replay: &[&Figure]) -> Option<View> {
    let rows = Rows {
        id: "replay",
        title: "All-reduces of a training step",
        unit: "seconds per iteration",
        legend: &[("c0", "measured")],
        shows: "How long the all-reduces of a model's training step take, beside the time that the \
                links alone allow.",
        does_not_say: "How long a whole iteration of a training takes: nothing is computed here, \
                       so nothing hides behind computation either.",
    };
    rows.view(replay, |f| {
        let value = Value::new(f.seconds, f.spread, f.ideal_seconds)?;
        let percent = f.percent_of_limit.map(|p| format!("{p:.0} % of ideal"));
        Some((vec![("c0", value)], percent.unwrap_or_default()))
    })
}
