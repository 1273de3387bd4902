//! `gradbox bench`: how fast the box is here, beside what the machine allows and what others do.
//!
//! * [`sum`]: the sum kernels; [`path`]: `step()` in memory
//! * [`generator`]: load for an interface; [`kernel_aggregator`]: the rival in the kernel
//! * [`replay`]: the all-reduces of a training step
//! * [`network`]: networks that a benchmark makes for itself
//! * [`figure`]: what is found, and its file; [`show`]: as tables; [`machine`]: where;
//!   [`spread`]: how surely
//!
//! Every benchmark compares the bits of a sample of its results with the reference.

mod bpf;
pub mod figure;
pub mod generator;
mod groups;
pub mod kernel_aggregator;
pub mod machine;
pub mod network;
pub mod path;
pub mod peers;
pub mod replay;
mod running;
pub mod show;
pub mod spread;
pub mod sum;

pub use bpf::{Error, Ran};
