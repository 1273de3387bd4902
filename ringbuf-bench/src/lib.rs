//! What rings and the data plane's `step()` cost, measured.

pub mod path;
pub mod samples;
