//! Frames: the right to use one frame of the UMEM, as a value that cannot be copied.

use gradbox_protocol::HEADER_LEN;
use gradbox_protocol::envelope::Envelope;
use std::num::NonZeroU32;

/// Frames that one UMEM may have: a [`Place`] has 24 bits for the index.
pub const MAX_FRAMES: u32 = (1 << 24) - 1;

/// Bytes that the kernel keeps free before every packet (`XDP_PACKET_HEADROOM`,
/// `include/uapi/linux/bpf.h`).
pub const XDP_HEADROOM: usize = 256;

/// Frame headroom asked of the kernel on top: with it the payload of an untagged IPv4 packet
/// (14 + 20 + 8 + 32 bytes of headers) starts on a 64-byte line.
pub const HEADROOM: usize = 54;

/// Where a packet starts in its frame, if the driver adds nothing of its own.
pub const ORIGIN: usize = XDP_HEADROOM + HEADROOM;

/// One frame. Whoever has the value owns the memory; there is exactly one value for each frame
/// that user space owns, and none for a frame that the kernel owns.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is dropped is lost to the box"]
pub struct Frame(u32);

impl Frame {
    /// The frame of `index`.
    ///
    /// # Safety
    /// No other value for this frame exists in its UMEM, and the kernel does not own it.
    #[expect(unsafe_code, reason = "who may call it is a promise that types cannot hold")]
    pub(super) const unsafe fn mint(index: u32) -> Self {
        Self(index)
    }

    /// Index in the UMEM.
    #[must_use]
    #[inline]
    pub const fn index(&self) -> u32 {
        self.0
    }
}

/// A packet in a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    /// The frame.
    pub frame: Frame,
    /// Offset of the Ethernet header in the frame.
    pub start: u16,
    /// Bytes of the packet, without its checksum trailer.
    pub len: u16,
}

/// A frame, where its packet starts, and the shape of the packet's envelope: all that is needed
/// to find the payload without touching it, in four bytes, so that the parts of a chunk lie
/// together in the cache. A place is only knowledge; [`Held`] is ownership.
///
/// Bits 0-23: index + 1. Bits 24-25: shape of the envelope. Bits 26-31: where the packet starts,
/// in steps of two bytes behind [`XDP_HEADROOM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(NonZeroU32);

impl Place {
    /// Packs a place, or `None` where a driver put the packet so that it does not fit.
    #[inline]
    fn pack(index: u32, start: u16, shape: u8) -> Option<Self> {
        let steps = u32::from(start).wrapping_sub(XDP_HEADROOM as u32);
        if !steps.is_multiple_of(2) || steps >= 128 || shape > 3 {
            return None;
        }
        NonZeroU32::new((index + 1) | u32::from(shape) << 24 | (steps / 2) << 26).map(Self)
    }

    /// Index of the frame.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u32 {
        (self.0.get() & 0xff_ffff) - 1
    }

    /// Offset of the packet in the frame.
    #[must_use]
    #[inline]
    pub const fn start(self) -> usize {
        XDP_HEADROOM + (self.0.get() >> 26) as usize * 2
    }

    /// The envelope of the packet, for a UDP payload of `len` bytes.
    #[must_use]
    #[inline]
    pub const fn envelope(self, len: u16) -> Envelope {
        Envelope::of_shape((self.0.get() >> 24 & 3) as u8, len)
    }

    /// Offset of the gradient bytes in the frame.
    #[must_use]
    #[inline]
    pub const fn payload(self) -> usize {
        self.start() + self.envelope(0).payload() + HEADER_LEN
    }
}

/// A frame at rest in a slot: a part of a chunk.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a part that is dropped is lost to the box"]
pub struct Held(Place);

impl Held {
    /// Notes a frame whose packet starts at `start` and has an envelope of `shape`; gives it
    /// back where a driver put the packet at a place that does not fit.
    #[inline]
    pub(super) fn pack(frame: Frame, start: u16, shape: u8) -> Result<Self, Frame> {
        Place::pack(frame.0, start, shape).map(Self).ok_or(frame)
    }

    /// Where its payload is.
    #[must_use]
    #[inline]
    pub const fn place(&self) -> Place {
        self.0
    }

    /// The frame itself.
    #[inline]
    pub(super) const fn unpack(self) -> Frame {
        Frame(self.0.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(index in 0..MAX_FRAMES, start in 0u16..500, shape in 0u8..5) {
            let fits = (256..384).contains(&start) && start % 2 == 0 && shape < 4;
            match Held::pack(Frame(index), start, shape) {
                Ok(held) => {
                    prop_assert!(fits);
                    let place = held.place();
                    prop_assert_eq!(place.index(), index);
                    prop_assert_eq!(place.start(), usize::from(start));
                    prop_assert_eq!(place.envelope(0).shape(), shape);
                    prop_assert_eq!(held.unpack(), Frame(index));
                }
                Err(frame) => {
                    prop_assert!(!fits);
                    prop_assert_eq!(frame, Frame(index));
                }
            }
        }
    }

    #[test]
    fn a_part_is_four_bytes() {
        assert_eq!(size_of::<Option<Held>>(), 4);
    }
}
