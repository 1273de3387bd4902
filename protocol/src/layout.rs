//! How a job's tensors are cut into chunks, and chunks dealt to shards: box and worker compute
//! the same layout from the same table.

use crate::DType;
use alloc::vec::Vec;

/// Tensors that a job may have: the wire has 16 bits for the index.
pub const MAX_TENSORS: usize = 1 << 16;

/// Chunks of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorChunks {
    /// Index of its first chunk in the job.
    pub first: u32,
    /// Number of chunks; 0 for a tensor of no elements.
    pub count: u32,
    /// Payload bytes of its last chunk; the others are full.
    pub last_bytes: u16,
}

/// The chunks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<TensorChunks>,
    chunk_bytes: u16,
    shards: u16,
    chunks: u32,
}

/// Why a tensor table has no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The table is empty or too long.
    #[error("a job has 1 to {MAX_TENSORS} tensors, found {0}: split it into several jobs")]
    Tensors(usize),
    /// The chunks do not fit into 31 bits.
    #[error("the tensors make more than 2^31 chunks of {chunk_bytes} bytes: split the job")]
    TooLarge {
        /// Payload bytes of a full chunk.
        chunk_bytes: u16,
    },
    /// Chunk size or shard count out of range.
    #[error("needs a chunk size that is a positive multiple of 64 and 1 or more shards")]
    Geometry,
}

impl Layout {
    /// Lays out tensors of `elements` each, in chunks of `chunk_bytes`, over `shards`.
    ///
    /// # Errors
    /// Where the table is empty, too long or too large, or `chunk_bytes` is not a positive
    /// multiple of 64, or `shards` is 0.
    pub fn new(
        dtype: DType,
        elements: impl IntoIterator<Item = u64>,
        chunk_bytes: u16,
        shards: u16,
    ) -> Result<Self, LayoutError> {
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(64) || shards == 0 {
            return Err(LayoutError::Geometry);
        }
        let full = u64::from(chunk_bytes);
        let mut tensors = Vec::new();
        let mut next = 0u64;
        for elements in elements {
            let bytes = elements
                .checked_mul(dtype.size() as u64)
                .ok_or(LayoutError::TooLarge { chunk_bytes })?;
            let count = bytes.div_ceil(full);
            let last = if count == 0 { 0 } else { bytes - (count - 1) * full };
            if next + count > 1 << 31 {
                return Err(LayoutError::TooLarge { chunk_bytes });
            }
            tensors.push(TensorChunks {
                first: next as u32,
                count: count as u32,
                last_bytes: last as u16,
            });
            next += count;
        }
        if tensors.is_empty() || tensors.len() > MAX_TENSORS {
            return Err(LayoutError::Tensors(tensors.len()));
        }
        Ok(Self { tensors, chunk_bytes, shards, chunks: next as u32 })
    }

    /// The tensors' chunks, in the order of the table.
    #[must_use]
    pub fn tensors(&self) -> &[TensorChunks] {
        &self.tensors
    }

    /// Payload bytes of a full chunk.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u16 {
        self.chunk_bytes
    }

    /// Number of shards.
    #[must_use]
    pub const fn shards(&self) -> u16 {
        self.shards
    }

    /// Number of chunks of the whole job.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Payload bytes of `chunk`, or `None` where it is no chunk of `tensor`.
    #[must_use]
    #[inline]
    pub fn chunk_len(&self, tensor: u16, chunk: u32) -> Option<u16> {
        let t = self.tensors.get(usize::from(tensor))?;
        let within = chunk.wrapping_sub(t.first);
        if within >= t.count {
            return None;
        }
        Some(if within + 1 == t.count { t.last_bytes } else { self.chunk_bytes })
    }

    /// Byte offset of `chunk` in its tensor's data.
    ///
    /// # Panics
    /// Where `tensor` is not in the table, in debug builds also where `chunk` is not its.
    #[must_use]
    pub fn chunk_offset(&self, tensor: u16, chunk: u32) -> usize {
        let t = &self.tensors[usize::from(tensor)];
        debug_assert!(chunk - t.first < t.count);
        (chunk - t.first) as usize * usize::from(self.chunk_bytes)
    }

    /// The shard that owns `chunk`, and the index of its slot there.
    #[must_use]
    #[inline]
    pub const fn place(&self, chunk: u32) -> (u16, u32) {
        let shards = self.shards as u32;
        ((chunk % shards) as u16, chunk / shards)
    }

    /// Number of slots of `shard`.
    #[must_use]
    pub const fn slots(&self, shard: u16) -> u32 {
        let shards = self.shards as u32;
        self.chunks / shards + ((self.chunks % shards) > shard as u32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_small_table() {
        let l = Layout::new(DType::F32, [352, 353, 0, 1], 1408, 2).unwrap();
        assert_eq!(l.chunks(), 4);
        assert_eq!(l.chunk_len(0, 0), Some(1408));
        assert_eq!(l.chunk_len(1, 1), Some(1408));
        assert_eq!(l.chunk_len(1, 2), Some(4));
        assert_eq!(l.chunk_len(1, 3), None);
        assert_eq!(l.chunk_len(2, 3), None);
        assert_eq!(l.chunk_len(3, 3), Some(4));
        assert_eq!(l.chunk_len(4, 3), None);
        assert_eq!((l.slots(0), l.slots(1)), (2, 2));
    }

    #[test]
    fn refusals() {
        assert_eq!(Layout::new(DType::F32, [], 64, 1), Err(LayoutError::Tensors(0)));
        assert_eq!(Layout::new(DType::F32, [1], 63, 1), Err(LayoutError::Geometry));
        assert_eq!(Layout::new(DType::F32, [1], 64, 0), Err(LayoutError::Geometry));
        let too_large = Err(LayoutError::TooLarge { chunk_bytes: 64 });
        assert_eq!(Layout::new(DType::F32, [u64::MAX], 64, 1), too_large);
        assert_eq!(Layout::new(DType::F32, [1 << 40], 64, 1), too_large);
    }

    proptest! {
        #[test]
        fn every_chunk_has_one_place(
            sizes in proptest::collection::vec(0u64..5000, 1..20),
            shards in 1u16..9,
            dtype in proptest::sample::select(&DType::ALL[..]),
        ) {
            let l = Layout::new(dtype, sizes.iter().copied(), 128, shards).unwrap();
            let mut bytes = 0;
            let mut places = alloc::collections::BTreeSet::new();
            for (t, tensor) in l.tensors().iter().enumerate() {
                for chunk in tensor.first..tensor.first + tensor.count {
                    bytes += u64::from(l.chunk_len(t as u16, chunk).unwrap());
                    let (shard, slot) = l.place(chunk);
                    prop_assert!(slot < l.slots(shard));
                    prop_assert!(places.insert((shard, slot)));
                }
            }
            prop_assert_eq!(bytes, sizes.iter().sum::<u64>() * dtype.size() as u64);
            prop_assert_eq!(places.len() as u32, (0..shards).map(|s| l.slots(s)).sum::<u32>());
        }
    }
}
