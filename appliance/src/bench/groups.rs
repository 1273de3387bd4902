//! Payloads in frames, as they lie in the box, and what memory allows to do with them.

use super::spread::Spread;
use crate::dataplane::frame::{Frame, ORIGIN};
use crate::dataplane::umem::{Umem, UmemError};
use crate::sum::{self, Isa, Visit};
use gradbox_protocol::HEADER_LEN;
use gradbox_protocol::envelope::SHORTEST;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Where a payload starts in its frame.
const START: usize = ORIGIN + SHORTEST + HEADER_LEN;

/// Frames in groups: one frame of each rank.
pub(super) struct Groups {
    umem: Umem,
    frames: Vec<Frame>,
    workers: usize,
    payload: usize,
    /// Group to go on with.
    next: usize,
}

impl Groups {
    /// As many groups as their payloads of `payload` bytes have room in `bytes`, at least one.
    pub(super) fn new(bytes: u64, workers: usize, payload: usize) -> Result<Self, UmemError> {
        let groups = (bytes / (workers * payload) as u64).max(1) as usize;
        let frame_bytes = if START + payload > 2048 { 4096 } else { 2048 };
        let (umem, mut frames) = Umem::new((groups * workers) as u32, frame_bytes)?;
        frames.reverse();
        for frame in &mut frames {
            let index = frame.index() as usize;
            values(&mut umem.bytes_mut(frame)[START..START + payload], index);
        }
        Ok(Self { umem, frames, workers, payload, next: 0 })
    }

    pub(super) const fn workers(&self) -> usize {
        self.workers
    }

    /// Shows the payloads of `count` groups to `work`, going round, each with those of the group
    /// after it, and returns the gigabytes of payload per second.
    pub(super) fn rate(
        &mut self,
        count: usize,
        mut work: impl FnMut(&mut [&mut [u8]], &[&mut [u8]]),
    ) -> f64 {
        let (workers, payload) = (self.workers, self.payload);
        let (umem, first) = (&self.umem, self.next);
        let bytes = |frame| &mut umem.bytes_mut(frame)[START..START + payload];
        let mut payloads: Vec<&mut [u8]> = self.frames.iter_mut().map(bytes).collect();
        let mut at = first * workers;
        let start = Instant::now();
        for _ in 0..count {
            if at == payloads.len() {
                at = 0;
            }
            let (group, rest) = payloads[at..].split_at_mut(workers);
            work(group, rest.get(..workers).unwrap_or_default());
            at += workers;
        }
        let time = start.elapsed().as_nanos() as f64;
        self.next = (first + count) % (payloads.len() / workers);
        (count * workers * payload) as f64 / time
    }

    /// Goes through everything once, and returns how many groups fill `sample`.
    pub(super) fn warm_up(&mut self, isa: Isa, sample: Duration) -> usize {
        let all = self.frames.len() / self.workers;
        let rate = self.rate(all, |now, next| sum::stream(isa, now, next, Visit::Frames, true));
        let enough = rate * sample.as_nanos() as f64 / (self.workers * self.payload) as f64;
        (enough as usize).max(all.min(64))
    }
}

/// Gigabytes per second and core that can be read and written in place, the best of the ways
/// to go through them, when `cores` cores do it at the same time, each over `bytes` of its own.
pub(super) fn limit(
    cpus: &[usize],
    (bytes, workers, payload): (u64, usize, usize),
    to_all: bool,
    samples: usize,
    sample: Duration,
) -> Result<Spread, UmemError> {
    let isa = Isa::detect();
    let mut cores = cpus
        .iter()
        .map(|&cpu| Ok((cpu, Groups::new(bytes, workers, payload)?)))
        .collect::<Result<Vec<_>, UmemError>>()?;
    let barrier = Barrier::new(cores.len());
    let measure = |cpu: usize, groups: &mut Groups| {
        core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
        let count = groups.warm_up(isa, sample);
        let ways = Visit::ALL.map(|visit| {
            let mut rates = Vec::with_capacity(samples);
            for _ in 0..samples {
                barrier.wait();
                rates.push(groups.rate(count, |now, next| {
                    sum::stream(isa, now, next, visit, to_all);
                }));
            }
            Spread::of(&mut rates)
        });
        let better = |a: Spread, b: Spread| if b.median > a.median { b } else { a };
        ways.into_iter().fold(Spread::default(), better)
    };
    let limits: Vec<Spread> = std::thread::scope(|s| {
        let threads: Vec<_> =
            cores.iter_mut().map(|(cpu, groups)| s.spawn(|| measure(*cpu, groups))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    Ok(Spread::mean(&limits))
}

/// Bytes that are ordinary numbers of every type: no subnormals, which some CPUs handle slowly.
pub(super) fn values(payload: &mut [u8], seed: usize) {
    for (i, bytes) in payload.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // As f16 1 to 2 or -2 to -1, as bf16 and as the upper half of f32 about 0.008.
        let bits = 0x3c00 | ((i * 37 + seed * 101) & 0x3ff) as u16 | ((i & 2) << 14) as u16;
        *bytes = bits.to_le_bytes();
    }
}
