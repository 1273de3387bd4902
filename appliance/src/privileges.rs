//! What the box may do beyond an ordinary process, and for how long.
#![forbid(unsafe_code)]

use caps::{CapSet, Capability};

/// Capabilities that setting up AF_XDP takes (`net/xdp/xsk.c`, `kernel/bpf/syscall.c`). Without
/// `CAP_IPC_LOCK` the limit on locked memory (`ulimit -l`) must hold all frames.
pub const NEEDED: [Capability; 5] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_IPC_LOCK,
];

/// Those of [`NEEDED`] that the calling thread does not have.
///
/// # Errors
/// Where the kernel does not tell.
pub fn missing() -> Result<Vec<Capability>, caps::errors::CapsError> {
    let held = caps::read(None, CapSet::Effective)?;
    Ok(NEEDED.into_iter().filter(|c| !held.contains(c)).collect())
}
