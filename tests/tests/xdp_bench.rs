//! The committed objects of the bench, through the verifier of this kernel, on packets of every kind.
//!
//! Needs CAP_BPF and its like; without them each test says so and passes.

#[path = "xdp_bench/aggregator.rs"]
mod aggregator;
#[path = "xdp_bench/generator.rs"]
mod generator;
#[path = "xdp_bench/segments.rs"]
mod segments;

use std::{fs, process::Command, thread};

/// `enum xdp_action` (linux/bpf.h).
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// Capabilities by bit (linux/capability.h).
const CAPABILITIES: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

/// Whether this process may do what the tests do; says so if not.
fn privileged() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let held = u64::from_str_radix(held, 16).unwrap();
    for (bit, name) in CAPABILITIES {
        if held >> bit & 1 == 0 {
            println!("skipped: needs {name}");
            return false;
        }
    }
    true
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
}

/// Runs `test` on a thread in a network namespace of its own, with the veth pair `worker`-`box`.
/// The namespace ends with the thread, so nothing is left behind however the test ends.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        // SAFETY: takes no pointers; it moves this thread alone to a new namespace.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(moved, 0, "{}", std::io::Error::last_os_error());
        run("ip", "link add worker type veth peer name box");
        run("ip", "link set worker up");
        run("ip", "link set box up");
        // With GRO veth takes frames that are not packets of the kernel's (skbs), as XDP sends them.
        run("ethtool", "-K worker gro on");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
