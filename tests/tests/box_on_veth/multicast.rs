//! Jobs that get one result for all ranks: the same bits, over every port, in spite of loss.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::Ended;
use gradbox_tests::lab::{Lab, Shape};
use serde_json::Value;
use std::fs;

const FOR_ALL: [&str; 2] = ["--reply", "multicast"];

/// Runs a job of `world` ranks by multicast and returns the bytes of its result, the number of
/// results that its ranks got, and how many of these were for all.
fn run(lab: &Lab, control: &str, job: &Job, world: u8) -> (Vec<u8>, u64, u64) {
    let record = |rank: u8| lab.file(&format!("record.{rank}.json"));
    let start = |rank: u8| {
        let json = record(rank);
        let own = [FOR_ALL[0], FOR_ALL[1], "--json", json.to_str().expect("a path")];
        job.worker(lab, control, rank, &own)
    };
    let workers: Vec<_> = (0..world).map(start).collect();
    let ended: Vec<Ended> = workers.into_iter().map(|w| w.end()).collect();
    assert!(ended.iter().all(|e| e.status.success()), "{ended:#?}");
    let (mut results, mut for_all) = (0, 0);
    for rank in 0..world {
        let text = fs::read_to_string(record(rank)).expect("a record");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&json["reply"], &json["verified"]), (&"multicast".into(), &true.into()));
        for round in json["rounds"].as_array().expect("rounds") {
            results += round["results"].as_u64().expect("a number");
            for_all += round["multicast"].as_u64().expect("a number");
        }
    }
    let files = (0..world).map(|rank| fs::read(job.output(lab, rank)).expect("a result"));
    let mut files: Vec<_> = files.collect();
    files.dedup();
    assert_eq!(files.len(), 1, "ranks have other results");
    (files.remove(0), results, for_all)
}

/// The job of these tests, three ranks.
fn job(name: &str) -> Job {
    Job::made(name, 3, "f32", &[1, 352, 5003, 60_001]).with(&["--op", "avg", "--rounds", "4"])
}

#[test]
fn the_same_bits_as_by_unicast_whatever_gets_lost() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 2, mtu: 1500 }) else { return };
    for (port, transmit) in [("xdp", "ring"), ("xdp", "socket"), ("udp", "socket")] {
        for faults in [None, Some((0.05, 0.02, 0.05))] {
            let setup = Setup { port, transmit, faults, queues: 2, ..Setup::XDP };
            let the_box = TheBox::start(&lab, &setup);
            let unicast = job("one-each").start(&lab, &the_box).exact();
            let before = the_box.counter("tx_packets");
            let (bytes, results, for_all) = run(&lab, &the_box.control, &job("all"), 3);
            let sent = the_box.counter("tx_packets") - before;
            assert!(bytes == unicast, "other bits with {setup:?}");
            assert!(for_all * 2 > results, "{for_all} of {results} with {setup:?}");
            if faults.is_none() {
                assert!(sent < results, "{sent} packets for {results} results with {setup:?}");
            } else {
                assert!(for_all < results, "nothing was lost with {setup:?}");
            }
            the_box.assert_balanced();
            the_box.assert_empty();
        }
    }
}

#[test]
fn over_ipv6() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 1, mtu: 1500 }) else { return };
    for (port, transmit) in [("xdp", "ring"), ("xdp", "socket"), ("udp", "socket")] {
        let addresses = (port == "udp").then_some("[\"10.77.0.1\", \"fd77::1\"]");
        let setup = Setup { port, transmit, addresses, ..Setup::XDP };
        let the_box = TheBox::start(&lab, &setup);
        let (_, results, for_all) = run(&lab, "[fd77::1]:9099", &job("six"), 3);
        assert!(for_all * 2 > results, "{for_all} of {results} with {setup:?}");
        the_box.assert_balanced();
    }
}

/// With a querier, a bridge sends to a group's members alone: workers must have said that they are.
#[test]
fn through_a_switch_that_snoops() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 1, mtu: 1500 }) else { return };
    for option in [["mcast_snooping", "1"], ["mcast_querier", "1"]] {
        let args = ["link", "set", "br0", "type", "bridge"];
        let _ = lab.output("sw", "ip", &[&args[..], &option].concat());
    }
    let the_box = TheBox::start(&lab, &Setup::XDP);
    let (_, results, for_all) = run(&lab, &the_box.control, &job("snooped"), 3);
    assert!(for_all * 2 > results, "{for_all} of {results}");
}

#[test]
fn two_workers_on_one_host_get_a_copy_each() {
    let Some(lab) = Lab::new(Shape { workers: 1, queues: 1, mtu: 1500 }) else { return };
    for port in ["xdp", "udp"] {
        let the_box = TheBox::start(&lab, &Setup { port, ..Setup::XDP });
        let (_, results, for_all) = run(&lab, &the_box.control, &job("together"), 3);
        assert!(for_all * 2 > results, "{for_all} of {results} over {port}");
    }
}

#[test]
fn workers_on_the_boxs_own_host_get_theirs() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup { queues: 2, ..Setup::UDP });
    let unicast = job("one-each").start(&lab, &the_box).exact();
    let (bytes, results, for_all) = run(&lab, &the_box.control, &job("all"), 3);
    assert!(bytes == unicast, "other bits");
    assert!(for_all * 2 > results, "{for_all} of {results}");
    the_box.assert_balanced();
    the_box.assert_empty();
}

#[test]
fn all_ranks_must_want_the_same() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup::UDP);
    let job = Job::made("mixed", 2, "f32", &[1000]);
    let first = job.worker(&lab, &the_box.control, 0, &FOR_ALL);
    assert!(gradbox_tests::lab::process::until(|| !the_box.status().jobs.is_empty()));
    assert_eq!(the_box.status().jobs[0].reply, gradbox_protocol::Reply::Multicast);
    let err = job.worker(&lab, &the_box.control, 1, &[]).end().err;
    assert!(err.contains("HTTP 409, mismatch") && err.contains("reply = multicast"), "{err}");
    // One that agrees is taken.
    let second = job.worker(&lab, &the_box.control, 1, &FOR_ALL);
    let _ = (first.succeed(), second.succeed());
}
