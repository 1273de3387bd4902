//! Descriptors in and out of rings laid out as AF_XDP's, read and written inline, as the data
//! plane does it.

use gradbox::bench::spread::Spread;
use gradbox::dataplane::ring::on_heap;
use gradbox::dataplane::ring_set::Desc;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Entries of the rings, and descriptors of one sample.
pub const SIZE: u32 = 1024;

/// Nanoseconds for each descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Into a TX ring.
    pub produce: Spread,
    /// Out of a completion ring.
    pub consume: Spread,
}

/// Samples of both in the making.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    produce: Vec<f64>,
    consume: Vec<f64>,
}

impl Samples {
    /// Adds the times of [`SIZE`] descriptors each way.
    pub(crate) fn add(&mut self, (produce, consume): (Duration, Duration)) {
        self.produce.push(produce.as_nanos() as f64 / f64::from(SIZE));
        self.consume.push(consume.as_nanos() as f64 / f64::from(SIZE));
    }

    /// What they come to.
    pub(crate) fn cost(mut self) -> Cost {
        Cost { produce: Spread::of(&mut self.produce), consume: Spread::of(&mut self.consume) }
    }
}

/// Puts [`SIZE`] descriptors through a TX ring and as many addresses through a completion ring,
/// `batch` at a time, `samples` times.
///
/// # Panics
/// Where one gets lost.
#[must_use]
pub fn measure(batch: u32, samples: usize) -> Cost {
    let (mut tx, mut tx_kernel) = on_heap::<Desc>(SIZE);
    let (mut completion_kernel, mut completion) = on_heap::<u64>(SIZE);
    let mut all = Samples::default();
    for _ in 0..samples {
        let start = Instant::now();
        let mut addr = 0;
        while addr < SIZE && tx.room(batch) >= batch {
            for _ in 0..batch {
                let desc = Desc { addr: u64::from(black_box(addr)) << 11, len: 60, options: 0 };
                assert!(tx.push(desc).is_ok(), "there was room");
                addr += 1;
            }
            tx.commit();
        }
        let produce = start.elapsed();
        // The kernel's part: what was sent is complete.
        while let Some(desc) = tx_kernel.pop() {
            assert!(completion_kernel.push(desc.addr).is_ok(), "as long as the other");
        }
        tx_kernel.release();
        completion_kernel.commit();
        let start = Instant::now();
        let mut taken = 0;
        while taken < SIZE {
            for _ in 0..batch {
                let addr = completion.pop();
                assert_eq!(addr, Some(u64::from(taken) << 11), "the next one");
                taken += 1;
            }
            completion.release();
        }
        all.add((produce, start.elapsed()));
    }
    all.cost()
}
