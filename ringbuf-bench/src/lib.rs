//! What rings, hand-overs between cores and the data plane's `step()` cost, measured.
//!
//! `cargo run --release -p ringbuf-bench` prints a table, `cargo bench -p ringbuf-bench` runs the
//! same under criterion. `docs/ring-measurements.md` has figures and what follows from them.
//!
//! * [`handover`]: queues between two cores
//! * [`ring`], [`xsk`]: AF_XDP's rings, inline and through xsk-rs
//! * [`report`]: the tables
//!
//! `step()` itself is measured by [`gradbox::bench::path`].
#![deny(unsafe_code)]

pub mod handover;
pub mod report;
pub mod ring;
pub mod xsk;
