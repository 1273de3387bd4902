//! The 32-byte header of every packet.

use crate::{HEADER_LEN, MAGIC, VERSION};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Worker to box: one chunk of one rank's gradient.
    Push = 1,
    /// Box to worker: the same chunk, reduced over all ranks.
    Result = 2,
    /// Worker to box: asks for a STATUS.
    Query = 3,
    /// Box to worker: what the box holds of this rank, and what is done.
    Status = 4,
    /// Box to worker: the packet was understood and refused.
    Error = 5,
    /// Worker to box: are you there?
    Ping = 6,
    /// Box to worker: the answer to PING.
    Pong = 7,
}

impl Kind {
    /// The kind of a code on the wire, or `None` for a code of no meaning.
    #[must_use]
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Push,
            2 => Self::Result,
            3 => Self::Query,
            4 => Self::Status,
            5 => Self::Error,
            6 => Self::Ping,
            7 => Self::Pong,
            _ => return None,
        })
    }
}

/// Bits of [`Header::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags;

impl Flags {
    /// PUSH: answer with a STATUS too (the chunk is kept all the same).
    pub const WANT_STATUS: u8 = 1 << 0;
    /// PUSH: sent before, and not known to have arrived.
    pub const RESENT: u8 = 1 << 1;
    /// RESULT, STATUS: the packet that this answers, or one of them, came with ECN "congestion
    /// experienced".
    pub const CONGESTION: u8 = 1 << 2;
}

/// Why the box refused a packet: the first two bytes of an ERROR's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorCode {
    /// No job has this id: it has ended, or the box was restarted. Join again.
    UnknownJob = 1,
    /// The cookie is not the one of this rank in the present generation. Join again.
    WrongCookie = 2,
    /// The rank is not below the job's world.
    WrongRank = 3,
    /// No such tensor, or no such chunk in that tensor.
    WrongChunk = 4,
    /// The payload's length is not that of this chunk.
    WrongLength = 5,
    /// The round lies more than one before the slot's, or after it.
    WrongRound = 6,
}

impl ErrorCode {
    /// The reason of a code on the wire, or `None` for a code of no meaning.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            1 => Self::UnknownJob,
            2 => Self::WrongCookie,
            3 => Self::WrongRank,
            4 => Self::WrongChunk,
            5 => Self::WrongLength,
            6 => Self::WrongRound,
            _ => return None,
        })
    }
}

/// [`Header::rank`] of a RESULT that is for all ranks of its job at once. Such a RESULT has the
/// cookie of the job's group, and 0 as its stamp.
pub const GROUP_RANK: u8 = 0xff;

/// Bytes of an ERROR's body: the code and two reserved bytes, zero.
pub const ERROR_BODY_LEN: usize = 4;

/// The header, as it lies in the packet (all fields little-endian, none aligned).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: U16,
    /// [`VERSION`].
    pub version: u8,
    /// A [`Kind`].
    pub kind: u8,
    /// Job id, given at join.
    pub job: U16,
    /// Rank of the worker, in both directions; [`GROUP_RANK`] in a RESULT for all.
    pub rank: u8,
    /// [`Flags`]; bits of no meaning are zero when sent, ignored when received.
    pub flags: u8,
    /// Secret of this rank in this generation of the job, given at join.
    pub cookie: U32,
    /// Round of the tensor, from 0 in each generation, modulo 2^32.
    pub round: U32,
    /// Index of the chunk in the job: all tensors' chunks counted through.
    pub chunk: U32,
    /// Index of the tensor in the job's table.
    pub tensor: U16,
    /// Bytes that follow this header.
    pub length: U16,
    /// The worker's own mark (a time, a sequence number): answers carry it back unread.
    pub stamp: U64,
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

impl Header {
    /// Splits a UDP payload into header and body, or `None` where it is not a Gradbox packet:
    /// too short, another magic, another version, or a `length` that is not the body's.
    #[must_use]
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<(&Self, &[u8])> {
        let (header, body) = Self::ref_from_prefix(datagram).ok()?;
        let ours = header.magic.get() == MAGIC
            && header.version == VERSION
            && usize::from(header.length.get()) == body.len();
        ours.then_some((header, body))
    }

    /// A header with magic and version set, and everything else zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION,
            kind: kind as u8,
            job: 0.into(),
            rank: 0,
            flags: 0,
            cookie: 0.into(),
            round: 0.into(),
            chunk: 0.into(),
            tensor: 0.into(),
            length: 0.into(),
            stamp: 0.into(),
        }
    }

    /// The kind, or `None` where the code has no meaning.
    #[must_use]
    #[inline]
    pub const fn kind(&self) -> Option<Kind> {
        Kind::from_code(self.kind)
    }
}
