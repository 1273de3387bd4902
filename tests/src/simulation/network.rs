//! The network between the box and its workers.

use super::{Dice, SimBox, SimWorker};
use crate::packets::open;
use std::collections::BTreeMap;

/// What the network does to packets.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Packets lost, in percent.
    pub loss: u8,
    /// Packets that come twice, in percent.
    pub duplicate: u8,
    /// Packets that are late by up to [`Network::delay`] turns, in percent.
    pub late: u8,
    /// Turns of delay at most.
    pub delay: u8,
    /// Packets that come to another queue than their port's, in percent.
    pub misdirect: u8,
}

impl Network {
    /// Nothing at all.
    pub const PERFECT: Self = Self { loss: 0, duplicate: 0, late: 0, delay: 0, misdirect: 0 };
}

/// Runs `workers` on `the_box` until all have finished. Returns the number of turns.
///
/// # Panics
/// Where it does not end within `turns`, or a packet goes astray.
pub fn run(
    the_box: &mut SimBox,
    workers: &mut [SimWorker],
    speeds: &[u8],
    network: Network,
    dice: &mut Dice,
    turns: u32,
) -> u32 {
    let mut to_box: BTreeMap<u32, Vec<(usize, Vec<u8>)>> = BTreeMap::new();
    // With the worker that it comes to.
    let mut to_workers: BTreeMap<u32, Vec<(usize, Vec<u8>)>> = BTreeMap::new();
    let queues = the_box.cores.len();
    for turn in 0..turns {
        if workers.iter().all(SimWorker::finished) {
            return turn;
        }
        for (worker, &speed) in workers.iter().zip(speeds.iter().cycle()) {
            for _ in 0..dice.below(u64::from(speed) + 1) {
                let Some((shard, packet)) = worker.send(dice) else { break };
                let mut queue = usize::from(shard);
                if dice.percent(network.misdirect) {
                    queue = dice.below(queues as u64) as usize;
                }
                for when in fates(network, dice, turn) {
                    to_box.entry(when).or_default().push((queue, packet.clone()));
                }
            }
        }
        for (queue, packet) in to_box.remove(&turn).unwrap_or_default() {
            // No frame or no room: lost, like on a wire.
            the_box.send(queue, &packet);
        }
        the_box.step();
        for packet in the_box.receive() {
            let (to, header, _) = open(&packet).expect("a packet of the protocol");
            let mut receivers = 0;
            for (i, worker) in workers.iter().enumerate() {
                let listens = worker.address() == to || worker.job.group() == Some(to);
                if worker.job.plan.id != header.job.get() || !listens {
                    continue;
                }
                receivers += 1;
                // What is for a group has a fate for each of its members.
                for when in fates(network, dice, turn) {
                    to_workers.entry(when).or_default().push((i, packet.clone()));
                }
            }
            assert!(receivers > 0, "a packet for none of the workers");
        }
        for (worker, packet) in to_workers.remove(&turn).unwrap_or_default() {
            let (_, header, body) = open(&packet).expect("a packet of the protocol");
            workers[worker].receive(&header, &body);
        }
    }
    panic!("not finished after {turns} turns");
}

/// The turns in which a packet sent in `turn` arrives.
fn fates(network: Network, dice: &mut Dice, turn: u32) -> Vec<u32> {
    if dice.percent(network.loss) {
        return Vec::new();
    }
    let copies = if dice.percent(network.duplicate) { 2 } else { 1 };
    (0..copies)
        .map(|_| {
            let late = dice.percent(network.late);
            turn + if late { dice.below(u64::from(network.delay) + 1) as u32 } else { 0 }
        })
        .collect()
}
