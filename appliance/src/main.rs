//! The `gradbox` binary.
fn main() {}
