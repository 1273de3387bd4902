//! Captured packets on their way from a box to a file.
//!
//! * [`record`]: the stream that `GET /v1/capture` answers with
//! * [`mod@file`]: pcap and pcapng
#![forbid(unsafe_code)]

pub mod file;
pub mod record;
