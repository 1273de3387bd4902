//! The instruments of `gradbox bench`.

mod bpf;
pub mod generator;
pub mod kernel_aggregator;
pub mod spread;

pub use bpf::{Error, Ran};
