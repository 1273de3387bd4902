//! What people use today, measured on the same networks as the box.
//!
//! * [`tcp`]: an aggregator over TCP

pub mod tcp;
