//! What of a packet's time goes where. Clocks inside `step()` would cost as much as its parts, so
//! each part is measured by leaving the others away:
//!
//! * rings: packets pass through the same port, and nobody looks at them;
//! * sum: what the same packets take longer than ones with a payload of a single line;
//! * reflect: the function that turns a packet round, over frames in the first-level cache;
//! * parse and slot: the rest. It includes waiting for headers that are not in the cache.

use super::cores;
use super::{Bench, HEAD, PathError, Setup, wrong};
use crate::bench::spread::Spread;
use crate::dataplane::answer;
use crate::dataplane::counters::Counters;
use crate::dataplane::mem;
use crate::dataplane::port::Port;
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::{Kind, Reply};
use std::hint::black_box;
use std::time::Instant;

/// Bytes of a payload next to which everything else is all.
const LINE: u16 = 64;
/// Packets that are turned round in one sample.
const TURNS: usize = 64;
/// Samples of what is quickly measured.
const SAMPLES: usize = 101;

/// Nanoseconds of each part for one packet received.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Getting packets out of rings and putting them into others.
    pub rings: f64,
    /// Headers, checks and slots.
    pub parse_slot: f64,
    /// The packet's share of the sum, and the memory traffic of its payload.
    pub sum: f64,
    /// Making the answer of it.
    pub reflect: f64,
}

/// Splits the `total` nanoseconds that a packet of this setup takes.
///
/// # Errors
/// Those of [`cores::measure`].
pub fn measure(setup: Setup, rounds: u32, total: f64) -> Result<Split, PathError> {
    let small = Setup { chunk_bytes: LINE, ..setup };
    let without_sum = cores::measure(small, rounds, &[first_cpu()])?;
    let without_sum = without_sum.first().map_or(total, |o| o.ns_per_packet.median).min(total);
    let rings = rings(setup, rounds)?.min(without_sum);
    let answers = match setup.reply {
        Reply::Unicast => 1.0,
        Reply::Multicast => 1.0 / setup.world as f64,
    };
    let reflect = (reflect(setup)? * answers).min(without_sum - rings);
    let parse_slot = without_sum - rings - reflect;
    Ok(Split { rings, parse_slot, sum: total - without_sum, reflect })
}

fn first_cpu() -> usize {
    core_affinity::get_core_ids().and_then(|ids| ids.first().copied()).map_or(0, |id| id.id)
}

/// Packets through the rings, in and out.
fn rings(setup: Setup, rounds: u32) -> Result<f64, PathError> {
    let frames = 4 * setup.ring;
    let (mut port, mut wire, mut pool) = mem::pair(frames, setup.frame_bytes, setup.ring)?;
    let (mut packets, mut counters) = (Vec::new(), Counters::default());
    let burst = (setup.ring / 2).min(4096) as usize;
    let mut times = Vec::new();
    for _ in 0..rounds {
        port.settle(&mut pool, &mut counters);
        for _ in 0..burst {
            if !wire.send(|_| HEAD) {
                return Err(wrong("the fill ring is short of frames"));
            }
        }
        let start = Instant::now();
        let mut moved = 0;
        while moved < burst {
            port.settle(&mut pool, &mut counters);
            port.receive(&mut pool, &mut packets, &mut counters);
            moved += packets.len();
            if setup.reply == Reply::Multicast {
                let rest = packets.len().div_ceil(setup.world);
                packets.drain(rest..).for_each(|p| pool.give(p.frame));
            }
            port.transmit(&mut pool, &mut packets, &mut counters);
        }
        times.push(start.elapsed().as_nanos() as f64 / burst as f64);
        while wire.receive(|_| ()).is_some() {}
    }
    Ok(Spread::of(&mut times).median)
}

/// Turning packets round.
fn reflect(setup: Setup) -> Result<f64, PathError> {
    let bench = Bench::new(Setup { chunks: 1, window: 1, ring: 64, ..setup })?;
    let len = usize::from(setup.chunk_bytes);
    let mut packets: Vec<Vec<u8>> = (0..TURNS)
        .map(|i| {
            let mut packet = bench.heads[i % bench.heads.len()].to_vec();
            packet.resize(HEAD + len, 0);
            packet
        })
        .collect();
    let envelope = Envelope::parse(&packets[0]).ok_or_else(|| wrong("an envelope"))?;
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for packet in &mut packets {
            black_box(answer::turn(packet, black_box(&envelope), Kind::Result, len, None));
        }
        times.push(start.elapsed().as_nanos() as f64 / TURNS as f64);
    }
    Ok(Spread::of(&mut times).median)
}
