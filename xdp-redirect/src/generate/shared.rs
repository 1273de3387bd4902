//! What generator and sink both use.

use aya_ebpf::{Global, macros::map, maps::Array};
use gradbox_protocol::bench::Chunk;

/// What is known of each chunk. As many as chunks; set by the loader.
#[map]
pub static CHUNKS: Array<[u32; Chunk::COUNT]> = Array::with_max_entries(1, 0);

/// Of each shard the packets that RESULTs have answered, in the first word of a cache line: the whole
/// world's when a chunk's round is seen to be complete. The answers of a shard come from one core over
/// one queue, so the sink need not lock. As many as shards; set by the loader.
#[map]
pub static ANSWERED: Array<[u64; 8]> = Array::with_max_entries(1, 0);

/// Ranks of the job. Set by the loader, as all of these.
#[unsafe(no_mangle)]
pub static WORLD: Global<u32> = Global::new(1);

/// Its chunks.
#[unsafe(no_mangle)]
pub static CHUNK_COUNT: Global<u32> = Global::new(1);

/// UDP port of the box's first shard, and the number of shards.
#[unsafe(no_mangle)]
pub static PORT_BASE: Global<u16> = Global::new(0);
#[unsafe(no_mangle)]
pub static SHARDS: Global<u32> = Global::new(1);
