//! The body of STATUS: what the box holds of one rank, and what is done.

use crate::STATUS_CHUNKS;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Value of [`StatusBody::waiting_for`] where nobody is waited for.
pub const NOBODY: u8 = 0xff;

/// Bytes of one bitmap.
const BITMAP: usize = STATUS_CHUNKS / 8;

/// Bytes of a STATUS body.
pub const STATUS_BODY_LEN: usize = size_of::<StatusBody>();

/// The body, as it lies in the packet. Bit `i` of both bitmaps (bit `i % 8` of byte `i / 8`)
/// speaks of chunk `header.chunk + i * shards`: the next chunk of the same shard.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StatusBody {
    /// Bits in use in each bitmap, at most [`STATUS_CHUNKS`].
    pub count: U16,
    /// Packets that this rank may now have in flight to this shard.
    pub credit: U16,
    /// Lowest rank that the first unfinished chunk of the range still lacks while this rank's
    /// part is held; [`NOBODY`] where there is none.
    pub waiting_for: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// All ranks that are waited for at that chunk, a bit each.
    pub missing: U32,
    /// Zero.
    pub reserved2: U32,
    /// The box holds this rank's part for the round that the slot is collecting.
    pub held: [u8; BITMAP],
    /// Low bit of the number of rounds that the slot has completed: it differs from the low bit
    /// of a worker's round `r` exactly when `r` is done there.
    pub done: [u8; BITMAP],
}

impl StatusBody {
    /// A body of `count` chunks with nothing held and nothing done.
    #[must_use]
    pub fn new(count: u16, credit: u16) -> Self {
        Self {
            count: count.into(),
            credit: credit.into(),
            waiting_for: NOBODY,
            reserved: [0; 3],
            missing: 0.into(),
            reserved2: 0.into(),
            held: [0; BITMAP],
            done: [0; BITMAP],
        }
    }

    /// Reads a STATUS body, or `None` where its length or its count is impossible.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<&Self> {
        let status = Self::ref_from_bytes(body).ok()?;
        (usize::from(status.count.get()) <= STATUS_CHUNKS).then_some(status)
    }

    /// Sets bit `i` of one of the bitmaps.
    ///
    /// # Panics
    /// Where `i` is not below [`STATUS_CHUNKS`].
    pub fn set(bitmap: &mut [u8; BITMAP], i: usize) {
        bitmap[i / 8] |= 1 << (i % 8);
    }

    /// Bit `i` of one of the bitmaps.
    ///
    /// # Panics
    /// Where `i` is not below [`STATUS_CHUNKS`].
    #[must_use]
    pub const fn get(bitmap: &[u8; BITMAP], i: usize) -> bool {
        bitmap[i / 8] & (1 << (i % 8)) != 0
    }

    /// Whether round `round` is done at chunk `i` of the range.
    #[must_use]
    pub const fn is_done(&self, i: usize, round: u32) -> bool {
        Self::get(&self.done, i) != (round & 1 == 1)
    }
}
