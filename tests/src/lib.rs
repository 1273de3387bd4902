//! What the tests of the whole product share.
//!
//! * [`golden`]: the golden packets and the box that answers them
//! * [`lab`]: namespaces with the real box and real workers in them
//! * [`packets`]: packets as workers send them
//! * [`siege`]: a job of honest workers under a flood of packets that somebody else sends
//! * [`simulation`]: a box on the `mem` port, its workers and the network between them, moved by
//!   a seeded scheduler
//! * [`watch`]: the rings of a running box, read from outside
#![deny(unsafe_code)]

pub mod golden;
#[cfg(feature = "box")]
pub mod lab;
pub mod packets;
pub mod siege;
pub mod simulation;
pub mod watch;
