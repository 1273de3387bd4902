//! What the BPF programs of `gradbox bench` share with their loaders: the load generator with its
//! sink (`xdp-generate`) and the aggregator in the kernel (`xdp-aggregate`).

use crate::counted::counted;

/// Payload bytes at the start of a packet that differ by rank; a chunk has at least as many.
pub const LEAD: usize = 64;

/// Bytes that the generator writes into each packet: Ethernet, IPv4, UDP and Gradbox headers, and
/// the payload's lead.
pub const HEAD_LEN: usize = 14 + 20 + 8 + crate::HEADER_LEN + LEAD;

/// Words that hold them.
pub const HEAD_WORDS: usize = HEAD_LEN.div_ceil(8);

/// Bytes of the longest packet that the sink hands out whole.
pub const SAMPLE_LEN: usize = 3520;

/// Payload bytes of every packet that the aggregator in the kernel takes: a full chunk at MTU 1500.
/// Fixed, so that its loops are.
pub const SUM_BYTES: usize = 1408;

/// The generator's state, a map of one array of `u64`.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum State {
    /// Packets sent.
    Sent,
    /// Runs that sent nothing because the window was full.
    Polls,
    /// Packets of [`Sent`](Self::Sent) that repeat one whose RESULT did not come.
    Resent,
    /// Packets no longer waited for.
    WrittenOff,
    /// Packets that were answered when a poll last looked.
    Progress,
    /// When that number was first seen, in nanoseconds of the kernel's monotonic clock; 0: never.
    Since,
    /// Times that all that was in flight was written off.
    Epoch,
    /// Rank of the next packet.
    Rank,
    /// Chunk of the next packet.
    Chunk,
}

impl State {
    /// Length of the array.
    pub const COUNT: usize = Self::Chunk as usize + 1;
}

/// What generator and sink know of a chunk, an array of `u32`.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Chunk {
    /// Its present round. The sink alone writes it.
    Round,
    /// Round that the next three speak of.
    PushedRound,
    /// Ranks whose packet was sent, a bit each.
    Pushed,
    /// Those of them that count as in flight.
    Flying,
    /// [`State::Epoch`] when they were sent.
    Epoch,
}

impl Chunk {
    /// Length of the array.
    pub const COUNT: usize = Self::Epoch as usize + 1;
}

counted! {
    /// What the sink saw; its number is the index of its counter.
    Seen {
        /// RESULT packets of the job.
        Results = "results",
        /// Their bytes, Ethernet headers included.
        ResultBytes = "result_bytes",
        /// Rounds of chunks that were seen to be complete.
        Advanced = "advanced",
        /// STATUS packets.
        Statuses = "statuses",
        /// ERROR packets.
        Errors = "errors",
        /// Other Gradbox packets: of another job, of a chunk that is not, of another kind.
        Other = "other",
        /// RESULTs that should have been handed out, but were too long or found the ring full.
        Unsampled = "unsampled",
    }
}

counted! {
    /// What the aggregator in the kernel did with a packet; its number is the index of its counter.
    Outcome {
        /// Added to its chunk, which is not complete yet.
        Added = "added",
        /// The last part: the sum goes back.
        Completed = "completed",
        /// A part that is in the sum already.
        Duplicate = "duplicate",
        /// A part of the finished round: its sum goes back again.
        Resent = "resent",
        /// Not UDP over IPv4 to a port of ours: goes on to the kernel.
        PassOther = "pass_other",
        /// To a port of ours, but not a PUSH of this version, or of a wrong length.
        DropMalformed = "drop_malformed",
        /// Not of this job.
        DropUnknownJob = "drop_unknown_job",
        /// The rank, its cookie and its address do not belong together.
        DropStranger = "drop_stranger",
        /// No such tensor or chunk.
        DropWrongChunk = "drop_wrong_chunk",
        /// Neither of the present round nor of a finished one that is still held.
        DropWrongRound = "drop_wrong_round",
    }
}
