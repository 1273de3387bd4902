//! AF_XDP: the port of a real network interface.
//!
//! * [`program`]: the XDP program in the kernel: loading, attaching, allow-list, counters
//! * [`socket`]: one AF_XDP socket as a [`Port`](crate::dataplane::port::Port)

mod map;
pub mod program;
pub mod socket;
