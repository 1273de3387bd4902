//! The box as a service on a machine of its own: what it may do once it serves.
//!
//! Needs root for network namespaces; without it the test says so and passes.

use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use gradbox_tests::lab::{Lab, Shape};
use nix::sys::signal::Signal;
use std::fs;

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
