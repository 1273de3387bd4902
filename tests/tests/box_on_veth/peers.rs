//! Workers that are late, missing, or replaced.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::until;
use gradbox_tests::lab::{Lab, Shape};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// Pushed chunks of the running generation of a job, by rank.
fn pushed(the_box: &TheBox<'_>, job: &str) -> Vec<u64> {
    let jobs = the_box.status().jobs;
    let ranks = jobs.into_iter().find(|j| j.name == job).map(|j| j.ranks).unwrap_or_default();
    ranks.iter().map(|r| r.pushed).collect()
}

#[test]
fn the_others_deliver_everything_before_a_straggler() {
    let Some(lab) = Lab::new(Shape { workers: 3, queues: 1, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup::XDP);
    let job = Job::made("late", 3, "f32", &[300_000, 77]);
    let record = |rank: u8| lab.file(&format!("record{rank}.json"));
    let worker = |rank: u8| {
        let path = record(rank);
        let path = path.to_str().expect("a plain path");
        let delay = if rank == 2 { "2" } else { "0" };
        job.worker(&lab, &the_box.control, rank, &["--json", path, "--delay", delay])
    };
    let workers = [0, 1, 2].map(worker);
    let chunks = 300_000_u64.div_ceil(352) + 1;
    // The whole gradients of the fast ones lie in the box before the slow one has sent a byte.
    assert!(until(|| pushed(&the_box, "late") == [chunks, chunks, 0]));
    the_box.assert_balanced();
    let straggler = the_box.status().jobs[0].waiting_for;
    assert_eq!(straggler, Some(2));
    for worker in workers {
        let _ = worker.succeed();
    }
    let round = |rank| -> Value {
        let text = fs::read_to_string(record(rank)).expect("a record");
        let record: Value = serde_json::from_str(&text).expect("JSON");
        record["rounds"][0].clone()
    };
    let first_sent = round(2)["first_sent_ns"].as_u64().expect("a time");
    for rank in [0, 1] {
        let round = round(rank);
        assert!(round["delivered_ns"].as_u64().expect("a time") < first_sent);
        let (resent, pushed) = (round["resent"].as_u64(), round["pushed"].as_u64());
        assert!(resent.expect("a count") * 100 <= pushed.expect("a count"), "{round}");
    }
    the_box.assert_empty();
}

#[test]
fn a_missing_peer_is_named() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup::UDP);
    // One that never joins.
    let job = Job::made("absent", 2, "f32", &[1000]);
    let ended = job.worker(&lab, &the_box.control, 0, &["--timeout", "1"]).end();
    assert!(!ended.status.success());
    assert!(ended.err.contains("waiting for rank 1 of job absent, 1"), "{}", ended.err);
    // One that joins and then sends nothing.
    let job = Job::made("mute", 2, "f32", &[1000]);
    let _mute = job.worker(&lab, &the_box.control, 1, &["--delay", "50"]);
    let ended = job.worker(&lab, &the_box.control, 0, &["--timeout", "2"]).end();
    assert!(!ended.status.success());
    assert!(ended.err.contains("waiting for rank 1 of job mute, 2"), "{}", ended.err);
}

#[test]
fn a_killed_peer_is_named() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 1, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup::XDP);
    let job = Job::made("cut", 2, "f32", &[500_000]).with(&["--rounds", "100000"]);
    let survivor = job.worker(&lab, &the_box.control, 0, &["--timeout", "2"]);
    let victim = job.worker(&lab, &the_box.control, 1, &[]);
    assert!(until(|| pushed(&the_box, "cut").iter().any(|n| *n > 0)));
    drop(victim);
    let ended = survivor.end();
    assert!(!ended.status.success());
    assert!(ended.err.contains("waiting for rank 1 of job cut, 2"), "{}", ended.err);
    the_box.assert_balanced();
}

#[test]
fn a_new_generation_replaces_the_old_one() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 2, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup { queues: 2, ..Setup::XDP });
    let rounds = |n| Job::made("again", 2, "f32", &[100_000]).with(&["--rounds", n]);
    let old = rounds("1000000").with(&["--timeout", "50"]).start(&lab, &the_box);
    let both = |pushed: &[u64]| pushed.len() == 2 && pushed.iter().all(|n| *n > 0);
    assert!(until(|| both(&pushed(&the_box, "again"))));
    let first = the_box.status().jobs[0].clone();
    let start = Instant::now();
    assert!(!rounds("2").start(&lab, &the_box).exact().is_empty());
    for ended in old.end() {
        assert!(!ended.status.success(), "{ended:?}");
        let told = ["newer generation", "has ended"].iter().any(|says| ended.err.contains(says));
        assert!(told, "{}", ended.err);
    }
    // Long before their own deadline.
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert_eq!(first.generation, 1);
    the_box.assert_balanced();
    the_box.assert_empty();
    // All memory can be had again.
    assert!(!rounds("1").start(&lab, &the_box).exact().is_empty());
}
