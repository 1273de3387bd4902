//! The same work done by what one would use instead, on the same cores and in the same run.
//!
//! * [`tcp`]: an aggregator over TCP
//! * [`memory`]: `step()` beside the aggregator in the kernel, both without a network
//! * [`network`]: the box beside sockets, on a veth pair

pub mod memory;
pub mod network;
pub mod tcp;

/// What Gradbox's own lines are called.
pub const GRADBOX: &str = "Gradbox";
