//! What benchmarks are made of.
//!
//! * [`network`]: networks that vanish with the process

pub mod network;
