//! Why an interface did not tell, or did not take.

use std::io;

/// Why an interface did not tell, or did not take.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// There is none of that name.
    #[error("{interface}: no such interface here (ip -br link lists them)")]
    Missing {
        /// Name that was asked for.
        interface: String,
    },
    /// The kernel does not tell.
    #[error("cannot read {what} of {interface}: {source}")]
    Read {
        /// Interface.
        interface: String,
        /// What was asked for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Kernel or driver refuses a setting.
    #[error("{interface} does not take {what} = {value}: {source}{}", 
        .explanation.as_deref().map(|e| format!(" ({e})")).unwrap_or_default())]
    Refused {
        /// Interface.
        interface: String,
        /// What was to be set.
        what: String,
        /// To which value.
        value: String,
        /// What the kernel said.
        source: io::Error,
        /// The kernel's words for it (extended acknowledgement), where it had any.
        explanation: Option<String>,
    },
}
