//! Gradbox, the appliance: gradient packets in over AF_XDP, bit-exact sums out.
//!
//! * [`sum`]: the N-way rank-order sum kernels
//! * [`dataplane`]: cores, slots, frames and ports
//! * [`xdp`]: the AF_XDP port and the XDP program's loader
//! * [`config`]: the configuration file
//! * [`capture`]: captured packets on their way to a file
//! * [`control`]: join, leave, status, health and metrics over HTTP
//! * [`appliance`]: all of it, started and stopped in the right order
//! * [`model`]: tables of tensors; [`record`]: what workers write of their rounds
//! * [`nic`]: what an interface is and how it is set; [`privileges`]: what the box may do;
//!   [`host`]: whether machine and interface will do, setting them, and putting them back
//! * [`mod@bench`]: how fast it is here
//! * [`cli`]: the subcommands of the `gradbox` binary
//!
//! Without the feature `box` there are only the first two.
#![deny(unsafe_code)]

#[cfg(feature = "box")]
pub mod appliance;
#[cfg(feature = "box")]
pub mod bench;
#[cfg(feature = "box")]
pub mod capture;
#[cfg(feature = "box")]
pub mod cli;
#[cfg(feature = "box")]
pub mod config;
#[cfg(feature = "box")]
pub mod control;
pub mod dataplane;
#[cfg(feature = "box")]
pub mod host;
#[cfg(feature = "box")]
pub mod model;
#[cfg(feature = "box")]
pub mod nic;
#[cfg(feature = "box")]
pub mod privileges;
#[cfg(feature = "box")]
pub mod record;
#[expect(unsafe_code, reason = "vector kernels")]
pub mod sum;
#[cfg(feature = "box")]
pub mod xdp;
