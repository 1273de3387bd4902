//! Single-producer single-consumer rings in shared memory, laid out as AF_XDP lays out its own
//! (`Documentation/networking/af_xdp.rst`): two free-running 32-bit indices and a power-of-two
//! array. The same code reads the kernel's rings inline and the `mem` port's in ordinary memory.
//!
//! Each side keeps a copy of the other side's index and looks at the shared one only when the
//! copy says that there is nothing left: one cache miss per batch, not per entry.
#![expect(unsafe_code, reason = "rings are shared with the kernel")]

use crossbeam_utils::CachePadded;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A shared index. A trait only so that the model checker's atomics run the same cursors.
pub trait Index {
    /// Reads the other side's index: what it wrote before is visible after this.
    fn acquire(&self) -> u32;
    /// Publishes our own index: what we wrote before is visible to who reads it.
    fn release(&self, value: u32);
}

impl Index for AtomicU32 {
    #[inline]
    fn acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }
    #[inline]
    fn release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// One side's view of a ring: which entries are its own.
///
/// `own..limit` are the entries that this side may use now, `published..own` those that it has
/// used and not yet told the other side of.
#[derive(Debug)]
pub struct Cursor {
    own: u32,
    limit: u32,
    /// What separates `limit` from the other side's index: the ring's size for a producer
    /// (which may run ahead of the consumer by that much), 0 for a consumer.
    lead: u32,
}

impl Cursor {
    /// The producer's view of a ring of `size` entries, with both indices as they are.
    #[must_use]
    pub const fn producer(size: u32, producer: u32, consumer: u32) -> Self {
        Self { own: producer, limit: consumer.wrapping_add(size), lead: size }
    }

    /// The consumer's view of a ring, with both indices as they are.
    #[must_use]
    pub const fn consumer(producer: u32, consumer: u32) -> Self {
        Self { own: consumer, limit: producer, lead: 0 }
    }

    /// How many entries this side may use, after looking at the other's index if the copy shows
    /// fewer than `want`.
    #[inline]
    pub fn available(&mut self, other: &impl Index, want: u32) -> u32 {
        let known = self.limit.wrapping_sub(self.own);
        if known >= want {
            return known;
        }
        self.limit = other.acquire().wrapping_add(self.lead);
        self.limit.wrapping_sub(self.own)
    }

    /// The index of the next entry, which is then used. The caller has asked
    /// [`available`](Self::available) first.
    #[inline]
    pub const fn take(&mut self) -> u32 {
        let index = self.own;
        self.own = index.wrapping_add(1);
        index
    }

    /// Tells the other side of all entries used so far.
    #[inline]
    pub fn publish(&self, own: &impl Index) {
        own.release(self.own);
    }
}

/// `XDP_RING_NEED_WAKEUP` (`include/uapi/linux/if_xdp.h`).
const NEED_WAKEUP: u32 = 1;

/// Where the parts of a ring lie.
#[derive(Clone)]
pub struct Memory<T> {
    /// The producer's index.
    pub producer: NonNull<AtomicU32>,
    /// The consumer's index.
    pub consumer: NonNull<AtomicU32>,
    /// The kernel's flags.
    pub flags: NonNull<AtomicU32>,
    /// The entries.
    pub entries: NonNull<T>,
    /// Number of entries, a power of two.
    pub size: u32,
    /// Keeps the memory mapped.
    pub owner: Arc<dyn Any + Send + Sync>,
}

/// The side that writes entries.
pub struct Producer<T> {
    memory: Memory<T>,
    cursor: Cursor,
}

/// The side that reads entries.
pub struct Consumer<T> {
    memory: Memory<T>,
    cursor: Cursor,
}

// SAFETY: the memory is shared with exactly one other side, by the protocol of the indices.
unsafe impl<T: Send> Send for Producer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T: Copy> Memory<T> {
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: mapped as long as `owner` lives, by the contract of `Producer::new`.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    /// Where the entry of a free-running index lies.
    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps it below `size`.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

impl<T: Copy> Producer<T> {
    /// The producer of a ring.
    ///
    /// # Safety
    /// All parts lie in memory that stays mapped while `owner` lives; `entries` has `size` of
    /// them, a power of two; and nobody else produces into this ring.
    #[must_use]
    pub unsafe fn new(memory: Memory<T>) -> Self {
        assert!(memory.size.is_power_of_two(), "ring size must be a power of two");
        let (producer, consumer) = (memory.producer().acquire(), memory.consumer().acquire());
        Self { cursor: Cursor::producer(memory.size, producer, consumer), memory }
    }

    /// Room for entries, at least as far as `want` is concerned.
    #[inline]
    pub fn room(&mut self, want: u32) -> u32 {
        self.cursor.available(self.memory.consumer(), want)
    }

    /// Writes one entry, or gives it back where the ring is full. The other side sees it after
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    /// The entry, where there is no room.
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<(), T> {
        if self.cursor.available(self.memory.consumer(), 1) == 0 {
            return Err(entry);
        }
        let at = self.memory.entry(self.cursor.take());
        // SAFETY: an entry that is ours until the index is published.
        unsafe { at.write(entry) };
        Ok(())
    }

    /// Shows everything written so far to the consumer.
    #[inline]
    pub fn commit(&mut self) {
        self.cursor.publish(self.memory.producer());
    }

    /// Entries that the consumer has not taken yet.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.cursor.own.wrapping_sub(self.memory.consumer().acquire())
    }

    /// Whether the kernel asks for a system call before it goes on.
    #[must_use]
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        // SAFETY: mapped as long as `owner` lives.
        unsafe { self.memory.flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

impl<T: Copy> Consumer<T> {
    /// The consumer of a ring.
    ///
    /// # Safety
    /// As for [`Producer::new`], with nobody else consuming from this ring.
    #[must_use]
    pub unsafe fn new(memory: Memory<T>) -> Self {
        assert!(memory.size.is_power_of_two(), "ring size must be a power of two");
        let (producer, consumer) = (memory.producer().acquire(), memory.consumer().acquire());
        Self { cursor: Cursor::consumer(producer, consumer), memory }
    }

    /// Takes one entry. The other side may use its place after [`release`](Self::release).
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.cursor.available(self.memory.producer(), 1) == 0 {
            return None;
        }
        let at = self.memory.entry(self.cursor.take());
        // SAFETY: an entry that the producer has published and that is ours until we release it.
        Some(unsafe { at.read() })
    }

    /// Gives the places of everything taken so far back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.cursor.publish(self.memory.consumer());
    }
}

/// A ring in ordinary memory.
struct Heap<T> {
    producer: CachePadded<AtomicU32>,
    consumer: CachePadded<AtomicU32>,
    flags: AtomicU32,
    entries: Box<[UnsafeCell<T>]>,
}

// SAFETY: entries are touched only through the one producer and the one consumer.
unsafe impl<T: Send> Sync for Heap<T> {}

/// Both sides of a ring of `size` entries (a power of two) in ordinary memory.
///
/// # Panics
/// Where `size` is not a power of two.
#[must_use]
pub fn on_heap<T: Copy + Default + Send + 'static>(size: u32) -> (Producer<T>, Consumer<T>) {
    let heap = Arc::new(Heap {
        producer: CachePadded::new(AtomicU32::new(0)),
        consumer: CachePadded::new(AtomicU32::new(0)),
        flags: AtomicU32::new(0),
        entries: (0..size).map(|_| UnsafeCell::new(T::default())).collect(),
    });
    let memory = Memory {
        producer: NonNull::from(&*heap.producer),
        consumer: NonNull::from(&*heap.consumer),
        flags: NonNull::from(&heap.flags),
        entries: NonNull::from(&*heap.entries).cast::<T>(),
        size,
        owner: heap,
    };
    // SAFETY: the memory lives as long as `owner`, and these are its only two sides.
    unsafe { (Producer::new(memory.clone()), Consumer::new(memory)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_and_the_ring_wraps() {
        let (mut producer, mut consumer) = on_heap::<u64>(8);
        let (mut next_in, mut next_out) = (0u64, 0u64);
        for round in 0..100u64 {
            for _ in 0..round % 9 {
                if producer.push(next_in).is_ok() {
                    next_in += 1;
                }
            }
            producer.commit();
            assert!(producer.pending() <= 8);
            for _ in 0..round % 7 {
                if let Some(value) = consumer.pop() {
                    assert_eq!(value, next_out);
                    next_out += 1;
                }
            }
            consumer.release();
        }
        assert!(next_out > 200);
    }

    #[test]
    fn a_full_ring_gives_the_entry_back_and_nothing_shows_before_commit() {
        let (mut producer, mut consumer) = on_heap::<u64>(2);
        assert_eq!(producer.room(2), 2);
        assert_eq!(producer.push(1), Ok(()));
        assert_eq!(consumer.pop(), None);
        producer.commit();
        assert_eq!(producer.push(2), Ok(()));
        assert_eq!(producer.push(3), Err(3));
        assert_eq!(consumer.pop(), Some(1));
        assert_eq!(producer.push(3), Err(3), "not released yet");
        consumer.release();
        assert_eq!(producer.push(3), Ok(()));
    }

    #[test]
    fn two_threads() {
        const COUNT: u64 = 200_000;
        let (mut producer, mut consumer) = on_heap::<u64>(64);
        std::thread::scope(|s| {
            s.spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    while next < COUNT && producer.push(next).is_ok() {
                        next += 1;
                    }
                    producer.commit();
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < COUNT {
                while let Some(value) = consumer.pop() {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                consumer.release();
                std::thread::yield_now();
            }
        });
    }
}
