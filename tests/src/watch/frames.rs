//! Where each frame has been: the judge of "answers leave in the frames that their packets came in".

use super::rings::News;
use std::collections::HashMap;

/// Where a frame was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Lent for packets to come.
    Lent,
    /// Came with a packet at this address, so many bytes long.
    Received(u64, u32),
    /// In the TX ring, or given back from there.
    Sent,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Of these: at the address that a packet of the same length came in at, since its frame was
    /// last lent to the kernel. Answers of another length (STATUS) have frames of their own.
    pub reflected: u64,
    /// Addresses that came back by the completion ring.
    pub given_back: u64,
    /// Of these: not the address of a packet on its way out.
    pub strange: u64,
}

/// The frames of one UMEM.
pub struct Frames {
    shift: u32,
    places: HashMap<u64, Place>,
    /// How often each address is on its way out: a frame may go round several times between two
    /// looks.
    outward: HashMap<u64, u64>,
    seen: Seen,
}

impl Frames {
    /// Frames of `bytes` each, a power of two.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            shift: bytes.trailing_zeros(),
            places: HashMap::new(),
            outward: HashMap::new(),
            seen: Seen::default(),
        }
    }

    /// What was seen so far.
    #[must_use]
    pub const fn seen(&self) -> Seen {
        self.seen
    }

    /// Takes note of what has happened.
    pub fn note(&mut self, news: &News) {
        for packet in &news.rx {
            self.seen.received += 1;
            self.places.insert(packet.addr >> self.shift, Place::Received(packet.addr, packet.len));
        }
        for packet in &news.tx {
            self.seen.sent += 1;
            let before = self.places.insert(packet.addr >> self.shift, Place::Sent);
            *self.outward.entry(packet.addr).or_default() += 1;
            if before == Some(Place::Received(packet.addr, packet.len)) {
                self.seen.reflected += 1;
            }
        }
        for &addr in &news.completion {
            self.seen.given_back += 1;
            match self.outward.get_mut(&addr) {
                Some(times) if *times > 0 => *times -= 1,
                _ => self.seen.strange += 1,
            }
        }
        for &addr in &news.fill {
            self.places.insert(addr >> self.shift, Place::Lent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Desc;
    use super::*;

    fn news(rx: &[u64], tx: &[u64], completion: &[u64], fill: &[u64]) -> News {
        let packets = |at: &[u64]| {
            at.iter().map(|&addr| Desc { addr, len: 100, options: 0 }).collect::<Vec<_>>()
        };
        News {
            rx: packets(rx),
            tx: packets(tx),
            completion: completion.to_vec(),
            fill: fill.to_vec(),
        }
    }

    #[test]
    fn a_reflected_frame_is_told_from_a_copy() {
        let mut frames = Frames::new(2048);
        frames.note(&news(&[], &[], &[], &[0, 2048, 4096]));
        frames.note(&news(&[310, 2358], &[], &[], &[]));
        // The first goes out where it came in; the second in another frame that was received and
        // sent before, and in one that was never received.
        frames.note(&news(&[], &[310], &[310], &[]));
        assert_eq!(frames.seen().reflected, 1);
        frames.note(&news(&[], &[310, 4406], &[310, 4406], &[]));
        assert_eq!(frames.seen().reflected, 1);
        // Lent again, it is no longer the frame that the packet came in.
        frames.note(&news(&[], &[], &[], &[2048]));
        frames.note(&news(&[], &[2358], &[], &[]));
        assert_eq!(frames.seen().reflected, 1);
        let seen = frames.seen();
        assert_eq!((seen.received, seen.sent, seen.given_back, seen.strange), (2, 4, 3, 0));
    }

    #[test]
    fn what_comes_back_at_another_address_is_strange() {
        let mut frames = Frames::new(4096);
        frames.note(&news(&[], &[4406], &[4096], &[]));
        assert_eq!(frames.seen().strange, 1);
    }
}
