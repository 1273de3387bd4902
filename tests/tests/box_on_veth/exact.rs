//! The bits of the results, in every configuration.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::{Lab, Shape};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

const DTYPES: [&str; 4] = ["f32", "f16", "bf16", "i32"];
const OPS: [&str; 4] = ["sum", "avg", "min", "max"];

/// Lengths of made-up tensors: less than a chunk, one that ends in the middle of a vector, some.
const LENGTHS: [usize; 4] = [1, 352, 5003, 40_001];

/// Results by what was asked for.
type Results = BTreeMap<String, Vec<u8>>;

/// Runs all `jobs` at once; every worker compares its results with the reference.
fn results(lab: &Lab, the_box: &TheBox<'_>, jobs: Vec<(String, Job)>) -> Results {
    let running: Vec<_> =
        jobs.into_iter().map(|(name, job)| (name, job.start(lab, the_box))).collect();
    running.into_iter().map(|(name, job)| (name, job.exact())).collect()
}

/// What every configuration has to agree on: real gradients and made-up tensors of every type.
fn sample() -> Vec<(String, Job)> {
    let real = Job::real("real", 3).with(&["--op", "avg"]);
    let half = Job::real("half", 2).with(&["--wire-dtype", "bf16"]);
    let mut jobs = vec![("real".to_owned(), real), ("half".to_owned(), half)];
    for (dtype, op) in [("f16", "sum"), ("bf16", "avg"), ("i32", "sum"), ("f32", "max")] {
        let name = format!("{dtype}-{op}");
        jobs.push((name.clone(), Job::made(&name, 2, dtype, &LENGTHS).with(&["--op", op])));
    }
    jobs
}

fn assert_same(expected: &Results, found: &Results, where_: &str) {
    assert!(expected.keys().eq(found.keys()));
    for (name, bytes) in found {
        assert!(expected[name] == *bytes, "{name} has other bytes {where_}");
    }
}

#[test]
fn every_type_and_operation_over_xdp() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 1, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup::XDP);
    for dtype in DTYPES {
        let job = |op: &str| {
            let name = format!("{dtype}-{op}");
            let job = Job::made(&name, 3, dtype, &LENGTHS).with(&["--op", op, "--rounds", "2"]);
            (name, job)
        };
        let found = results(&lab, &the_box, OPS.map(job).into());
        assert!(found.values().zip(found.values().skip(1)).all(|(a, b)| a != b));
        // Real gradients travel as each type that f32 can travel as.
        if dtype != "i32" {
            let job = Job::real(&format!("real-{dtype}"), 4);
            let job = job.with(&["--op", "avg", "--wire-dtype", dtype]).start(&lab, &the_box);
            assert!(!job.exact().is_empty());
        }
    }
    the_box.assert_balanced();
    the_box.assert_empty();
}

#[test]
fn the_same_bytes_in_every_configuration() {
    let mut expected: Option<Results> = None;
    let mut compare = |found: Results, where_: &str| match &expected {
        None => expected = Some(found),
        Some(expected) => assert_same(expected, &found, where_),
    };
    let faults = Some((0.05, 0.02, 0.05));
    for (queues, mtu) in [(1, 1500), (2, 1500), (1, 3498)] {
        let Some(lab) = Lab::new(Shape { workers: 2, queues, mtu }) else { return };
        for (port, transmit, faults) in [
            ("xdp", "ring", None),
            ("xdp", "ring", faults),
            ("xdp", "socket", None),
            ("xdp", "socket", faults),
            ("udp", "socket", faults),
        ] {
            // Twice is enough for the kernel's own sockets.
            if port == "udp" && mtu == 1500 && queues == 1 {
                continue;
            }
            let setup = Setup { port, transmit, queues, mtu, faults, ..Setup::XDP };
            let the_box = TheBox::start(&lab, &setup);
            assert_eq!(the_box.status().info.transmit, transmit);
            let found = results(&lab, &the_box, sample());
            compare(found, &format!("with {setup:?}"));
            the_box.assert_balanced();
            if faults.is_some() {
                for counter in ["fault_dropped", "fault_duplicated", "fault_reordered"] {
                    assert!(the_box.counter(counter) > 0, "{counter} with {setup:?}");
                }
            }
        }
    }
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup::UDP);
    compare(results(&lab, &the_box, sample()), "on loopback");
}

#[test]
fn ordinary_sockets_on_loopback_need_no_privileges() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup { queues: 2, ..Setup::UDP });
    assert!(the_box.ready.starts_with("READY udp mode udp "), "{}", the_box.ready);
    // Results are written through a link, or to a device, not put in its place.
    let job = Job::real("real", 2);
    symlink(lab.file("target"), job.output(&lab, 0)).expect("a link");
    assert!(!job.start(&lab, &the_box).exact().is_empty());
    assert!(lab.file("target").is_file() && job.output(&lab, 0).is_symlink());
    the_box.assert_balanced();
    the_box.assert_empty();
}

#[test]
fn two_jobs_at_once_of_other_types_and_worlds() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 2, mtu: 1500 }) else { return };
    let setup = Setup { queues: 2, ..Setup::XDP };
    let the_box = TheBox::start(&lab, &setup);
    let rounds = ["--rounds", "10"];
    let mut one = Job::made("one", 3, "i32", &[70_001]).with(&rounds).start(&lab, &the_box);
    let two = Job::made("two", 2, "bf16", &[90_000, 3]).with(&["--op", "avg"]).with(&rounds);
    let mut two = two.start(&lab, &the_box);
    let mut together = false;
    while one.runs() && two.runs() {
        together |= the_box.status().jobs.iter().filter(|j| j.job.is_some()).count() == 2;
    }
    assert!(together, "the jobs never ran together");
    assert!(one.exact() != two.exact());
    the_box.assert_balanced();
    the_box.assert_empty();
}

#[test]
fn ipv6_end_to_end() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 1, mtu: 1500 }) else { return };
    for transmit in ["ring", "socket"] {
        six(&lab, transmit);
    }
}

fn six(lab: &Lab, transmit: &'static str) {
    // The addresses are taken from the interface: one of each family.
    let the_box = TheBox::start(lab, &Setup { transmit, ..Setup::XDP });
    assert!(the_box.ready.contains("data 10.77.0.1,fd77::1 "), "{}", the_box.ready);
    let job = Job::real("six", 2);
    let workers = [0, 1].map(|rank| job.worker(lab, "[fd77::1]:9099", rank, &["--rounds", "3"]));
    let mut seen = false;
    let [mut first, second] = workers;
    while first.runs() {
        let ranks = the_box.status().jobs.into_iter().flat_map(|j| j.ranks);
        seen |= ranks.into_iter().any(|r| r.address.is_ipv6());
    }
    let _ = (first.succeed(), second.succeed());
    assert!(seen, "no rank was seen at an IPv6 address");
    the_box.assert_balanced();
}
