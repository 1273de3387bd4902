//! Start, stop and death of the box.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::until;
use gradbox_tests::lab::{Lab, Shape};
use nix::sys::signal::Signal;

#[test]
fn signals_stop_it_with_a_summary() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 2, mtu: 1500 }) else { return };
    let setup = Setup { queues: 2, faults: Some((0.01, 0.01, 0.01)), ..Setup::XDP };
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let the_box = TheBox::start(&lab, &setup);
        assert!(lab.has_xdp());
        assert!(!Job::real("real", 2).start(&lab, &the_box).exact().is_empty());
        let ended = the_box.stop(signal);
        assert!(ended.status.success(), "{ended:?}");
        for says in [
            "served ",
            "rx packets",
            "Gbps while busy",
            "p50 us",
            "p99 us",
            "balanced",
            "xdp: redirected ",
        ] {
            assert!(ended.out.contains(says), "no {says:?} in\n{}", ended.out);
        }
        // A line for each core. Without rules all packets may come to one queue; each core sums its
        // share all the same.
        for core in ["0", "1"] {
            let row = ended.out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
            let row = row.into_iter().find(|r| r.first() == Some(&core) && r.len() > 8);
            let row = row.unwrap_or_else(|| panic!("no core {core} in\n{}", ended.out));
            assert!(row[4].parse::<u64>().expect("a count") > 0, "{row:?}");
        }
        assert!(!lab.has_xdp(), "an XDP program was left");
    }
}

#[test]
fn a_signal_in_the_middle_of_a_job_stops_it() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 1, mtu: 1500 }) else { return };
    let the_box = TheBox::start(&lab, &Setup::XDP);
    let job = Job::made("endless", 2, "f32", &[100_000]).with(&["--rounds", "1000000"]);
    let workers = job.with(&["--timeout", "3"]).start(&lab, &the_box);
    assert!(until(|| the_box.counter("completed") > 0));
    let ended = the_box.stop(Signal::SIGTERM);
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.out.contains("balanced") && !ended.out.contains("LOST"), "{}", ended.out);
    assert!(!lab.has_xdp());
    for ended in workers.end() {
        assert!(!ended.status.success());
        assert!(ended.err.contains("no answer from the box at 10.77.0.1:9100"), "{}", ended.err);
    }
}

#[test]
fn a_killed_box_leaves_nothing_and_starts_again_at_once() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 2, mtu: 1500 }) else { return };
    let setup = Setup { queues: 2, ..Setup::XDP };
    let mut the_box = TheBox::start(&lab, &setup);
    let job = Job::made("killed", 2, "f32", &[100_000]).with(&["--rounds", "1000000"]);
    let workers = job.start(&lab, &the_box);
    assert!(until(|| the_box.counter("completed") > 0));
    the_box.process_mut().signal(Signal::SIGKILL);
    // At once: its queues may still be held by the dying process.
    let mut next = TheBox::process(&lab, &setup);
    next.wait_for("READY");
    drop(the_box);
    let next = TheBox::ready(&lab, next);
    drop(workers);
    assert!(!Job::real("real", 2).start(&lab, &next).exact().is_empty());
    let killed = next.stop(Signal::SIGKILL);
    assert!(!killed.status.success());
    assert!(until(|| !lab.has_xdp()), "an XDP program was left");
}

#[test]
fn the_mode_that_the_kernel_gave_is_shown_and_no_other_is_pretended() {
    let Some(lab) = Lab::new(Shape { workers: 1, queues: 1, mtu: 1500 }) else { return };
    let mut the_box = TheBox::start(&lab, &Setup { mode: "auto", ..Setup::XDP });
    assert!(the_box.ready.starts_with("READY xdp mode copy "), "{}", the_box.ready);
    assert_eq!(the_box.status().info.mode, "copy");
    let err = the_box.process_mut().err();
    assert!(err.contains("refused zero-copy") && err.contains("not supported"), "{err}");
    assert!(the_box.stop(Signal::SIGTERM).status.success());

    let ended = TheBox::process(&lab, &Setup { mode: "zerocopy", ..Setup::XDP }).end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("box0 refuses zero-copy on queue 0"), "{}", ended.err);
    assert!(ended.err.contains("not supported") && ended.err.contains("data.mode"));
    assert!(!lab.has_xdp());
}

#[test]
fn it_does_not_start_where_it_could_not_serve() {
    let Some(lab) = Lab::new(Shape { workers: 1, queues: 1, mtu: 1500 }) else { return };
    for (setup, says) in [
        (Setup { queues: 2, ..Setup::XDP }, "ethtool -L box0 combined 2"),
        (Setup { mtu: 3498, ..Setup::XDP }, "ip link set dev box0 mtu 3498"),
    ] {
        let ended = TheBox::process(&lab, &setup).end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.err.contains(says), "{}", ended.err);
        assert!(!lab.has_xdp());
    }
    let _first = TheBox::start(&lab, &Setup::XDP);
    let ended = TheBox::process(&lab, &Setup::XDP).end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("box0"), "{}", ended.err);
}
