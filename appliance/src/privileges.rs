//! What the box may do beyond an ordinary process, and for how long.
//!
//! Capabilities belong to threads, and a new thread gets those of the one that starts it. So the
//! thread that sets the box up drops them before it starts any other.
#![forbid(unsafe_code)]

use caps::errors::CapsError;
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

/// Why the privileges are still there.
#[derive(Debug, thiserror::Error)]
pub enum DropError {
    /// A set of capabilities cannot be read or emptied.
    #[error("cannot drop the {set} capabilities of this thread: {source}; {HELP}")]
    Capabilities {
        /// Which set.
        set: &'static str,
        /// What the system said.
        source: CapsError,
    },
    /// The kernel took the call, and capabilities are left.
    #[error("capabilities are left after all were dropped: {left}; {HELP}")]
    Left {
        /// Their names.
        left: String,
    },
    /// PR_SET_NO_NEW_PRIVS.
    #[error("cannot forbid new privileges (PR_SET_NO_NEW_PRIVS): {0}; {HELP}")]
    NewPrivileges(#[source] nix::Error),
}

/// What helps in every case.
const HELP: &str = "a filter of system calls must allow capset(2) and prctl(2)";

/// Those of [`NEEDED`] that the calling thread does not have.
///
/// # Errors
/// Where the kernel does not tell.
pub fn missing() -> Result<Vec<Capability>, CapsError> {
    let held = caps::read(None, CapSet::Effective)?;
    Ok(NEEDED.into_iter().filter(|c| !held.contains(c)).collect())
}

/// Takes all capabilities from the calling thread and from those that it starts from now on, for
/// good: also a program that they execute gets none. The user stays the same. Returns the names of
/// what was permitted before, in order.
///
/// The bounding set is emptied where the thread may do that (`CAP_SETPCAP`); elsewhere it stays,
/// and means nothing any more.
///
/// # Errors
/// Where a capability cannot be dropped, or new privileges cannot be forbidden.
pub fn drop_all() -> Result<Vec<String>, DropError> {
    let failed = |set| move |source| DropError::Capabilities { set, source };
    let had = caps::read(None, CapSet::Permitted).map_err(failed("permitted"))?;
    nix::sys::prctl::set_no_new_privs().map_err(DropError::NewPrivileges)?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)
        .map_err(failed("effective"))?
    {
        caps::clear(None, CapSet::Bounding).map_err(failed("bounding"))?;
    }
    // The permitted set comes last: without it the others cannot be filled again.
    let sets = [
        ("ambient", CapSet::Ambient),
        ("effective", CapSet::Effective),
        ("inheritable", CapSet::Inheritable),
        ("permitted", CapSet::Permitted),
    ];
    for (name, set) in sets {
        caps::clear(None, set).map_err(failed(name))?;
    }
    for (name, set) in sets {
        let left = names(caps::read(None, set).map_err(failed(name))?);
        if !left.is_empty() {
            return Err(DropError::Left { left: left.join(" ") });
        }
    }
    Ok(names(had))
}

fn names(set: impl IntoIterator<Item = Capability>) -> Vec<String> {
    let mut names: Vec<_> = set.into_iter().map(|c| c.to_string()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_gives_what_is_needed_and_no_more() {
        let unit = include_str!("../../scripts/systemd/gradbox.service");
        for key in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
            let lines: Vec<_> = unit.lines().filter_map(|l| l.strip_prefix(key)).collect();
            let [line] = lines[..] else { panic!("{key}: {lines:?}") };
            let given: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(given, NEEDED.map(|c| c.to_string()), "{key}");
        }
    }

    #[test]
    fn the_calling_thread_loses_all_and_others_nothing() {
        let before = caps::read(None, CapSet::Permitted).unwrap();
        let dropped = std::thread::spawn(|| {
            let dropped = drop_all().unwrap();
            assert_eq!(missing().unwrap(), NEEDED);
            assert!(nix::sys::prctl::get_no_new_privs().unwrap());
            // Again: nothing is left to drop, which is no error.
            assert_eq!(drop_all().unwrap(), Vec::<String>::new());
            dropped
        });
        assert_eq!(dropped.join().unwrap(), names(before.clone()));
        assert_eq!(caps::read(None, CapSet::Permitted).unwrap(), before);
    }
}
