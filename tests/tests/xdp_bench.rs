//! The committed objects of the bench, through the verifier of this kernel, on packets of every kind.
//!
//! Needs CAP_BPF and its like; without them each test says so and passes.

#[path = "xdp_bench/aggregator.rs"]
mod aggregator;

use std::fs;

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
