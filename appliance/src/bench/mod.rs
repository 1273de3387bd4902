//! `gradbox bench`: how fast the box is here, beside what the machine allows and what others do.
//!
//! * [`sum`]: the sum kernels; [`path`]: `step()` in memory
//! * [`network`]: networks that a benchmark makes for itself
//! * [`figure`]: what is found, and its file; [`show`]: as tables; [`report`]: as a page;
//!   [`machine`]: where; [`spread`]: how surely
//!
//! Every benchmark compares the bits of a sample of its results with the reference.

pub mod figure;
mod groups;
pub mod machine;
pub mod network;
pub mod path;
pub mod report;
pub mod show;
pub mod spread;
pub mod sum;
