//! Why the host's state could not be told, set or kept.

use crate::nic::NicError;
use std::io;
use std::path::{Path, PathBuf};

/// Why the host's state could not be told, set or kept.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The interface did not tell, or did not take.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A file of the kernel, or the record, cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the kernel, or the record, cannot be written.
    #[error("cannot write {value} to {}: {source} ({})", path.display(), may(path, source))]
    Write {
        /// Which.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else than what is known of it.
    #[error("{} holds {found:?} where {needed} is needed", path.display())]
    Strange {
        /// Which.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What it should be.
        needed: &'static str,
    },
    /// Another process changes this machine.
    #[error(
        "another `gradbox host` is at work with {}: wait for it to end (fuser -v {})",
        directory.display(),
        directory.display()
    )]
    Busy {
        /// Directory of the records.
        directory: PathBuf,
    },
    /// The kernel did not find as many huge pages as it was asked for.
    #[error(
        "{needed} huge pages are needed and {found} are free after asking for them: memory is in \
         use or scattered; boot with hugepages={needed} on the kernel's command line, or set \
         data.huge_pages = false"
    )]
    HugePages {
        /// Free ones.
        found: u64,
        /// Those that the box maps.
        needed: u64,
    },
    /// The card took a rule and shows none such.
    #[error(
        "{interface} took a rule for {flow} port {port} to queue {queue} and shows another one: \
         it cannot steer (ethtool -n {interface})"
    )]
    RuleUnseen {
        /// Interface.
        interface: String,
        /// UDP over which IP.
        flow: &'static str,
        /// Destination port.
        port: u16,
        /// Queue.
        queue: u32,
    },
    /// The interface of the record is not there.
    #[error("{interface} is not there (ip -br link lists interfaces); what is gone needs nothing")]
    Gone {
        /// Interface.
        interface: String,
    },
    /// No link came in time.
    #[error(
        "{interface} has no carrier after {seconds} s, and it needs one: look at the cable and at \
         the other end (ethtool {interface})"
    )]
    NoCarrier {
        /// Interface.
        interface: String,
        /// How long was waited.
        seconds: u64,
    },
}

/// What to do where a file takes no value.
fn may(path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "root may: sudo gradbox host ...".to_owned(),
        io::ErrorKind::StorageFull => format!("make room: df {}", path.display()),
        io::ErrorKind::ReadOnlyFilesystem => {
            "outside a container or sandbox it may be written".to_owned()
        }
        _ => {
            let others = path.with_file_name("scaling_available_governors");
            match path.ends_with("scaling_governor") {
                true => format!("what it takes: cat {}", others.display()),
                false => format!("look at it: ls -l {}", path.display()),
            }
        }
    }
}
