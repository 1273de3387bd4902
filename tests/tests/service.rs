//! The box as a service on a machine of its own: what it may do once it serves.
//!
//! Needs root for network namespaces; without it the tests say so and pass.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::process::{DEADLINE, Process};
use gradbox_tests::lab::{Lab, Shape, gradbox, repository};
use nix::sys::signal::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// A user without any privilege.
const NOBODY: &str = "65534";

/// Fields of /proc/PID/task/TID/status that a box that serves must have, started as root.
const NOTHING: [(&str, &str); 6] = [
    ("CapInh", "0000000000000000"),
    ("CapPrm", "0000000000000000"),
    ("CapEff", "0000000000000000"),
    ("CapBnd", "0000000000000000"),
    ("CapAmb", "0000000000000000"),
    ("NoNewPrivs", "1"),
];

/// Names of the threads of a process; each must be without any privilege.
fn threads_without_privileges(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    tasks
        .map(|task| {
            let path = task.expect("a thread").path().join("status");
            let status = fs::read_to_string(path).expect("a status");
            let field = |name: &str| {
                let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
                line.unwrap_or_else(|| panic!("no {name} in\n{status}")).trim().to_owned()
            };
            for (name, expected) in NOTHING {
                assert_eq!(field(name), expected, "{name} of\n{status}");
            }
            field("Name")
        })
        .collect()
}

#[test]
fn a_box_that_serves_has_no_capability_and_needs_none() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 2, mtu: 1500 }) else { return };
    let mut the_box = TheBox::start(&lab, &Setup { queues: 2, ..Setup::XDP });
    let pid = the_box.process_mut().id();
    let threads = threads_without_privileges(pid);
    for name in ["gradbox", "control", "core-0", "core-1"] {
        assert!(threads.iter().any(|t| t == name), "no thread {name} in {threads:?}");
    }
    let log = the_box.process_mut().err();
    for name in ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON", "CAP_IPC_LOCK"] {
        assert!(log.contains(name), "{name} is not said to be dropped:\n{log}");
    }
    // Each job changes the allow-list of the XDP program twice.
    for name in ["first", "second"] {
        assert!(!Job::real(name, 2).start(&lab, &the_box).exact().is_empty());
    }
    assert!(the_box.counter("redirected") > 0);
    the_box.assert_empty();
    threads_without_privileges(pid);
    let ended = the_box.stop(Signal::SIGTERM);
    assert!(ended.status.success(), "{ended:?}");
    assert!(!lab.has_xdp(), "an XDP program was left");
}

/// What the unit says of `key`.
fn of_unit(key: &str) -> String {
    let path = repository("scripts/systemd/gradbox.service");
    let unit = fs::read_to_string(path).expect("the unit");
    let value = unit.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {key} in the unit")).to_owned()
}

/// Names in the way of setpriv(1): `+net_admin,+net_raw`, after all others were taken away.
fn for_setpriv(key: &str) -> String {
    let names = of_unit(key).to_lowercase().replace("cap_", "+").replace(' ', ",");
    format!("-all,{names}")
}

/// What systemd would do, by setpriv(1): another user, with the capabilities of the unit.
#[test]
fn the_capabilities_of_the_unit_are_enough_for_an_ordinary_user() {
    let Some(lab) = Lab::new(Shape { workers: 2, queues: 1, mtu: 1500 }) else { return };
    let (config, program) = (lab.file("service.toml"), lab.file("gradbox"));
    let notify = UnixDatagram::bind(lab.file("notify")).expect("a socket");
    notify.set_read_timeout(Some(DEADLINE)).expect("a bounded wait");
    let everybody =
        |path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    fs::write(&config, Setup::XDP.toml(&lab)).expect("a configuration");
    fs::copy(gradbox(), &program).expect("a copy that anybody can run");
    everybody(lab.file("notify"), 0o777);
    everybody(config.clone(), 0o644);
    everybody(program.clone(), 0o755);
    everybody(config.parent().expect("a directory").to_owned(), 0o755);

    let mut command = lab.command("box", Path::new("setpriv"));
    let (ambient, bounding) =
        (for_setpriv("AmbientCapabilities"), for_setpriv("CapabilityBoundingSet"));
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"]);
    command.args(["--inh-caps", &ambient, "--ambient-caps", &ambient, "--bounding-set", &bounding]);
    command.arg(program).args(["run", "--config"]).arg(config);
    command.env("NOTIFY_SOCKET", lab.file("notify"));
    let mut process = Process::start("service", &mut command, &lab.file(""));
    process.wait_for("READY");
    let told = || {
        let mut bytes = [0; 64];
        let n =
            notify.recv(&mut bytes).unwrap_or_else(|e| panic!("the manager was told nothing: {e}"));
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    };
    assert_eq!(told(), "READY=1");

    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).expect("a status");
    assert!(status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}")), "{status}");
    // The bounding set stays as the unit has it: emptying it takes a capability that is not given.
    for (name, expected) in NOTHING.iter().filter(|(name, _)| *name != "CapBnd") {
        assert!(status.contains(&format!("{name}:\t{expected}\n")), "{name} of\n{status}");
    }
    let the_box = TheBox::ready(&lab, process);
    assert!(!Job::real("real", 2).start(&lab, &the_box).exact().is_empty());
    let ended = the_box.stop(Signal::SIGTERM);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(told(), "STOPPING=1");
    assert!(!lab.has_xdp(), "an XDP program was left");
}
