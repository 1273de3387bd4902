//! `gradbox host` on a real interface: what it says is true, and what it sets is put back, also
//! after `kill -9` at any time.
//!
//! Needs root and ethtool; without them each test says so and passes.

use gradbox_tests::lab::appliance::Setup;
use gradbox_tests::lab::process::Process;
use gradbox_tests::lab::{Lab, Shape, gradbox};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use std::{fs, thread};

/// What `apply` may change, and everything near it.
fn settings(lab: &Lab) -> String {
    let tells = "ip -d link show dev box0; ethtool -k box0; ethtool -l box0; ethtool -g box0; \
                 ip route; grep -r . /proc/sys/net/ipv4/conf/box0 /proc/sys/net/ipv6/conf/box0 \
                 /proc/sys/vm/nr_hugepages; true";
    lab.output("box", "sh", &["-c", &format!("{{ {tells}; }} 2>/dev/null")])
}

/// A box of two queues at MTU 1500 on an interface of four queues that is down, at MTU 2000.
fn lab() -> Option<Lab> {
    if Command::new("ethtool").arg("--version").output().is_err() {
        println!("skipped: needs ethtool");
        return None;
    }
    let lab = Lab::new(Shape { workers: 1, queues: 4, mtu: 2000 })?;
    let _ = lab.output("sw", "ethtool", &["-L", "box", "rx", "2", "tx", "2"]);
    let _ = lab.output("box", "ip", &["link", "set", "box0", "down"]);
    let config = Setup { queues: 2, ..Setup::XDP }.toml(&lab);
    fs::write(lab.file("box.toml"), config + "cpus = [0, 1]\n").expect("a configuration");
    Some(lab)
}

fn command(lab: &Lab, args: &[&str]) -> Command {
    let mut command = lab.command("box", &gradbox());
    command.arg("host").args(args).arg("--config").arg(lab.file("box.toml"));
    if args[0] != "check" {
        command.arg("--state").arg(lab.file("state"));
    }
    command
}

fn host(lab: &Lab, args: &[&str]) -> Output {
    command(lab, args).output().expect("gradbox")
}

/// What was found, by thing: how bad, and the command.
fn check(lab: &Lab) -> (Option<i32>, Value) {
    let done = host(lab, &["check", "--json"]);
    (done.status.code(), serde_json::from_slice(&done.stdout).expect("JSON"))
}

fn of<'a>(found: &'a Value, thing: &str) -> &'a Value {
    let all = found["findings"].as_array().expect("findings");
    all.iter().find(|f| f["thing"] == thing).unwrap_or_else(|| panic!("no {thing}: {found:#}"))
}

#[test]
fn what_is_said_is_true_and_its_commands_set_it_right() {
    let Some(lab) = lab() else { return };
    let (status, found) = check(&lab);
    assert_eq!(status, Some(4), "{found:#}");
    assert_eq!(found["interface"], "box0");
    for (thing, is, needed, command) in [
        ("MTU of box0", "2000", "1500", "ip link set dev box0 mtu 1500"),
        ("box0", "down", "up", "ip link set dev box0 up"),
        ("queues of box0", "4", "exactly 2", "ethtool -L box0 rx 2 tx 2"),
        ("rx-vlan-hw-parse of box0", "on", "off", "ethtool -K box0 rx-vlan-hw-parse off"),
    ] {
        let finding = of(&found, thing);
        assert_eq!(
            [&finding["found"], &finding["needed"], &finding["command"]],
            [is, needed, command],
            "{finding:#}"
        );
        let _ = lab.output("box", "sh", &["-c", command]);
    }
    assert_eq!(of(&found, "driver of box0")["found"], "veth");
    assert_eq!(of(&found, "zero-copy of box0")["found"], "not offered by the driver");
    let (status, found) = check(&lab);
    // Clocks of the CPUs are not the lab's to set.
    assert!(status == Some(0) || status == Some(3), "{found:#}");
    assert_eq!(found["summary"]["faults"], 0, "{found:#}");
    assert_eq!(of(&found, "carrier of box0")["severity"], "ok");
    // A person is told the same.
    let text = String::from_utf8(host(&lab, &["check"]).stdout).expect("text");
    assert!(text.contains("MTU of box0") && text.contains("0 fault(s)"), "{text}");
    // Zero-copy that veth has not.
    let config = fs::read_to_string(lab.file("box.toml")).unwrap().replace("copy", "zerocopy");
    fs::write(lab.file("box.toml"), config).unwrap();
    let (status, found) = check(&lab);
    assert_eq!((status, &found["summary"]["faults"]), (Some(4), &Value::from(1)), "{found:#}");
}

#[test]
fn what_is_applied_is_undone() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    let done = host(&lab, &["apply", "--dry-run"]);
    assert!(done.status.success() && settings(&lab) == before, "{done:?}");
    for times in 1..=2 {
        let done = host(&lab, &["apply"]);
        assert!(done.status.success(), "{done:?}");
        let out = String::from_utf8_lossy(&done.stdout);
        assert_eq!(out.contains("MTU of box0: 1500 (was 2000)"), times == 1, "{out}");
    }
    assert_ne!(settings(&lab), before);
    assert_eq!(check(&lab).1["summary"]["faults"], 0);
    let done = host(&lab, &["undo"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(settings(&lab), before);
    let again = host(&lab, &["undo"]);
    assert!(again.status.success(), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing to undo"), "{again:?}");
}

#[test]
fn a_kill_at_any_time_is_undone() {
    let Some(lab) = lab() else { return };
    let before = settings(&lab);
    let start = |args: &[&str]| Process::start("host", &mut command(&lab, args), &lab.file(""));
    let mut unfinished = 0;
    for millis in (0..60).step_by(2) {
        for action in ["apply", "undo"] {
            let process = start(&[action]);
            thread::sleep(Duration::from_millis(millis));
            process.signal(Signal::SIGKILL);
            unfinished += u32::from(!process.end().status.success());
        }
        let done = host(&lab, &["undo"]);
        assert!(done.status.success(), "{done:?}");
        assert_eq!(settings(&lab), before, "killed after {millis} ms");
        assert!(!lab.file("state/host-box0.json").exists());
    }
    assert!(unfinished > 0);
}

#[test]
fn what_cannot_be_told_or_done_is_said() {
    let Some(lab) = lab() else { return };
    let run = |args: &[&str]| {
        let mut command = lab.command("box", &gradbox());
        let done = command.arg("host").args(args).output().expect("gradbox");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (status, says) = run(&["check", "--interface", "nope0"]);
    assert!(status == Some(1) && says.contains("nope0: no such interface"), "{says}");
    let (status, says) = run(&["check", "--interface", "a\"b]\n"]);
    assert!(status == Some(1) && says.contains("data.interface"), "{says}");
    assert_eq!(run(&["check"]).0, Some(2));
    // An interface that has gone since keeps its record.
    assert!(host(&lab, &["apply"]).status.success());
    let _ = lab.output("box", "ip", &["link", "delete", "box0"]);
    let done = host(&lab, &["undo"]);
    let says = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && says.contains("box0 is not there"), "{says}");
    assert!(Path::new(&lab.file("state/host-box0.json")).exists());
}
