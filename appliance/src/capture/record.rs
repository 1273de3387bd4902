//! The stream of a capture: records one after another, each a head of 24 bytes (numbers are
//! little-endian) and, for a packet, its bytes.
//!
//! | kind | direction | shard | frame | number | start | len | kept |
//! |---|---|---|---|---|---|---|---|
//! | 0 begin, the first | 0 | shards of the box | bytes of a frame | [`MAGIC`] | 0 | 0 | bytes kept of a packet at most |
//! | 1 packet | 0 in, 1 out | shard of its core | frame of that core's UMEM | ns since 1970 | where it starts in the frame | bytes that it had | bytes that follow |
//! | 2 missed | 0 | 0 | 0 | packets missed so far | 0 | 0 | 0 |
//! | 3 end: the box stops | 0 | 0 | 0 | packets missed in all | 0 | 0 | 0 |
//!
//! "Missed" comes several times a second, so that a reader knows that the box is there. A stream
//! that ends without "end" was cut off.

use crate::dataplane::tap::{Copied, Direction};
use std::io::{self, Read};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of the first record, with the version of the stream in its last byte.
pub const MAGIC: u64 = u64::from_le_bytes(*b"GBtaps\0\x01");

const BEGIN: u8 = 0;
const PACKET: u8 = 1;
const MISSED: u8 = 2;
const END: u8 = 3;

/// The head of every record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    direction: u8,
    shard: U16,
    frame: U32,
    number: U64,
    start: U16,
    len: U16,
    kept: U16,
    zero: U16,
}

const _: () = assert!(size_of::<Head>() == 24);

/// What a stream begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Shards of the box.
    pub shards: u16,
    /// Bytes of a frame of its UMEMs.
    pub frame_bytes: u32,
    /// Bytes kept of a packet at most.
    pub kept: u16,
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Shard of the core that it was on.
    pub shard: u16,
    /// Frame of that core's UMEM that it lay in.
    pub frame: u32,
    /// Offset of its Ethernet header in the frame.
    pub start: u16,
    /// Bytes that it had.
    pub len: u16,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// A record but for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A packet.
    Packet(Captured),
    /// Packets missed so far.
    Missed(u64),
    /// The box stops, having missed so many packets.
    End(u64),
}

/// What is wrong with a stream.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be read.
    #[error("reading the box's capture: {0}")]
    Io(#[from] io::Error),
    /// It ended within a record, or without the last one.
    #[error("the box's capture was cut off: the box, or the network to it, has failed")]
    CutOff,
    /// The first record is none.
    #[error(
        "this is no capture (it begins with {found:#018x}, not {MAGIC:#018x}): is the box of this \
         program's version?"
    )]
    NotACapture {
        /// Number of the first record.
        found: u64,
    },
    /// A record has no meaning.
    #[error(
        "the box's capture has a record of kind {kind}, direction {direction}, with {kept} of \
         {len} bytes: is the box of this program's version?"
    )]
    Unknown {
        /// Its kind.
        kind: u8,
        /// Its direction.
        direction: u8,
        /// Bytes that follow it.
        kept: u16,
        /// Bytes that the packet had.
        len: u16,
    },
}

/// Appends the first record to `stream`.
pub fn write_begin(stream: &mut Vec<u8>, begin: Begin) {
    let head = Head {
        shard: begin.shards.into(),
        frame: begin.frame_bytes.into(),
        number: MAGIC.into(),
        kept: begin.kept.into(),
        ..Head::new_zeroed()
    };
    stream.extend_from_slice(head.as_bytes());
}

/// Appends a packet of the core of `shard` to `stream`.
pub fn write_packet(stream: &mut Vec<u8>, shard: u16, copied: &Copied) {
    let bytes = copied.bytes();
    let head = Head {
        kind: PACKET,
        direction: copied.direction as u8,
        shard: shard.into(),
        frame: copied.frame.into(),
        number: copied.at_ns.into(),
        start: copied.start.into(),
        len: copied.len.into(),
        kept: (bytes.len() as u16).into(),
        zero: 0.into(),
    };
    stream.extend_from_slice(head.as_bytes());
    stream.extend_from_slice(bytes);
}

/// Appends to `stream` how many packets were missed; with `end`, as the last record.
pub fn write_missed(stream: &mut Vec<u8>, missed: u64, end: bool) {
    let kind = if end { END } else { MISSED };
    let head = Head { kind, number: missed.into(), ..Head::new_zeroed() };
    stream.extend_from_slice(head.as_bytes());
}

/// Reads the first record.
///
/// # Errors
/// Where the stream ends, cannot be read, or is none.
pub fn read_begin(stream: &mut impl Read) -> Result<Begin, RecordError> {
    let head = read_head(stream)?;
    if head.kind != BEGIN || head.number.get() != MAGIC {
        return Err(RecordError::NotACapture { found: head.number.get() });
    }
    let (shards, frame_bytes) = (head.shard.get(), head.frame.get());
    Ok(Begin { shards, frame_bytes, kept: head.kept.get() })
}

/// Reads the next record.
///
/// # Errors
/// Where the stream ends, cannot be read, or has a record of no meaning.
pub fn read(stream: &mut impl Read) -> Result<Record, RecordError> {
    let head = read_head(stream)?;
    let (kept, len) = (head.kept.get(), head.len.get());
    let direction = match head.direction {
        0 => Some(Direction::In),
        1 => Some(Direction::Out),
        _ => None,
    };
    match (head.kind, direction) {
        (PACKET, Some(direction)) if kept <= len => {
            let mut bytes = vec![0; usize::from(kept)];
            stream.read_exact(&mut bytes).map_err(cut_off)?;
            Ok(Record::Packet(Captured {
                at_ns: head.number.get(),
                direction,
                shard: head.shard.get(),
                frame: head.frame.get(),
                start: head.start.get(),
                len,
                bytes,
            }))
        }
        (MISSED, Some(_)) => Ok(Record::Missed(head.number.get())),
        (END, Some(_)) => Ok(Record::End(head.number.get())),
        _ => {
            let (kind, direction) = (head.kind, head.direction);
            Err(RecordError::Unknown { kind, direction, kept, len })
        }
    }
}

fn read_head(stream: &mut impl Read) -> Result<Head, RecordError> {
    let mut head = Head::new_zeroed();
    stream.read_exact(head.as_mut_bytes()).map_err(cut_off)?;
    Ok(head)
}

fn cut_off(error: io::Error) -> RecordError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => RecordError::CutOff,
        _ => RecordError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut stream = Vec::new();
        write_begin(&mut stream, Begin { shards: 2, frame_bytes: 4096, kept: 60 });
        write_missed(&mut stream, 3, false);
        write_missed(&mut stream, 5, true);
        stream
    }

    #[test]
    fn what_is_written_is_read() {
        let stream = stream();
        let mut rest = &stream[..];
        let begin = Begin { shards: 2, frame_bytes: 4096, kept: 60 };
        assert_eq!(read_begin(&mut rest).unwrap(), begin);
        assert_eq!(read(&mut rest).unwrap(), Record::Missed(3));
        assert_eq!(read(&mut rest).unwrap(), Record::End(5));
        assert!(matches!(read(&mut rest), Err(RecordError::CutOff)));
    }

    #[test]
    fn another_stream_is_refused() {
        let mut html: &[u8] = b"<!doctype html><title>It works!</title>";
        assert!(matches!(read_begin(&mut html), Err(RecordError::NotACapture { .. })));
        let mut short: &[u8] = &[1, 0, 0];
        assert!(matches!(read(&mut short), Err(RecordError::CutOff)));
        let mut packet = Head::new_zeroed();
        packet.kind = PACKET;
        packet.kept = 2.into();
        packet.len = 1.into();
        let unknown = read(&mut packet.as_bytes());
        assert!(matches!(unknown, Err(RecordError::Unknown { kind: PACKET, kept: 2, .. })));
    }
}
