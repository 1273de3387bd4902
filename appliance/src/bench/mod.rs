//! The instruments of `gradbox bench`.

mod bpf;
pub mod kernel_aggregator;
pub mod spread;

pub use bpf::{Error, Ran};
