//! The JSON bodies of the control plane. Paths and status codes are in `docs/protocol.md`.

use crate::{DType, Op, Reply};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use serde::{Deserialize, Serialize};

/// One entry of a job's tensor table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Name, for messages only.
    pub name: String,
    /// Number of elements.
    pub elements: u64,
}

/// A field that says nothing is left out, so that boxes that do not know it are not bothered.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Body of `POST /v1/jobs/{name}/join`. Repeated with the same `instance` until it is answered
/// with [`Joined`]; repeating is harmless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Rank of this worker, below `world`.
    pub rank: u8,
    /// Number of workers of the job.
    pub world: u8,
    /// Element type on the wire.
    pub dtype: DType,
    /// What is done with the elements.
    pub op: Op,
    /// How results are sent; unicast where it is absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reply: Reply,
    /// The box's token, where its configuration sets one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A random number below 2^53 that names this run of the worker: a second process that
    /// claims the same rank has another one.
    pub instance: u64,
    /// Address and port that this worker's packets come from.
    pub address: SocketAddr,
    /// The tensors, the same for all ranks.
    pub tensors: Vec<TensorEntry>,
}

/// Answer 200 to a join: all ranks are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Job id for the packet header.
    pub job: u16,
    /// Counts the times that all ranks of this job have joined, from 1.
    pub generation: u32,
    /// Cookie of this rank for the packet header.
    pub cookie: u32,
    /// Address that PUSH and QUERY are sent to.
    pub address: IpAddr,
    /// UDP port of shard 0; shard `s` has port `port_base + s`.
    pub port_base: u16,
    /// Number of shards: chunk `c` belongs to shard `c % shards`.
    pub shards: u16,
    /// Payload bytes of a full chunk.
    pub chunk_bytes: u16,
    /// Packets that this rank may have in flight to each shard.
    pub credit: u16,
    /// Where RESULTs come for all ranks at once, in a job whose reply is multicast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
}

/// The multicast group of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Multicast address and UDP port, the same for all ranks.
    pub address: SocketAddr,
    /// Cookie in the header of what comes there.
    pub cookie: u32,
}

/// Answer 202 to a join: ask again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Ranks that have not joined yet, ascending.
    pub missing: Vec<u8>,
}

/// Answer 4xx, 503 or 507: what is wrong, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A word for programs, such as `duplicate_rank` or `too_large`.
    pub error: String,
    /// A sentence for people.
    pub message: String,
    /// Bytes that the job needs, where memory is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed_bytes: Option<u64>,
    /// Bytes that are free, where memory is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
}

/// Body of `POST /v1/jobs/{name}/leave`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    /// Rank that leaves.
    pub rank: u8,
    /// The `instance` that it joined with.
    pub instance: u64,
}

/// Answer to `GET /v1/box`: what a worker must know before it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxInfo {
    /// Version of the box's software.
    pub version: String,
    /// Version of the wire format.
    pub protocol: u8,
    /// Addresses of the data plane, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// UDP port of shard 0.
    pub port_base: u16,
    /// Number of shards.
    pub shards: u16,
    /// Payload bytes of a full chunk.
    pub chunk_bytes: u16,
    /// MTU that the box is configured for.
    pub mtu: u16,
    /// `xdp` or `udp`.
    pub port: String,
    /// `zerocopy` or `copy` as the kernel reports it, or `udp`.
    pub mode: String,
    /// What sends the answers: `ring` or `socket`. Empty from a box that does not tell.
    #[serde(default)]
    pub transmit: String,
}

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The box.
    #[serde(rename = "box")]
    pub info: BoxInfo,
    /// Seconds since it became ready.
    pub uptime_s: f64,
    /// Its cores, by shard.
    pub cores: Vec<CoreStatus>,
    /// Its jobs, by name.
    pub jobs: Vec<JobStatus>,
}

/// One core of the box.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreStatus {
    /// Shard that it owns.
    pub shard: u16,
    /// CPU that it is pinned to, where it is.
    pub cpu: Option<u32>,
    /// Share of the time since the start that was spent on packets.
    pub busy_share: f64,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
    /// Frames by state: free, fill, rx, slot, tx.
    pub frames: Vec<(String, u64)>,
    /// Frames altogether; the states add up to it.
    pub frames_total: u64,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Name.
    pub name: String,
    /// Id in packets; absent while the first generation is forming.
    pub job: Option<u16>,
    /// Generation that is running, 0 while the first one is forming.
    pub generation: u32,
    /// Number of workers.
    pub world: u8,
    /// Element type.
    pub dtype: DType,
    /// Operation.
    pub op: Op,
    /// How its results are sent.
    #[serde(default)]
    pub reply: Reply,
    /// Ranks that have not joined the generation that is forming; empty where none is.
    pub joining: Vec<u8>,
    /// Seconds since the first rank of the forming generation joined; 0 where none is.
    pub joining_s: f64,
    /// Bytes of frames that the job holds reserved.
    pub reserved_bytes: u64,
    /// Its ranks.
    pub ranks: Vec<RankStatus>,
    /// The straggler: the rank with the fewest chunks pushed, where it is behind the others.
    pub waiting_for: Option<u8>,
}

/// One rank of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Rank.
    pub rank: u8,
    /// Where its packets come from.
    pub address: SocketAddr,
    /// Chunks taken from it since the generation began.
    pub pushed: u64,
    /// Chunks that were complete only when this rank's part came.
    pub last: u64,
    /// It has left.
    pub left: bool,
}
