//! `scripts/launch.sh`: what it sets on a machine is as before when the box has ended.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::Process;
use gradbox_tests::lab::{Lab, Shape, gradbox, repository};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

const FOUR: Shape = Shape { workers: 2, queues: 4, mtu: 2000 };

/// A box of two queues at MTU 1500 on [`FOUR`]: both are there to be set.
const TWO: Setup = Setup { queues: 2, ..Setup::XDP };

/// Everything about the interface that launch.sh may change.
fn settings(lab: &Lab) -> String {
    ["-l", "-k", "-n"]
        .map(|what| {
            // veth has no rules, and ethtool then fails.
            let done = lab.command("box", Path::new("ethtool")).args([what, "box0"]).output();
            String::from_utf8_lossy(&done.expect("ethtool").stdout).into_owned()
        })
        .concat()
        + &lab.output("box", "cat", &["/sys/class/net/box0/mtu", "/sys/class/net/box0/flags"])
}

fn launch(lab: &Lab, config: &str, args: &[&str]) -> Process {
    let path = lab.file("launch.toml");
    fs::write(&path, config).expect("a configuration");
    // What a shell starts in the background ignores SIGINT, and a shell below it cannot trap it.
    let mut command = lab.command("box", Path::new("env"));
    command.arg("--default-signal=INT").arg(repository("scripts/launch.sh"));
    command.arg(path).arg("--state").arg(lab.file("state")).args(args);
    Process::start("launch", command.env("GRADBOX_BIN", gradbox()), &lab.file(""))
}

fn lab() -> Option<Lab> {
    if Command::new("ethtool").arg("--version").output().is_err() {
        println!("skipped: needs ethtool");
        return None;
    }
    let lab = Lab::new(FOUR)?;
    // veth takes an XDP program where its peer has no more TX queues than it has RX queues.
    let _ = lab.output("sw", "ethtool", &["-L", "box", "rx", "2", "tx", "2"]);
    Some(lab)
}

#[test]
fn everything_is_undone_after_signals() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = launch(&lab, &TWO.toml(&lab), &[]);
        process.wait_for("READY");
        let during = settings(&lab);
        assert!(during != before && during.contains("rx-vlan-offload: off"), "{during}");
        let the_box = TheBox::ready(&lab, process);
        assert_eq!(the_box.status().info.shards, 2);
        assert!(!Job::real("real", 2).start(&lab, &the_box).exact().is_empty());
        let ended = the_box.stop(signal);
        assert!(ended.status.success(), "{ended:?}");
        for says in [
            "MTU of box0: 1500 (was 2000)",
            "queues of box0: rx 2 tx 2 (was rx 4 tx 4)",
            "rx-vlan-hw-parse of box0: off (was on)",
            "served ",
            "MTU of box0: 2000 again",
            "queues of box0: rx 4 tx 4 again",
        ] {
            assert!(ended.out.contains(says), "no {says:?} in\n{}", ended.out);
        }
        assert_eq!(settings(&lab), before);
    }
}

#[test]
fn everything_is_undone_whenever_a_signal_comes() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    for millis in (0..200).step_by(9) {
        let process = launch(&lab, &TWO.toml(&lab), &[]);
        thread::sleep(Duration::from_millis(millis));
        process.signal(Signal::SIGTERM);
        let _ = process.end();
        assert_eq!(settings(&lab), before, "after {millis} ms");
        assert!(!lab.has_xdp() && !lab.file("state/host-box0.json").exists(), "{millis} ms");
    }
}

#[test]
fn everything_is_undone_after_failures() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    // The box itself refuses: its control plane has no such address.
    let config = TWO.toml(&lab).replace("[::]:9099", "10.99.0.1:9099");
    let ended = launch(&lab, &config, &[]).end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("10.99.0.1:9099"), "{}", ended.err);
    assert!(ended.out.contains("MTU of box0: 2000 again"), "{}", ended.out);
    assert_eq!(settings(&lab), before);
    // The machine does not do: veth has no zero-copy, and no more queues than it was made with.
    let ended = launch(&lab, &Setup { mode: "zerocopy", ..TWO }.toml(&lab), &[]).end();
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    assert!(ended.err.contains("zero-copy of box0: not offered"), "{}", ended.err);
    assert_eq!(settings(&lab), before);
    let ended = launch(&lab, &Setup { queues: 8, ..TWO }.toml(&lab), &[]).end();
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    assert!(ended.err.contains("box0 has 4 at most"), "{}", ended.err);
    assert_eq!(settings(&lab), before);
    // A box is there: what it needs stays as it is.
    let mut process = launch(&lab, &TWO.toml(&lab), &[]);
    process.wait_for("READY");
    let during = settings(&lab);
    let mut second = lab.command("box", &repository("scripts/launch.sh"));
    second.arg(lab.file("launch.toml")).arg("--state").arg(lab.file("state"));
    let second = Process::start("second", second.env("GRADBOX_BIN", gradbox()), &lab.file(""));
    let ended = second.end();
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    assert!(ended.err.contains("ip link set dev box0 xdp off"), "{}", ended.err);
    assert_eq!(settings(&lab), during);
    process.signal(Signal::SIGTERM);
    let _ = process.succeed();
    assert_eq!(settings(&lab), before);
    // A box that is killed.
    let mut process = launch(&lab, &TWO.toml(&lab), &[]);
    process.wait_for("READY");
    process.kill_child();
    let ended = process.end();
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    assert_eq!(settings(&lab), before);
}

#[test]
fn a_dry_run_changes_nothing() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    let ended = launch(&lab, &TWO.toml(&lab), &["--dry-run"]).succeed();
    assert!(ended.out.contains("would set MTU of box0: 1500 (now 2000)"), "{}", ended.out);
    assert!(
        ended.out.contains("would set queues of box0: rx 2 tx 2 (now rx 4 tx 4)"),
        "{}",
        ended.out
    );
    assert!(!ended.out.contains("READY") && !lab.has_xdp());
    assert_eq!(settings(&lab), before);
}

#[test]
fn what_cannot_work_is_refused_in_words() {
    let lab = Lab::loopback();
    let udp = Setup::UDP.toml(&lab);
    for (config, args, says) in [
        ("data = 3", &[][..], "launch.toml:1"),
        (&udp, &["--fast"], "unknown option --fast"),
        (&udp, &["other.toml"], "one CONFIG, please"),
    ] {
        let ended = launch(&lab, config, args).end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.err.contains(says), "{}", ended.err);
    }
    // Ordinary sockets need nothing.
    let mut process = launch(&lab, &udp, &[]);
    process.wait_for("READY");
    assert!(process.out().contains("nothing to set"), "{}", process.out());
    process.signal(Signal::SIGTERM);
    let _ = process.succeed();
}
