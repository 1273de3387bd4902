//! Kernel, capabilities, memory.

use super::Host;
use crate::host::{Area, Change, Finding, HostError, Severity};
use caps::Capability;

/// Oldest kernel.
const KERNEL: (u32, u32) = (6, 6);

pub(super) fn check(host: &Host<'_>) -> Result<Vec<Finding>, HostError> {
    let mut found = Vec::new();
    if host.needs.xdp.is_some() {
        found.push(kernel(host)?);
        found.push(capabilities(host));
        found.push(locked_memory(host)?);
    }
    found.push(memory(host)?);
    Ok(found)
}

fn kernel(host: &Host<'_>) -> Result<Finding, HostError> {
    let kernel = host.machine.kernel()?;
    let (thing, needed) = ("kernel", format!("Linux {}.{} or newer", KERNEL.0, KERNEL.1));
    if kernel.version >= KERNEL {
        return Ok(Finding::good(Area::Machine, thing, kernel.release, needed));
    }
    let why = "before 6.1, mlx5 numbered zero-copy queues differently (N to 2N-1), and XDP with \
               more than one buffer is incomplete before 6.6";
    Ok(Finding::new((Severity::Fault, Area::Machine), thing, kernel.release, needed, why).command(
        "install a newer kernel and reboot (Debian 12: apt-get install -t bookworm-backports \
         linux-image-amd64)",
    ))
}

fn capabilities(host: &Host<'_>) -> Finding {
    let names = |caps: &[Capability]| {
        let mut names: Vec<_> = caps.iter().map(ToString::to_string).collect();
        names.sort();
        names.join(" ")
    };
    let thing = "capabilities";
    // That of locking memory is looked at with the limit.
    let missing: Vec<_> =
        host.missing.iter().copied().filter(|c| *c != Capability::CAP_IPC_LOCK).collect();
    let needed = "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON";
    if missing.is_empty() {
        return Finding::good(Area::Machine, thing, "all", needed);
    }
    let found = format!("without {}", names(&missing));
    let why = "the kernel takes no XDP program and gives no AF_XDP socket without them; as root, \
               or in a systemd service with:";
    Finding::new((Severity::Fault, Area::Machine), thing, found, needed, why)
        .command(format!("AmbientCapabilities={needed} CAP_IPC_LOCK"))
}

fn locked_memory(host: &Host<'_>) -> Result<Finding, HostError> {
    let thing = "locked memory";
    let needed = format!("CAP_IPC_LOCK, or a limit of {} or more", bytes(host.needs.memory_bytes));
    if !host.missing.contains(&Capability::CAP_IPC_LOCK) {
        return Ok(Finding::good(Area::Machine, thing, "CAP_IPC_LOCK: no limit", needed));
    }
    let limit = host.machine.locked_memory()?;
    let Some(limit) = limit.filter(|limit| *limit < host.needs.memory_bytes) else {
        return Ok(Finding::good(Area::Machine, thing, "a limit that is high enough", needed));
    };
    let why = "the kernel locks all frames in memory; as root, or in a systemd service with:";
    let found = format!("no CAP_IPC_LOCK and a limit of {}", bytes(limit));
    Ok(Finding::new((Severity::Fault, Area::Machine), thing, found, needed, why)
        .command(format!("LimitMEMLOCK={}", host.needs.memory_bytes)))
}

fn memory(host: &Host<'_>) -> Result<Finding, HostError> {
    let thing = "memory for frames";
    let needed = bytes(host.needs.memory_bytes);
    if host.needs.huge_pages > 0 {
        return Ok(Finding::good(Area::Machine, thing, "in huge pages", needed));
    }
    let available = host.machine.memory_available()?;
    let found = format!("{} available", bytes(available));
    if host.needs.memory_bytes <= available {
        return Ok(Finding::good(Area::Machine, thing, found, needed));
    }
    // A quarter stays for everything else.
    let mib = available / 4 * 3 / u64::from(host.needs.queues.max(1)) / (1 << 20);
    let why = "frames are never swapped: lower data.memory_mib or data.frames in the configuration";
    Ok(Finding::new((Severity::Fault, Area::Machine), thing, found, needed, why)
        .command(format!("memory_mib = {}", mib.max(1))))
}

/// Reserved pages of 2 MiB, where the configuration wants them.
pub(super) fn huge_pages(host: &Host<'_>) -> Result<Vec<Finding>, HostError> {
    let needed = host.needs.huge_pages;
    if needed == 0 {
        return Ok(Vec::new());
    }
    let pages = host.machine.huge_pages()?;
    let thing = "huge pages of 2 MiB";
    let (found, wanted) = (format!("{} free", pages.free), format!("{needed} free"));
    Ok(vec![if pages.free >= needed {
        Finding::good(Area::HugePages, thing, found, wanted)
    } else {
        let why = "data.huge_pages = true: each core maps its frames in reserved pages";
        let to = pages.total + (needed - pages.free);
        Finding::new((Severity::Fault, Area::HugePages), thing, found, wanted, why)
            .change("", Change::HugePages { was: pages.total, to })
    }])
}

/// Bytes for a person.
fn bytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
