//! RESULTs handed out whole, to be compared with what they should be.

use aya::maps::{MapData, RingBuf};

/// The ring that the sink copies RESULTs into. It holds about 290; while it is full, more are counted
/// as [`unsampled`](super::Counts::unsampled).
pub struct Samples(RingBuf<MapData>);

impl Samples {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Self(ring)
    }

    /// Gives each RESULT that is there to `each`, from its Ethernet header on. Does not wait.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        while let Some(entry) = self.0.next() {
            // Written by the sink: the length, then as many bytes.
            if let Some((len, rest)) = entry.split_first_chunk::<8>()
                && let Some(packet) = rest.get(..u64::from_le_bytes(*len) as usize)
            {
                each(packet);
            }
        }
    }
}
