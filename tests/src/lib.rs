//! What the tests of the whole product share.
//!
//! * [`packets`]: packets as workers send them
//! * [`simulation`]: a box on the `mem` port, its workers and the network between them, moved by
//!   a seeded scheduler
#![forbid(unsafe_code)]

pub mod packets;
pub mod simulation;
