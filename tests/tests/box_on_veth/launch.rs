//! `scripts/launch.sh`: what it sets on a machine is as before when the box has ended.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::Process;
use gradbox_tests::lab::{Lab, Shape, gradbox, repository};
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

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
    start(lab, config, |command| command.args(args))
}

fn start(lab: &Lab, config: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Process {
    let path = lab.file("launch.toml");
    fs::write(&path, config).expect("a configuration");
    let mut command = lab.command("box", &repository("scripts/launch.sh"));
    more(command.arg(path).env("GRADBOX_BIN", gradbox()));
    Process::start("launch", &mut command, &lab.file(""))
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
            "queues of box0: 2 (was 4)",
            "rx-vlan-offload of box0: off (was on)",
            "served ",
            "MTU of box0: 2000 again",
            "queues of box0: 4 again",
        ] {
            assert!(ended.out.contains(says), "no {says:?} in\n{}", ended.out);
        }
        assert_eq!(settings(&lab), before);
    }
}

#[test]
fn everything_is_undone_after_failures() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    // The box itself refuses: veth has no zero-copy.
    let setup = Setup { mode: "zerocopy", ..TWO };
    let ended = launch(&lab, &setup.toml(&lab), &[]).end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("refuses zero-copy"), "{}", ended.err);
    assert!(ended.out.contains("MTU of box0: 2000 again"), "{}", ended.out);
    assert_eq!(settings(&lab), before);
    // The machine does not do: after the MTU was set, before the box was started.
    let ended = launch(&lab, &Setup { queues: 8, ..TWO }.toml(&lab), &[]).end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("box0 has 4 at most"), "{}", ended.err);
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
    assert!(ended.out.contains("would set queues of box0: 2 (now 4)"), "{}", ended.out);
    assert!(!ended.out.contains("READY") && !lab.has_xdp());
    assert_eq!(settings(&lab), before);
}

/// An ethtool that shows a NIC with rings and rules, and writes down what it is told.
const NIC: &str = r#"#!/bin/sh
dir=$(dirname "$0")
echo "$*" >>"$dir/told"
case $1 in
  -i) echo "driver: mlx5_core" ;;
  -l) printf 'Pre-set maximums:\nCombined:\t8\nCurrent hardware settings:\nCombined:\t2\n' ;;
  -g) printf 'Pre-set maximums:\nRX:\t1024\nTX:\t1024\nCurrent hardware settings:\nRX:\t512\nTX:\t256\n' ;;
  -k) printf 'ntuple-filters: off\nlarge-receive-offload: on\nrx-vlan-offload: off [fixed]\n' ;;
  -N) [ "$3" = delete ] || { echo x >>"$dir/rules" && echo "Added rule with ID $(wc -l <"$dir/rules")"; } ;;
esac
"#;

#[test]
fn each_port_is_steered_to_its_queue() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 2, mtu: 1500 }) else { return };
    let bin = lab.file("bin");
    fs::create_dir(&bin).expect("a directory");
    fs::write(bin.join("ethtool"), NIC).expect("a program");
    fs::set_permissions(bin.join("ethtool"), PermissionsExt::from_mode(0o755)).expect("its mode");
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
    let mut process = start(&lab, &TWO.toml(&lab), |command| command.env("PATH", path));
    process.wait_for("READY");
    process.signal(Signal::SIGTERM);
    let ended = process.succeed();
    let told = fs::read_to_string(bin.join("told")).expect("what ethtool was told");
    let set: Vec<_> = told.lines().filter(|l| l.contains("box0 ")).collect();
    let expected = [
        "-K box0 large-receive-offload off",
        "-G box0 tx 1024",
        "-K box0 ntuple on",
        "-N box0 flow-type udp4 dst-port 9100 action 0",
        "-N box0 flow-type udp6 dst-port 9100 action 0",
        "-N box0 flow-type udp4 dst-port 9101 action 1",
        "-N box0 flow-type udp6 dst-port 9101 action 1",
        "-N box0 delete 4",
        "-N box0 delete 3",
        "-N box0 delete 2",
        "-N box0 delete 1",
        "-K box0 ntuple off",
        "-G box0 tx 256",
        "-K box0 large-receive-offload on",
    ];
    assert_eq!(set, expected, "{ended:?}");
    // What is left to the user is said.
    assert!(ended.err.contains("data.fill_ring = 4096 is less than"), "{}", ended.err);
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
