//! A box on the `mem` port, its workers and the network between them, moved by a seeded
//! scheduler. The workers here are as simple as a worker can be; they are a second reading of the
//! protocol, not the client library.

mod network;

use crate::packets::{Sender, header};
use gradbox::dataplane::core::Core;
use gradbox::dataplane::counters::{Counter, FrameCounts};
use gradbox::dataplane::handle::{Command, CoreHandle, Event};
use gradbox::dataplane::job::JobTable;
use gradbox::dataplane::mem::{self, MemPort, MemWire};
use gradbox::dataplane::plan::{Group, JobPlan, Member};
use gradbox::dataplane::steer::Steering;
use gradbox::sum;
use gradbox_protocol::header::GROUP_RANK;
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Flags, Kind, Op};
pub use network::{Network, run};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// SplitMix64: every decision of a run follows from its seed.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, or 0 where `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }

    /// True in `percent` of all cases.
    pub fn percent(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }
}

/// One core of the box with its wire.
pub struct SimCore {
    /// The data plane.
    pub core: Core,
    /// The box's side of the wire.
    pub port: MemPort,
    /// The network's side.
    pub wire: MemWire,
    /// The control plane's side.
    pub handle: CoreHandle,
}

/// A box without a control plane: jobs are put into its cores by hand.
pub struct SimBox {
    /// The cores, by shard.
    pub cores: Vec<SimCore>,
    clock_us: u32,
}

impl SimBox {
    /// A box of `shards` cores with `frames` frames of `frame_bytes` each.
    ///
    /// # Panics
    /// Where there is no memory.
    #[must_use]
    pub fn new(shards: u16, frames: u32, frame_bytes: usize, ring: u32) -> Self {
        let cores = Steering::new(shards)
            .expect("event descriptors")
            .into_iter()
            .enumerate()
            .map(|(shard, steering)| {
                let (port, wire, pool) = mem::pair(frames, frame_bytes, ring).expect("memory");
                let (handle, link) = CoreHandle::new(shard as u16, None, 0, frame_bytes as u64);
                let core = Core::new(shard as u16, pool, steering, link, false);
                SimCore { core, port, wire, handle }
            })
            .collect();
        Self { cores, clock_us: 0 }
    }

    /// Gives a job to all cores.
    ///
    /// # Panics
    /// Where no kernel serves it.
    pub fn add(&mut self, plan: &Arc<JobPlan>) {
        for (shard, c) in self.cores.iter_mut().enumerate() {
            let (table, _) = JobTable::new(plan.clone(), shard as u16, 64).expect("kernel");
            c.handle.send(Command::Add(table)).expect("room");
        }
        self.step();
    }

    /// Takes a job from all cores.
    ///
    /// # Panics
    /// Where a core does not hand the table back.
    pub fn remove(&mut self, job: u16) {
        for c in &self.cores {
            c.handle.send(Command::Remove(job)).expect("room");
        }
        for _ in 0..40 {
            self.step();
        }
        for c in &self.cores {
            assert!(matches!(c.handle.event(), Some(Event::Removed(_))), "table handed back");
        }
    }

    /// One step of every core. Every frame is accounted for after each.
    ///
    /// # Panics
    /// Where a frame got lost.
    pub fn step(&mut self) {
        self.clock_us = self.clock_us.wrapping_add(10);
        for c in &mut self.cores {
            c.core.step(&mut c.port, self.clock_us);
            let frames = c.core.frames(&c.port);
            assert!(frames.balanced(), "a frame was lost: {frames:?}");
        }
    }

    /// Puts a packet on the wire of `queue`.
    pub fn send(&mut self, queue: usize, packet: &[u8]) -> bool {
        self.cores[queue].wire.send(|room| {
            let len = packet.len().min(room.len());
            room[..len].copy_from_slice(&packet[..len]);
            len
        })
    }

    /// Takes all packets that the box has transmitted.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for c in &mut self.cores {
            while let Some(packet) = c.wire.receive(<[u8]>::to_vec) {
                packets.push(packet);
            }
        }
        packets
    }

    /// A counter, over all cores.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.cores.iter().map(|c| c.core.counters().get(counter)).sum()
    }

    /// The frames of every core.
    #[must_use]
    pub fn frames(&self) -> Vec<FrameCounts> {
        self.cores.iter().map(|c| c.core.frames(&c.port)).collect()
    }
}

/// A job and what its workers send: values that differ by rank, round, tensor and element.
#[derive(Clone, Debug)]
pub struct SimJob {
    /// The plan that the cores have.
    pub plan: Arc<JobPlan>,
    /// The workers' envelopes, by rank.
    pub senders: Vec<Sender>,
    elements: Vec<u64>,
    seed: u64,
}

impl SimJob {
    /// A job of `world` ranks. Odd ranks have a VLAN tag if `mixed`, every third is IPv6.
    ///
    /// # Panics
    /// Where the tensors have no layout.
    #[must_use]
    pub fn new(
        (id, seed): (u16, u64),
        (dtype, op): (DType, Op),
        world: u8,
        elements: Vec<u64>,
        (chunk_bytes, shards): (u16, u16),
        mixed: bool,
    ) -> Self {
        let layout =
            Layout::new(dtype, elements.iter().copied(), chunk_bytes, shards).expect("layout");
        let senders: Vec<_> =
            (0..world).map(|r| Sender::new(r, mixed && r % 3 == 2, mixed && r % 2 == 1)).collect();
        let members = senders
            .iter()
            .enumerate()
            .map(|(r, s)| Member {
                source: s.from.into(),
                cookie: 0x1000_0000 + u32::from(id) * 256 + r as u32,
            })
            .collect();
        let plan = Arc::new(JobPlan { id, dtype, op, layout, members, group: None });
        Self { plan, senders, elements, seed }
    }

    /// The same job with a multicast group for its results, all ranks over IPv6 or over IPv4.
    ///
    /// # Panics
    /// Never: the addresses are well-formed.
    #[must_use]
    pub fn with_group(mut self, v6: bool) -> Self {
        let id = self.plan.id;
        let to = if v6 {
            format!("[ff15::8047:42{id:02x}]:9200")
        } else {
            format!("239.255.71.{id}:9200")
        };
        let to: SocketAddr = to.parse().expect("well-formed");
        let mut plan = JobPlan::clone(&self.plan);
        plan.group = Some(Group { to, cookie: 0x2000_0000 + u32::from(id) });
        for (r, (sender, member)) in (0..).zip(self.senders.iter_mut().zip(&mut plan.members)) {
            *sender = Sender::new(r, v6, sender.link.vlan.is_some());
            member.source = sender.from.into();
        }
        self.plan = Arc::new(plan);
        self
    }

    /// Where the results for all ranks go, where there is such a place.
    #[must_use]
    pub fn group(&self) -> Option<SocketAddr> {
        self.plan.group.map(|g| g.to)
    }

    /// The bytes that `rank` contributes to `tensor` in `round`: any bits at all, so special
    /// values too.
    #[must_use]
    pub fn input(&self, rank: u8, round: u32, tensor: u16) -> Vec<u8> {
        let len = self.elements[usize::from(tensor)] as usize * self.plan.dtype.size();
        let name = u64::from(rank) << 40 | u64::from(round) << 16 | u64::from(tensor);
        let mut dice = Dice(self.seed ^ name.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|_| dice.bits().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }

    /// What all ranks must get, by the plain scalar loop.
    #[must_use]
    pub fn expected(&self, round: u32, tensor: u16) -> Vec<u8> {
        let inputs: Vec<_> =
            (0..self.senders.len()).map(|r| self.input(r as u8, round, tensor)).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; inputs[0].len()];
        sum::reference(self.plan.dtype, self.plan.op, &inputs, &mut out);
        out
    }

    /// The PUSH of one chunk.
    ///
    /// # Panics
    /// Where there is no such chunk.
    #[must_use]
    pub fn push(&self, rank: u8, round: u32, tensor: u16, chunk: u32, flags: u8) -> Vec<u8> {
        let layout = &self.plan.layout;
        let data = self.input(rank, round, tensor);
        let at = layout.chunk_offset(tensor, chunk);
        let len = usize::from(layout.chunk_len(tensor, chunk).expect("a chunk of the tensor"));
        let mut h = self.header(Kind::Push, rank);
        h.round = round.into();
        h.tensor = tensor.into();
        h.chunk = chunk.into();
        h.flags = flags;
        h.stamp = (u64::from(round) << 32 | u64::from(chunk)).into();
        let shard = layout.place(chunk).0;
        self.senders[usize::from(rank)].packet(shard, h, &data[at..at + len])
    }

    /// A header of `kind` with this rank's cookie.
    #[must_use]
    pub fn header(&self, kind: Kind, rank: u8) -> gradbox_protocol::Header {
        let cookie = self.plan.members[usize::from(rank)].cookie;
        header(kind, self.plan.id, rank, cookie)
    }
}

/// A worker that does the least a worker must: pushes what it has no result for, again and again.
pub struct SimWorker {
    job: SimJob,
    rank: u8,
    rounds: u32,
    /// Round of each chunk, and the number of rounds it has finished.
    done: Vec<u32>,
    tensor_of: Vec<u16>,
    results: BTreeMap<(u32, u16), Vec<u8>>,
}

impl SimWorker {
    /// Worker `rank` of `job`, for `rounds` rounds.
    #[must_use]
    pub fn new(job: &SimJob, rank: u8, rounds: u32) -> Self {
        let tensors = job.plan.layout.tensors();
        let tensor_of =
            (0u16..).zip(tensors).flat_map(|(i, t)| (0..t.count).map(move |_| i)).collect();
        let mut results = BTreeMap::new();
        for round in 0..rounds {
            for (tensor, &elements) in (0u16..).zip(&job.elements) {
                let len = elements as usize * job.plan.dtype.size();
                results.insert((round, tensor), vec![0; len]);
            }
        }
        let done = vec![0; job.plan.layout.chunks() as usize];
        Self { job: job.clone(), rank, rounds, done, tensor_of, results }
    }

    /// Whether all rounds of all chunks are here.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.done.iter().all(|&r| r == self.rounds)
    }

    /// The round of `chunk` that this worker has no result of yet.
    #[must_use]
    pub fn round_of(&self, chunk: u32) -> u32 {
        self.done[chunk as usize]
    }

    /// Some packet that it makes sense to send now, with the shard that it is for.
    pub fn send(&self, dice: &mut Dice) -> Option<(u16, Vec<u8>)> {
        let open: Vec<_> = (0..self.done.len()).filter(|&c| self.done[c] < self.rounds).collect();
        let chunk = *open.get(dice.below(open.len() as u64) as usize)?;
        let shard = self.job.plan.layout.place(chunk as u32).0;
        if dice.percent(5) {
            let mut h = self.job.header(Kind::Query, self.rank);
            h.chunk = (chunk as u32).into();
            return Some((shard, self.job.senders[usize::from(self.rank)].packet(shard, h, &[])));
        }
        let flags = if dice.percent(10) { Flags::WANT_STATUS } else { 0 };
        let tensor = self.tensor_of[chunk];
        Some((shard, self.job.push(self.rank, self.done[chunk], tensor, chunk as u32, flags)))
    }

    /// Takes a packet that the box sent to this worker.
    ///
    /// # Panics
    /// Where the packet is not one that an honest worker can get.
    pub fn receive(&mut self, header: &gradbox_protocol::Header, body: &[u8]) {
        let own = self.job.plan.members[usize::from(self.rank)].cookie;
        if header.rank == GROUP_RANK {
            let group = self.job.plan.group.expect("a group, since it got a result for all");
            assert_eq!((header.kind(), header.stamp.get()), (Some(Kind::Result), 0));
            assert_eq!(header.cookie.get(), group.cookie);
        } else {
            assert_eq!((header.rank, header.cookie.get()), (self.rank, own));
        }
        match header.kind() {
            Some(Kind::Result) => {
                let chunk = header.chunk.get();
                let (round, tensor) = (header.round.get(), header.tensor.get());
                let done = &mut self.done[chunk as usize];
                if round != *done || round == self.rounds {
                    return;
                }
                *done += 1;
                let at = self.job.plan.layout.chunk_offset(tensor, chunk);
                let result = self.results.get_mut(&(round, tensor)).expect("a round of ours");
                result[at..at + body.len()].copy_from_slice(body);
            }
            Some(Kind::Status) => {
                let status = gradbox_protocol::status::StatusBody::parse(body).expect("a status");
                let shards = u32::from(self.job.plan.layout.shards());
                for i in 0..usize::from(status.count.get()) {
                    let chunk = header.chunk.get() + i as u32 * shards;
                    assert!((chunk as usize) < self.done.len(), "no such chunk");
                }
            }
            Some(Kind::Error) => {
                // Only a duplicate from long ago can be too late.
                assert_eq!(body[..2], 6u16.to_le_bytes(), "unexpected error");
            }
            other => panic!("a worker got {other:?}"),
        }
    }

    /// Compares every bit with the reference.
    ///
    /// # Panics
    /// Where one differs.
    pub fn verify(&self) {
        for ((round, tensor), result) in &self.results {
            let expected = self.job.expected(*round, *tensor);
            assert!(*result == expected, "rank {} round {round} tensor {tensor}", self.rank);
        }
    }

    /// The address that its packets come from.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.job.senders[usize::from(self.rank)].from
    }
}
