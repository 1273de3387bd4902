//! The worker side of Gradbox: joins a job, pushes gradients to the box over UDP and takes the
//! sums back, whatever the network loses, doubles or reorders.
//!
//! ```no_run
//! use gradbox_client::{Options, Tensor, Worker};
//!
//! # fn main() -> Result<(), gradbox_client::Error> {
//! let options = Options::new("10.0.0.1:9000", "resnet", 0, 4).tensor("fc.weight", 2_048_000);
//! let worker = Worker::join(options)?;
//! let mut gradient = [Tensor::F32(vec![0.5; 2_048_000])];
//! let report = worker.all_reduce(&mut gradient, None)?;
//! println!("{} bytes in {:?}", report.bytes, report.duration());
//! # Ok(())
//! # }
//! ```
//!
//! * [`worker`]: [`Worker`], what a training loop calls
//! * [`handle`]: [`Handle`], a call that is under way
//! * [`options`]: what a worker is told at join
//! * [`tensor`]: the buffers that are reduced
//! * [`error`]: everything that can go wrong, in words
//! * [`stats`]: counters of a worker, times of a call
//! * [`engine`]: the protocol as a state machine without I/O, for simulators and tests
#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the wire is little-endian and tensors are sent as they lie in memory");

mod control;
mod convert;
pub mod engine;
pub mod error;
pub mod handle;
mod io;
pub mod options;
mod path;
mod socket;
pub mod stats;
#[expect(unsafe_code, reason = "system calls that the standard library does not offer")]
mod sys;
pub mod tensor;
mod transport;
pub mod worker;

pub use error::{Error, Stall};
pub use gradbox_protocol::control::{BoxInfo, TensorEntry};
pub use gradbox_protocol::{DType, Op, Reply};
pub use handle::{Finished, Handle};
pub use options::Options;
pub use stats::{Report, Stats};
pub use tensor::Tensor;
pub use worker::Worker;
