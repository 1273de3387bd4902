//! The wire format of Gradbox: one source of truth for the XDP program, the box and every client.
//!
//! The same rules, in prose and with byte offsets for other languages, are in
//! `docs/protocol.md`; the golden packets in `tests/data/packets` hold both to their word.
//!
//! * [`header`]: the 32 bytes that every packet starts with
//! * [`status`]: the body of STATUS
//! * [`number`]: data types and operations
//! * [`reply`]: a RESULT for each rank, or one for all
//! * [`envelope`]: Ethernet, VLAN, IP and UDP around a packet, and the reply made of it
//! * [`layout`]: how tensors are cut into chunks and chunks dealt to shards
//! * [`control`]: the JSON bodies of join, leave and status
//! * [`verdict`]: what the XDP program may decide, with the names of its counters
//! * [`mod@bench`]: what the BPF programs of `gradbox bench` share with their loaders
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "control")]
extern crate alloc;

pub mod bench;
#[cfg(feature = "control")]
pub mod control;
mod counted;
#[cfg(feature = "wire")]
pub mod envelope;
#[cfg(feature = "wire")]
pub mod header;
#[cfg(feature = "control")]
pub mod layout;
pub mod number;
pub mod reply;
#[cfg(feature = "wire")]
pub mod status;
pub mod verdict;

#[cfg(feature = "wire")]
pub use header::{ErrorCode, Flags, Header, Kind};
pub use number::{DType, Op};
pub use reply::Reply;

/// First two bytes of every packet, `"GB"` in memory order.
pub const MAGIC: u16 = u16::from_le_bytes(*b"GB");

/// Version of the wire format. A packet of another version is not understood and is dropped.
pub const VERSION: u8 = 1;

/// Bytes of the header that every packet starts with, right after UDP.
pub const HEADER_LEN: usize = 32;

/// Largest `world`: ranks are bits of one `u32` in a slot.
pub const MAX_WORLD: usize = 32;

/// Chunks that one STATUS speaks of at most.
pub const STATUS_CHUNKS: usize = 512;

/// Bytes of IPv6 and UDP headers, the larger of the two families: what a chunk must leave room
/// for within the MTU, so that one chunk size serves both.
const IP_UDP_LEN: usize = 40 + 8;

/// Payload bytes of a full chunk at an `mtu` (bytes of an IP packet): the largest multiple of 64
/// that fits behind IPv6, UDP and the Gradbox header. 1408 at 1500, 3392 at 3498.
///
/// Returns `None` where not even 64 bytes fit.
#[must_use]
pub const fn chunk_bytes(mtu: usize) -> Option<u16> {
    if mtu < IP_UDP_LEN + HEADER_LEN + 64 || mtu > 9216 {
        return None;
    }
    Some(((mtu - IP_UDP_LEN - HEADER_LEN) & !63) as u16)
}

#[cfg(test)]
mod tests {
    #[test]
    fn chunk_sizes_of_the_usual_mtus() {
        assert_eq!(super::chunk_bytes(1500), Some(1408));
        assert_eq!(super::chunk_bytes(3498), Some(3392));
        assert_eq!(super::chunk_bytes(143), None);
        assert_eq!(super::chunk_bytes(144), Some(64));
    }
}
