//! What a worker is told at join.

use gradbox_protocol::control::TensorEntry;
use gradbox_protocol::{DType, Op, Reply};
use std::net::IpAddr;
use std::time::Duration;

/// What a worker is told at join. All ranks of a job give the same `world`, `wire_dtype`, `op`,
/// `reply` and `tensors`.
#[derive(Clone, Debug)]
pub struct Options {
    /// HOST:PORT of the box's control plane.
    pub control: String,
    /// Name of the job.
    pub job: String,
    /// Rank of this worker, below `world`.
    pub rank: u8,
    /// Number of workers, 1 to 32.
    pub world: u8,
    /// Element type on the wire. f32 tensors may travel as f16 or bf16, others as they are.
    pub wire_dtype: DType,
    /// What is done with the elements.
    pub op: Op,
    /// How results come: one for each rank, or by multicast one for all, which costs the network and
    /// the box less where it reaches every rank. Either way a lost one is repeated to its rank.
    pub reply: Reply,
    /// The tensors; a call refers to them by their place here.
    pub tensors: Vec<TensorEntry>,
    /// The box's token, where its configuration sets one.
    pub token: Option<String>,
    /// How long to wait for the other ranks at join.
    pub join_timeout: Duration,
    /// How long a call waits where it does not say so itself.
    pub timeout: Duration,
    /// Local address of the data plane; by default the one that the kernel routes to the box.
    pub bind: Option<IpAddr>,
    /// Bytes of receive buffer to ask the kernel for. What it grants bounds the window.
    pub receive_buffer: usize,
}

impl Options {
    /// Options for a worker of `job`, with f32 sums by unicast, no tensors, 60 s for join and for calls, and
    /// 16 MiB of receive buffer.
    #[must_use]
    pub fn new(control: impl Into<String>, job: impl Into<String>, rank: u8, world: u8) -> Self {
        Self {
            control: control.into(),
            job: job.into(),
            rank,
            world,
            wire_dtype: DType::F32,
            op: Op::Sum,
            reply: Reply::Unicast,
            tensors: Vec::new(),
            token: None,
            join_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
            bind: None,
            receive_buffer: 16 << 20,
        }
    }

    /// Adds a tensor to the table.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>, elements: u64) -> Self {
        self.tensors.push(TensorEntry { name: name.into(), elements });
        self
    }
}
