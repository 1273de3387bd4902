//! Handing values from one core to another: crossbeam's queues, and the ring of the data plane.
//!
//! The producer hands over in batches and the consumer takes what is there. What is measured is
//! the time of each value from end to end, both sides at full speed, each on a thread of its own.

use crossbeam_queue::{ArrayQueue, SegQueue};
use gradbox::bench::spread::Spread;
use gradbox::dataplane::ring::{Consumer, Producer, on_heap};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Places of the bounded ones.
const SIZE: u32 = 1024;

/// Looks at an empty or full queue before the thread lets others run.
const PATIENCE: u32 = 200;

/// A way to hand values over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `crossbeam_queue::ArrayQueue`: many producers and consumers, bounded.
    Array,
    /// `crossbeam_queue::SegQueue`: the same, unbounded.
    Seg,
    /// The data plane's ring: one producer, one consumer, bounded; shown batch by batch.
    Ring,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Array, Self::Seg, Self::Ring];

    /// Name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Array => "crossbeam ArrayQueue",
            Self::Seg => "crossbeam SegQueue",
            Self::Ring => "ring (one to one)",
        }
    }
}

/// One end that puts values in; `false` where there is no room for `value` now.
trait Put: Send {
    fn put(&mut self, value: u64) -> bool;
    /// The end of a batch.
    fn flush(&mut self) {}
}

/// The end that takes values out.
trait Take: Send {
    fn take(&mut self) -> Option<u64>;
    /// Nothing is left for now, or a batch was taken.
    fn flush(&mut self) {}
}

impl Put for Arc<ArrayQueue<u64>> {
    fn put(&mut self, value: u64) -> bool {
        self.push(value).is_ok()
    }
}

impl Take for Arc<ArrayQueue<u64>> {
    fn take(&mut self) -> Option<u64> {
        self.pop()
    }
}

impl Put for Arc<SegQueue<u64>> {
    fn put(&mut self, value: u64) -> bool {
        self.push(value);
        true
    }
}

impl Take for Arc<SegQueue<u64>> {
    fn take(&mut self) -> Option<u64> {
        self.pop()
    }
}

impl Put for Producer<u64> {
    fn put(&mut self, value: u64) -> bool {
        self.push(value).is_ok()
    }
    fn flush(&mut self) {
        self.commit();
    }
}

impl Take for Consumer<u64> {
    fn take(&mut self) -> Option<u64> {
        self.pop()
    }
    fn flush(&mut self) {
        self.release();
    }
}

/// Hands `count` values over in batches of `batch` and returns how long it took.
///
/// # Panics
/// Where a value is lost or comes out of order.
#[must_use]
pub fn run(way: Way, batch: u64, count: u64) -> Duration {
    match way {
        Way::Array => {
            let queue = Arc::new(ArrayQueue::new(SIZE as usize));
            between(queue.clone(), queue, batch, count)
        }
        Way::Seg => {
            let queue = Arc::new(SegQueue::new());
            between(queue.clone(), queue, batch, count)
        }
        Way::Ring => {
            let (producer, consumer) = on_heap(SIZE);
            between(producer, consumer, batch, count)
        }
    }
}

/// Nanoseconds for each value, over `samples` runs of `count` values.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn measure(way: Way, batch: u64, count: u64, samples: usize) -> Spread {
    let mut times: Vec<f64> =
        (0..samples).map(|_| run(way, batch, count).as_nanos() as f64 / count as f64).collect();
    Spread::of(&mut times)
}

fn between(mut to: impl Put, mut from: impl Take, batch: u64, count: u64) -> Duration {
    let ready = Barrier::new(2);
    let ready = &ready;
    std::thread::scope(|s| {
        s.spawn(move || {
            pin(0);
            ready.wait();
            let mut next = 0;
            let mut patience = Patience::default();
            while next < count {
                let end = (next + batch).min(count);
                let start = next;
                while next < end && to.put(next) {
                    next += 1;
                }
                to.flush();
                patience.moved(next > start);
            }
        });
        let consumer = s.spawn(move || {
            pin(1);
            ready.wait();
            let start = Instant::now();
            let mut taken = 0;
            let mut patience = Patience::default();
            while taken < count {
                let end = taken + batch;
                let start = taken;
                while taken < end
                    && let Some(value) = from.take()
                {
                    assert_eq!(value, taken, "out of order");
                    taken += 1;
                }
                from.flush();
                patience.moved(taken > start);
            }
            start.elapsed()
        });
        consumer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Keeps this thread on the CPU of `index`, so that the two are never on the same one. Where
/// there is only one, the threads take turns there.
fn pin(index: usize) {
    let cpus = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(&cpu) = cpus.get(index) {
        core_affinity::set_for_current(cpu);
    }
}

/// Spins for a while, but does not keep the other side from running where cores are few.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    /// The end of a turn, in which something was moved or nothing.
    fn moved(&mut self, something: bool) {
        if something {
            self.0 = 0;
        } else if self.0 < PATIENCE {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_come_in_order() {
        for way in Way::ALL {
            for batch in [1, 7, 2000] {
                assert!(run(way, batch, 5_000) > Duration::ZERO);
            }
        }
    }
}
