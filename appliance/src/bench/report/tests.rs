//! The page of made-up figures.

use super::page;
use crate::bench::figure::{Arrival, Bench, Figure, Figures, SCHEMA, WorkingSet};
use crate::bench::machine::Machine;
use crate::bench::show;
use gradbox_protocol::{DType, Reply};

const CHARTS: [&str; 9] =
    ["cores", "mtu", "workers", "memory", "split", "sums", "wire", "peers", "replay"];

fn figures(results: Vec<Figure>) -> Figures {
    Figures { schema: SCHEMA, machine: Machine::describe(), tiny: false, results }
}

fn path(set: impl Fn(&mut Figure)) -> Figure {
    let mut f = Figure::new(Bench::Path);
    f.dtype = Some(DType::F32);
    f.workers = Some(4);
    f.mtu = Some(1500);
    f.working_set = Some(WorkingSet::L3);
    f.arrival = Some(Arrival::InStep);
    f.reply = Some(Reply::Unicast);
    f.cores = Some(1);
    f.gbps_per_core = Some(217.3);
    f.limit = Some(301.0);
    f.percent_of_limit = Some(72.0);
    f.spread = [212.0, 219.0];
    [f.ns_rings, f.ns_parse_slot, f.ns_sum, f.ns_reflect] = [6.0, 15.0, 29.0, 2.0].map(Some);
    set(&mut f);
    f
}

/// Figures of every kind.
fn all() -> Vec<Figure> {
    let mut results = vec![
        path(|_| {}),
        path(|f| f.cores = Some(2)),
        path(|f| f.mtu = Some(3498)),
        path(|f| f.workers = Some(8)),
        path(|f| {
            f.working_set = Some(WorkingSet::Dram);
            f.gbps_per_core = Some(88.4);
        }),
    ];
    for dtype in [DType::F32, DType::Bf16] {
        let mut f = Figure::new(Bench::Sum);
        f.dtype = Some(dtype);
        f.workers = Some(4);
        f.working_set = Some(WorkingSet::L2);
        f.gbytes_per_s = Some(40.0);
        f.limit = Some(44.0);
        f.percent_of_limit = Some(90.9);
        results.push(f);
    }
    let mut wire = Figure::new(Bench::Wire);
    wire.offered_gbps = Some(9.0);
    wire.gbps = Some(6.0);
    wire.gbps_per_core = Some(6.9);
    wire.busy_share = Some(0.87);
    wire.port = Some("xdp".to_owned());
    wire.mode = Some("copy".to_owned());
    results.push(wire);
    for (system, seconds, ratio) in [("gradbox", 1.2, 1.0), ("<gloo> & \"co\"", 6.0, 0.2)] {
        let mut f = Figure::new(Bench::Peers);
        f.system = Some(system.to_owned());
        f.cpu_s_per_gb = Some(seconds);
        f.ratio = Some(ratio);
        results.push(f);
    }
    let mut replay = Figure::new(Bench::Replay);
    replay.model = Some("resnet50".to_owned());
    replay.seconds = Some(0.31);
    replay.ideal_seconds = Some(0.25);
    replay.command = Some("gradbox bench replay --model 'a<b'".to_owned());
    results.push(replay);
    results
}

/// The page's body, which is written so that it is XML too.
fn body(page: &str) -> &str {
    let (_, body) = page.split_once("<body>").expect("a body");
    let end = body.find("</body></html>").expect("its end");
    &page[page.len() - body.len() - 6..][..end + 6 + 7]
}

fn has(page: &str, chart: &str) -> bool {
    page.contains(&format!("<figure id=\"{chart}\">"))
}

#[test]
fn every_kind_of_figure_has_its_chart_in_a_well_formed_page() {
    let results = all();
    let page = page(&figures(results.clone()));
    assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">"));
    let body = roxmltree::Document::parse(body(&page)).expect("well-formed");
    for chart in CHARTS {
        assert!(has(&page, chart), "{chart}");
    }
    let all = |name| body.descendants().filter(move |n| n.has_tag_name(name));
    assert_eq!(all("figure").count(), CHARTS.len());
    assert_eq!(
        all("figcaption").filter(|c| c.descendants().any(|n| n.has_tag_name("code"))).count(),
        9
    );
    assert_eq!(all("table").count(), show::sheets(&results).len());
    assert_eq!(all("script").count(), 0);
    // Nothing is fetched, and nothing is drawn where it cannot be.
    assert!(!page.contains("http") && !page.contains("url(") && !page.contains("NaN"), "{page}");
    let ids: Vec<_> = body.descendants().filter_map(|n| n.attribute("id")).collect();
    assert!(ids.iter().all(|id| ids.iter().filter(|other| *other == id).count() == 1), "{ids:?}");
}

#[test]
fn ratios_follow_from_the_figures() {
    let text = page(&figures(all()));
    assert!(text.contains(">21<span class=\"unit\"> ×"), "217.3 / 10");
    assert!(text.contains("From DRAM: 8.8×") && text.contains("interface here: 0.69×"));
    assert!(text.contains(">5.0<span class=\"unit\"> ×"), "1 / 0.2");
    assert!(text.contains("217 Gbps of gradients from L3 and 88.4 from DRAM"));
}

#[test]
fn what_figures_say_is_escaped() {
    let text = page(&figures(all()));
    assert!(!text.contains("<gloo>") && !text.contains("a<b"), "{text}");
    assert!(text.contains("&lt;gloo&gt; &amp; &quot;co&quot;") && text.contains("a&lt;b"));
}

#[test]
fn charts_without_figures_are_left_out() {
    let only = |results: Vec<Figure>| {
        let text = page(&figures(results));
        roxmltree::Document::parse(body(&text)).expect("well-formed");
        CHARTS.into_iter().filter(|chart| has(&text, chart)).collect::<Vec<_>>()
    };
    assert!(only(vec![]).is_empty());
    // One figure is not a sweep.
    assert_eq!(only(vec![path(|_| {})]), ["split"]);
    let cores = |f: &mut Figure| {
        f.cores = Some(2);
        f.ns_sum = None;
    };
    assert_eq!(only(vec![path(|f| f.ns_sum = None), path(cores)]), ["cores"]);
    for bench in [Bench::Sum, Bench::Path, Bench::Wire, Bench::Peers, Bench::Replay] {
        assert!(only(vec![Figure::new(bench)]).is_empty(), "{bench:?}");
    }
}

#[test]
fn figures_that_are_none_do_no_harm() {
    for value in [0.0, -1.0, 1e300, f64::NAN, f64::INFINITY, 5e-324] {
        let mut results = all();
        for f in &mut results {
            for field in [
                &mut f.gbps,
                &mut f.gbps_per_core,
                &mut f.limit,
                &mut f.ns_sum,
                &mut f.seconds,
                &mut f.cpu_s_per_gb,
                &mut f.ratio,
                &mut f.busy_share,
                &mut f.percent_of_limit,
            ] {
                *field = Some(value);
            }
            f.spread = [value, 1.0];
        }
        let text = page(&figures(results));
        let body = roxmltree::Document::parse(body(&text)).expect("well-formed");
        for n in body.descendants().filter(|n| n.has_tag_name("svg")) {
            let drawn = n.descendants().flat_map(|n| n.attributes());
            let odd = |a: &str| a.contains("NaN") || a.contains("inf") || a.starts_with("-");
            assert!(drawn.clone().all(|a| !odd(a.value())), "{value}");
        }
    }
}

#[test]
fn tiny_figures_come_with_a_warning() {
    let tiny = Figures { tiny: true, ..figures(all()) };
    assert!(page(&tiny).contains("The figures mean nothing"));
    assert!(!page(&figures(all())).contains("mean nothing"));
}
