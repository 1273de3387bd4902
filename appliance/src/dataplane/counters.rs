//! Counters of one core: one name for everything that can happen to a packet.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($variant:ident = $name:literal: $help:literal,)*) => {
        /// What is counted. The number is the place in the array.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Counter {
            $(#[doc = $help] $variant,)*
        }

        impl Counter {
            /// Every counter.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name in metrics, status and summary.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it counts, in a sentence.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

counters! {
    RxPackets = "rx_packets": "Packets received.",
    RxBytes = "rx_bytes": "Bytes received, link headers included.",
    TxPackets = "tx_packets": "Packets handed to the port for transmission.",
    TxBytes = "tx_bytes": "Bytes handed to the port for transmission, link headers included.",
    Pushed = "pushed": "Chunks taken into a slot.",
    PushedBytes = "pushed_bytes": "Gradient bytes taken into slots.",
    Duplicate = "duplicate": "PUSH whose chunk was held already; its frame was recycled.",
    Completed = "completed": "Slots completed: sums made.",
    Resent = "resent": "RESULT sent again, in answer to a PUSH of a finished round.",
    Status = "status": "STATUS sent.",
    Pong = "pong": "PONG sent.",
    Error = "error": "ERROR sent.",
    Steered = "steered": "Packets that came to the wrong queue and were handed to the owner: a steering fault of the NIC's rules.",
    DropNotGradbox = "drop_not_gradbox": "Not UDP in a known envelope.",
    DropMalformed = "drop_malformed": "Truncated, of another magic or version, of a length that is not the datagram's, or of an unknown kind.",
    DropWrongWay = "drop_wrong_way": "A kind that only the box sends.",
    DropUnknownJob = "drop_unknown_job": "No job of that id.",
    DropWrongRank = "drop_wrong_rank": "Rank not below the job's world.",
    DropWrongCookie = "drop_wrong_cookie": "Cookie of another generation, another rank, or none.",
    DropWrongSource = "drop_wrong_source": "Sender is not the address that this rank joined with.",
    DropWrongChunk = "drop_wrong_chunk": "No such tensor, or no such chunk in it.",
    DropWrongLength = "drop_wrong_length": "Payload length contradicts the tensor.",
    DropStaleRound = "drop_stale_round": "Round before the last finished one.",
    DropFutureRound = "drop_future_round": "Round after the one that the slot collects.",
    DropNoFrame = "drop_no_frame": "No free frame for an answer or for a steered packet.",
    SteerWaited = "steer_waited": "Times that a packet for another core had to wait for a buffer; none was lost.",
    DropMisplaced = "drop_misplaced": "The driver put the packet where no slot can note it.",
    DropRxRingFull = "drop_rx_ring_full": "Packets that the kernel dropped because the RX ring was full: the core was too slow (`xdp` port).",
    DropSocket = "drop_socket": "Packets that the kernel dropped before the RX ring for another reason, such as an empty fill ring (`xdp` port).",
    FillEmpty = "fill_empty": "Times that the kernel found the fill ring empty (`xdp` port).",
    FaultDropped = "fault_dropped": "Packets that the fault injector dropped.",
    FaultDuplicated = "fault_duplicated": "Packets that the fault injector duplicated.",
    FaultReordered = "fault_reordered": "Packets that the fault injector delayed past later ones.",
    TxRingFull = "tx_ring_full": "Times that packets had to wait for the TX ring, or for a full socket; none was lost.",
    TxLate = "tx_late": "Datagrams that the kernel refused to send by a socket, for want of a route, say: lost like on the wire, and fetched again by the worker.",
    Captured = "captured": "Packets copied for a capture.",
    CaptureMissed = "capture_missed": "Packets that a capture missed: its reader was too slow.",
    FillShort = "fill_short": "Times that the fill ring could not be kept full for want of frames.",
}

impl Counter {
    /// Whether it counts packets that were not served.
    #[must_use]
    pub fn is_drop(self) -> bool {
        self.name().starts_with("drop_")
    }
}

/// Number of counters.
pub const COUNTERS: usize = Counter::ALL.len();

/// A core's own counters: plain numbers, written by that core alone.
#[derive(Clone, Debug)]
pub struct Counters([u64; COUNTERS]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; COUNTERS])
    }
}

impl Counters {
    /// Adds one.
    #[inline]
    pub fn bump(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.0[counter as usize] += n;
    }

    /// Takes over a number that somebody else counts.
    pub fn set(&mut self, counter: Counter, n: u64) {
        self.0[counter as usize] = n;
    }

    /// Present value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Names and values, in the order of [`Counter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&c| (c, self.get(c)))
    }
}

/// The state of every frame of a core, as counts. They add up to [`FrameCounts::total`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// In the free list.
    pub free: u64,
    /// Lent to the port for packets to come (the fill ring, for AF_XDP).
    pub fill: u64,
    /// Received and not yet disposed of.
    pub rx: u64,
    /// Held in slots: parts of a round being collected, and retained results at rest.
    pub slot: u64,
    /// Being transmitted, retained results on their first way out included.
    pub tx: u64,
    /// All frames of the UMEM.
    pub total: u64,
}

impl FrameCounts {
    /// Whether every frame is accounted for.
    #[must_use]
    pub const fn balanced(&self) -> bool {
        self.free + self.fill + self.rx + self.slot + self.tx == self.total
    }

    /// States and counts, in the order of the design.
    #[must_use]
    pub const fn states(&self) -> [(&'static str, u64); 5] {
        [
            ("free", self.free),
            ("fill", self.fill),
            ("rx", self.rx),
            ("slot", self.slot),
            ("tx", self.tx),
        ]
    }
}

/// Times that a reader tries again at once before it lets the writer have the CPU.
const SPINS: u32 = 100;

/// What a core shows to the rest of the box: copies of its numbers, stored (never added) by the
/// core after each step that did something, read by anyone at any time.
#[derive(Debug)]
pub struct Shown {
    counters: CachePadded<[AtomicU64; COUNTERS]>,
    frames: CachePadded<[AtomicU64; 6]>,
    busy_ns: CachePadded<AtomicU64>,
    /// Odd while the core writes: a reader that sees it odd or changed reads again.
    epoch: CachePadded<AtomicU64>,
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            counters: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            frames: CachePadded::default(),
            busy_ns: CachePadded::default(),
            epoch: CachePadded::default(),
        }
    }
}

/// One consistent reading of [`Shown`].
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The counters.
    pub counters: Counters,
    /// The frames by state.
    pub frames: FrameCounts,
    /// Nanoseconds spent in steps that had work.
    pub busy_ns: u64,
}

impl Shown {
    /// Stores new numbers. Called by the owning core alone.
    pub fn publish(&self, counters: &Counters, frames: &FrameCounts, busy_ns: u64) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.epoch.store(epoch + 1, Ordering::Relaxed);
        // The odd epoch is visible before any of the numbers (a seqlock's writer).
        std::sync::atomic::fence(Ordering::Release);
        for (place, value) in self.counters.iter().zip(counters.0) {
            place.store(value, Ordering::Relaxed);
        }
        let f = frames;
        let states = [f.free, f.fill, f.rx, f.slot, f.tx, f.total];
        for (place, value) in self.frames.iter().zip(states) {
            place.store(value, Ordering::Relaxed);
        }
        self.busy_ns.store(busy_ns, Ordering::Relaxed);
        self.epoch.store(epoch + 2, Ordering::Release);
    }

    /// Reads all numbers as of one moment. Gives up on consistency after a bounded number of
    /// tries: a second or so, longer than the system keeps a core that it has put to sleep in
    /// the middle of [`publish`](Self::publish).
    #[must_use]
    pub fn read(&self) -> Reading {
        let mut reading = Reading::default();
        for tries in 0..SPINS + 10_000 {
            let before = self.epoch.load(Ordering::Acquire);
            for (value, place) in reading.counters.0.iter_mut().zip(self.counters.iter()) {
                *value = place.load(Ordering::Relaxed);
            }
            let f: [u64; 6] = std::array::from_fn(|i| self.frames[i].load(Ordering::Relaxed));
            let [free, fill, rx, slot, tx, total] = f;
            reading.frames = FrameCounts { free, fill, rx, slot, tx, total };
            reading.busy_ns = self.busy_ns.load(Ordering::Relaxed);
            std::sync::atomic::fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.epoch.load(Ordering::Relaxed) == before {
                break;
            }
            if tries < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read() {
        let shown = Shown::default();
        let mut counters = Counters::default();
        counters.add(Counter::Pushed, 7);
        let frames = FrameCounts { free: 1, fill: 2, rx: 3, slot: 4, tx: 5, total: 15 };
        shown.publish(&counters, &frames, 99);
        let reading = shown.read();
        assert_eq!(reading.counters.get(Counter::Pushed), 7);
        assert_eq!(reading.frames, frames);
        assert!(reading.frames.balanced());
        assert_eq!(reading.busy_ns, 99);
    }

    #[test]
    fn a_reader_never_sees_half_a_step() {
        let shown = Shown::default();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut counters = Counters::default();
                for i in 1..=20_000u64 {
                    counters.add(Counter::RxPackets, 1);
                    counters.add(Counter::Pushed, 1);
                    let frames = FrameCounts { free: i, total: i, ..FrameCounts::default() };
                    shown.publish(&counters, &frames, i);
                    // A core works between two publications.
                    for _ in 0..50 {
                        std::hint::spin_loop();
                    }
                }
            });
            for _ in 0..2_000 {
                let r = shown.read();
                assert!(r.frames.balanced());
                assert_eq!(r.busy_ns, r.counters.get(Counter::Pushed));
            }
        });
    }

    #[test]
    fn a_core_that_is_put_to_sleep_while_it_publishes_is_waited_for() {
        let shown = Shown::default();
        shown.epoch.store(1, Ordering::Release);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                shown.busy_ns.store(9, Ordering::Relaxed);
                shown.epoch.store(2, Ordering::Release);
            });
            assert_eq!(shown.read().busy_ns, 9);
        });
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNTERS);
    }
}
