//! The machine and its interface: whether the box can run on them, setting them as it needs, and
//! putting everything back.
//!
//! ```text
//! Needs ---check---> Findings ---apply---> Record (on disk, before each change) ---undo---> as it was
//! ```
//!
//! A [`Finding`] of something that can be set carries the [`Change`] that sets it, from which both
//! the command that a person may type and what [`apply()`] does are made: they cannot differ.
#![forbid(unsafe_code)]

mod apply;
mod change;
mod check;
mod cpu_list;
mod drivers;
mod error;
#[cfg(test)]
mod fake;
mod finding;
mod machine;
mod needs;
mod record;
#[cfg(test)]
mod tests;
mod undo;

pub use apply::{Applied, Applying, apply};
pub use change::{Change, Queues};
pub use check::check;
pub use cpu_list::CpuList;
pub use drivers::{Driver, LINK_BYTES, driver};
pub use error::HostError;
pub use finding::{Area, Counts, Finding, Severity};
pub use machine::{HugePages, Kernel, Machine};
pub use needs::{Needs, Xdp};
pub use record::{Record, Store};
pub use undo::{Undone, undo};
