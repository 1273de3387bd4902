//! What benchmarks are made of.
//!
//! * [`network`]: networks that vanish with the process
//! * [`peers`]: what people use today, measured on the same networks

pub mod network;
pub mod peers;
