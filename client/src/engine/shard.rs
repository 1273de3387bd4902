//! What a worker knows of one shard: the congestion window, the round-trip time, the queues.

use super::MILLISECOND;
use gradbox_protocol::Header;
use std::collections::VecDeque;

/// Where the window starts: 45 KB at the usual chunk size, well below any receive buffer.
const START_WINDOW: f64 = 32.0;
/// Below this the window does not fall: fewer packets cannot tell loss from reordering.
const LEAST_WINDOW: f64 = 4.0;
/// A retransmission timer of less would measure the box's scheduler, not the network.
const LEAST_RTO: u64 = 5 * MILLISECOND;
const MOST_RTO: u64 = 1000 * MILLISECOND;
/// Until there is a sample.
const FIRST_RTO: u64 = 50 * MILLISECOND;

/// Chunks of one tensor that are still to be sent for the first time to one shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fresh {
    pub(super) tensor: u16,
    pub(super) round: u32,
    /// Next chunk; the following ones are a number of shards apart.
    pub(super) next: u32,
    /// First chunk behind the tensor.
    pub(super) end: u32,
}

/// One chunk of a tensor in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) tensor: u16,
    pub(super) round: u32,
    pub(super) chunk: u32,
}

impl Place {
    /// What the header of a PUSH, RESULT or ERROR speaks of.
    pub(super) fn of(header: &Header) -> Self {
        Self { tensor: header.tensor.get(), round: header.round.get(), chunk: header.chunk.get() }
    }
}

/// What a worker knows of one shard.
#[derive(Debug)]
pub(super) struct Shard {
    /// Congestion window, in packets.
    window: f64,
    /// The window grows by one per acknowledgement below this, by one per window above.
    slow_start_until: f64,
    /// Packets stamped up to this were sent before the window last fell.
    recovered_at: u64,
    /// Bound of the window: the box's credit and the receive buffer's share.
    cap: u32,
    /// Share of the receive buffer, in packets.
    receive_share: u32,
    /// Chunks in [`State::Flight`](super::chunk::State::Flight).
    pub(super) flight: u32,
    /// Chunks in [`State::Held`](super::chunk::State::Held).
    pub(super) held: u32,
    /// In order of submission.
    pub(super) fresh: VecDeque<Fresh>,
    /// To be sent again.
    pub(super) lost: VecDeque<Place>,
    /// What is in flight, with its stamp, in order of sending; entries go stale in place.
    pub(super) sent: VecDeque<(u64, Place)>,
    /// First chunks of ranges to ask for.
    pub(super) queries: VecDeque<u32>,
    /// PUSH since the last that asked for a STATUS.
    pub(super) since_status: u32,
    srtt: u64,
    rttvar: u64,
    /// Stamp of the packet that gave the last sample: a doubled answer gives none.
    sampled: u64,
    /// When packets in flight are asked after.
    pub(super) rto_at: Option<u64>,
    backoff: u32,
    /// Times that the timer fired since the shard was last heard.
    pub(super) unanswered: u32,
    /// When held chunks are asked after.
    pub(super) probe_at: Option<u64>,
    pub(super) probe_gap: u64,
    /// A result came since the last probe.
    pub(super) progressed: bool,
}

impl Shard {
    pub(super) fn new(credit: u16, receive_share: u32) -> Self {
        let mut shard = Self {
            window: START_WINDOW,
            slow_start_until: f64::INFINITY,
            recovered_at: 0,
            cap: 0,
            receive_share,
            flight: 0,
            held: 0,
            fresh: VecDeque::new(),
            lost: VecDeque::new(),
            sent: VecDeque::new(),
            queries: VecDeque::new(),
            since_status: 0,
            srtt: 0,
            rttvar: 0,
            sampled: 0,
            rto_at: None,
            backoff: 0,
            unanswered: 0,
            probe_at: None,
            probe_gap: super::timers::PROBE_LEAST,
            progressed: false,
        };
        shard.set_credit(credit);
        shard
    }

    pub(super) fn set_credit(&mut self, credit: u16) {
        self.cap = u32::from(credit).min(self.receive_share).max(1);
    }

    /// Packets that may be in flight.
    pub(super) fn window(&self) -> u32 {
        (self.window as u32).min(self.cap)
    }

    /// `acked` chunks left flight because the box has them.
    pub(super) fn acked(&mut self, acked: u32, now: u64) {
        if acked == 0 {
            return;
        }
        self.backoff = 0;
        self.rto_at = (self.flight > 0).then(|| now + self.rto());
        // A window that is not in use says nothing about a larger one.
        if self.flight + acked < self.window() / 2 {
            return;
        }
        let acked = f64::from(acked);
        let step = if self.window < self.slow_start_until { acked } else { acked / self.window };
        self.window = (self.window + step).min(f64::from(self.cap).max(LEAST_WINDOW));
    }

    /// Loss or congestion was seen on a packet stamped `stamp`; `last` is the newest stamp.
    pub(super) fn congested(&mut self, stamp: u64, last: u64) {
        // Once per round trip: what was sent before the last fall tells nothing new.
        if stamp <= self.recovered_at {
            return;
        }
        self.recovered_at = last;
        self.window = (self.window.min(f64::from(self.cap)) / 2.0).max(LEAST_WINDOW);
        self.slow_start_until = self.window;
    }

    /// An answer came to the packet stamped `stamp`, `rtt` after it was sent (RFC 6298, 2).
    pub(super) fn sample(&mut self, stamp: u64, rtt: u64) {
        if stamp <= self.sampled {
            return;
        }
        self.sampled = stamp;
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (rtt.max(1), rtt / 2);
        } else {
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = ((7 * self.srtt + rtt) / 8).max(1);
        }
    }

    /// Something came from the shard.
    pub(super) const fn heard(&mut self) {
        self.unanswered = 0;
    }

    pub(super) const fn srtt(&self) -> u64 {
        self.srtt
    }

    /// Time after which an answer is overdue.
    pub(super) fn rto(&self) -> u64 {
        if self.srtt == 0 {
            return FIRST_RTO;
        }
        (self.srtt + 4 * self.rttvar).clamp(LEAST_RTO, MOST_RTO)
    }

    /// Sets the timer anew after it fired, twice as far as before.
    pub(super) fn back_off(&mut self, now: u64) {
        self.unanswered += 1;
        self.rto_at = Some(now + (self.rto() << self.backoff).min(MOST_RTO));
        self.backoff = (self.backoff + 1).min(8);
    }

    /// How much earlier than the packet that triggered a STATUS a chunk must have been sent to be
    /// judged lost by it: packets of one flow are rarely reordered by more than a quarter of a
    /// round trip (RFC 8985, 6.2).
    pub(super) fn reordering(&self) -> u64 {
        (self.srtt / 4).clamp(MILLISECOND / 20, 5 * MILLISECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_then_halves_once_per_round_trip_then_creeps() {
        let mut s = Shard::new(256, 1000);
        assert_eq!(s.window(), 32);
        s.flight = 32;
        s.acked(32, 0);
        assert_eq!(s.window(), 64);
        s.congested(10, 20);
        s.congested(15, 30);
        assert_eq!(s.window(), 32);
        s.congested(21, 40);
        assert_eq!(s.window(), 16);
        s.flight = 16;
        s.acked(16, 0);
        assert_eq!(s.window(), 17);
        for stamp in 50..100 {
            s.congested(stamp, stamp);
        }
        assert_eq!(s.window(), 4);
        s.set_credit(2);
        assert_eq!(s.window(), 2);
        s.set_credit(0);
        assert_eq!(s.window(), 1);
    }

    #[test]
    fn the_timer_follows_the_round_trip_and_backs_off() {
        let mut s = Shard::new(64, 64);
        assert_eq!(s.rto(), FIRST_RTO);
        s.sample(1, 20 * MILLISECOND);
        assert_eq!(s.rto(), 60 * MILLISECOND);
        s.sample(1, 900 * MILLISECOND);
        assert_eq!(s.rto(), 60 * MILLISECOND);
        for stamp in 2..200 {
            s.sample(stamp, MILLISECOND / 10);
        }
        assert_eq!(s.rto(), LEAST_RTO);
        s.back_off(0);
        s.back_off(0);
        assert_eq!(s.rto_at, Some(2 * LEAST_RTO));
        for _ in 0..20 {
            s.back_off(0);
        }
        assert_eq!(s.rto_at, Some(MOST_RTO));
    }
}
