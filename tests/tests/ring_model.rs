//! The rings' cursors under a model checker: every interleaving of a producer and a consumer, and
//! every value that the memory model lets a load return.

use gradbox::dataplane::ring::{Cursor, Index};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// Entries of the ring: fewer than go through it, so that places are used again.
const SIZE: u32 = 2;

/// Entries that go through it.
const COUNT: u32 = 4;

/// A shared index with the orderings of the product's own.
struct Strong(AtomicU32);

/// One that publishes without ordering what was written before.
struct WeakRelease(AtomicU32);

/// One that looks without ordering what is read after.
struct WeakAcquire(AtomicU32);

macro_rules! index {
    ($name:ident, $acquire:ident, $release:ident) => {
        impl Index for $name {
            fn acquire(&self) -> u32 {
                self.0.load(Ordering::$acquire)
            }
            fn release(&self, value: u32) {
                self.0.store(value, Ordering::$release);
            }
        }
        impl From<u32> for $name {
            fn from(start: u32) -> Self {
                Self(AtomicU32::new(start))
            }
        }
    };
}
index!(Strong, Acquire, Release);
index!(WeakRelease, Acquire, Relaxed);
index!(WeakAcquire, Relaxed, Release);

struct Ring<P, C> {
    producer: P,
    consumer: C,
    entries: [UnsafeCell<u32>; SIZE as usize],
}

// SAFETY: entries are touched as the cursors allow; loom checks that this suffices.
unsafe impl<P: Sync, C: Sync> Sync for Ring<P, C> {}

/// Sends [`COUNT`] entries through a ring whose indices begin at `start`, in batches of `batch`.
fn model<P, C>(start: u32, batch: u32)
where
    P: Index + From<u32> + Send + Sync + 'static,
    C: Index + From<u32> + Send + Sync + 'static,
{
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = Some(4);
    explorer.check(move || {
        let ring = Arc::new(Ring {
            producer: P::from(start),
            consumer: C::from(start),
            entries: std::array::from_fn(|_| UnsafeCell::new(u32::MAX)),
        });
        let theirs = ring.clone();
        let producer = thread::spawn(move || {
            let mut cursor = Cursor::producer(SIZE, start, start);
            let mut sent = 0;
            while sent < COUNT {
                let room = cursor.available(&theirs.consumer, batch).min(batch).min(COUNT - sent);
                if room == 0 {
                    thread::yield_now();
                    continue;
                }
                for _ in 0..room {
                    let place = (cursor.take() % SIZE) as usize;
                    // SAFETY: loom panics where another thread may be at the entry.
                    theirs.entries[place].with_mut(|entry| unsafe { *entry = sent });
                    sent += 1;
                }
                cursor.publish(&theirs.producer);
            }
        });
        let mut cursor = Cursor::consumer(start, start);
        for wanted in 0..COUNT {
            while cursor.available(&ring.producer, 1) == 0 {
                thread::yield_now();
            }
            let place = (cursor.take() % SIZE) as usize;
            // SAFETY: loom panics where another thread may be writing the entry.
            let found = ring.entries[place].with(|entry| unsafe { *entry });
            assert_eq!(found, wanted);
            if wanted % batch == batch - 1 {
                cursor.publish(&ring.consumer);
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn no_interleaving_shows_an_entry_too_early_or_too_late() {
    model::<Strong, Strong>(0, 1);
    model::<Strong, Strong>(0, 2);
}

#[test]
fn indices_may_wrap() {
    model::<Strong, Strong>(u32::MAX - 1, 1);
}

/// The model can fail: each ordering that is weakened is found out.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_producer_must_publish_with_release() {
    model::<WeakRelease, Strong>(0, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_consumer_must_publish_with_release() {
    model::<Strong, WeakRelease>(0, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_consumer_must_look_with_acquire() {
    model::<WeakAcquire, Strong>(0, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_producer_must_look_with_acquire() {
    model::<Strong, WeakAcquire>(0, 1);
}
