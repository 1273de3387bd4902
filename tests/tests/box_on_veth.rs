//! The real box, real workers and a real network: AF_XDP in namespaces, and ordinary sockets on
//! loopback. See `gradbox_tests::lab` for where the program comes from.
//!
//! All but the loopback tests need root; without it they say so and pass.

#[path = "box_on_veth/answers.rs"]
mod answers;
#[path = "box_on_veth/exact.rs"]
mod exact;
#[path = "box_on_veth/flood.rs"]
mod flood;
#[path = "box_on_veth/joins.rs"]
mod joins;
#[path = "box_on_veth/launch.rs"]
mod launch;
#[path = "box_on_veth/life.rs"]
mod life;
#[path = "box_on_veth/multicast.rs"]
mod multicast;
#[path = "box_on_veth/peers.rs"]
mod peers;
