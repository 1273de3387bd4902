//! The data plane: one [`core::Core`] per shard, each with one [`port::Port`] and one UMEM, sharing nothing.
//!
//! * [`frame`], [`pool`], [`umem`]: memory, and who owns which part of it
//! * [`ring`], [`ring_set`]: single-producer single-consumer rings, as AF_XDP lays them out
//! * [`port`]: the seam to the world; [`mem`], [`udp`] and [`crate::xdp`] implement it, [`faults`] wraps one
//! * [`plan`], [`job`]: what a job is, and its slots
//! * [`core`]: the worker: one `step()` takes a batch from the port and answers it
//! * [`answer`]: RESULT, STATUS, ERROR and PONG made of received packets
//! * [`steer`]: packets that came to the wrong queue
//! * [`tap`]: copies of packets for somebody who reads along
//! * [`counters`], [`handle`]: what the rest of the box sees and says

pub mod answer;
pub mod core;
pub mod counters;
mod due;
pub mod faults;
pub mod frame;
pub mod handle;
pub mod job;
pub mod mem;
pub mod plan;
pub mod pool;
pub mod port;
pub mod ring;
pub mod ring_set;
pub mod steer;
pub mod tap;
pub mod udp;
pub mod umem;
