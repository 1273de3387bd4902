//! Answers, made in the frame of the packet that they answer: the envelope is turned round, the
//! header changes its kind, and the body is written behind it.

use super::plan::Group;
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::header::{ERROR_BODY_LEN, GROUP_RANK};
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{ErrorCode, Flags, HEADER_LEN, Header, Kind};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the longest answer that is not a RESULT, headers included.
pub(super) const LONGEST: usize =
    gradbox_protocol::envelope::LONGEST + HEADER_LEN + size_of::<StatusBody>();

/// Turns `packet`, from its Ethernet header on, into an answer of `kind` with `body_len` bytes
/// behind the header, which are there already. Returns the packet's new length.
///
/// `body_sum` is their Internet checksum's sum where it is known and wanted, see
/// [`Envelope::reply`].
///
/// # Panics
/// Where `packet` is shorter than the envelope, the header and the body.
#[inline]
#[must_use]
pub fn turn(
    packet: &mut [u8],
    envelope: &Envelope,
    kind: Kind,
    body_len: usize,
    body_sum: Option<u16>,
) -> u16 {
    let congestion = envelope.congestion(packet);
    let at = envelope.payload();
    // Only these fields differ from the question's; job, rank, cookie, round, chunk and stamp
    // are what makes the answer recognisable.
    if let Ok((header, _)) = Header::mut_from_prefix(&mut packet[at..]) {
        header.kind = kind as u8;
        header.flags = if congestion { Flags::CONGESTION } else { 0 };
        header.length = (body_len as u16).into();
    }
    envelope.reply(packet, HEADER_LEN + body_len, body_sum);
    (at + HEADER_LEN + body_len) as u16
}

/// Turns `packet`, a PUSH of a job's first rank, into the RESULT for all ranks, whose `body_len`
/// bytes are there already. `congestion` tells that one of the ranks' PUSHes was marked. Returns
/// the packet's new length; `body_sum` is as in [`turn`].
///
/// # Panics
/// Where `packet` is shorter than the envelope, the header and the body.
pub(super) fn group(
    packet: &mut [u8],
    envelope: &Envelope,
    group: &Group,
    congestion: bool,
    body_len: usize,
    body_sum: Option<u16>,
) -> u16 {
    let at = envelope.payload();
    // Round, tensor and chunk are the same for all; the rest is nobody's in particular.
    if let Ok((header, _)) = Header::mut_from_prefix(&mut packet[at..]) {
        header.kind = Kind::Result as u8;
        header.rank = GROUP_RANK;
        header.flags = if congestion { Flags::CONGESTION } else { 0 };
        header.cookie = group.cookie.into();
        header.length = (body_len as u16).into();
        header.stamp = 0.into();
    }
    envelope.reply_to_group(packet, group.to, HEADER_LEN + body_len, body_sum);
    (at + HEADER_LEN + body_len) as u16
}

/// Turns `packet` into a STATUS that speaks of the chunks from `chunk` on.
///
/// # Panics
/// Where `packet` has less than [`LONGEST`] bytes.
pub(super) fn status(packet: &mut [u8], envelope: &Envelope, chunk: u32, body: &StatusBody) -> u16 {
    let at = envelope.payload();
    if let Ok((header, rest)) = Header::mut_from_prefix(&mut packet[at..]) {
        header.chunk = chunk.into();
        rest[..size_of::<StatusBody>()].copy_from_slice(body.as_bytes());
    }
    turn(packet, envelope, Kind::Status, size_of::<StatusBody>(), None)
}

/// Turns `packet` into an ERROR.
///
/// # Panics
/// Where `packet` has less than [`LONGEST`] bytes.
pub(super) fn error(packet: &mut [u8], envelope: &Envelope, code: ErrorCode) -> u16 {
    let at = envelope.payload() + HEADER_LEN;
    packet[at..at + 2].copy_from_slice(&(code as u16).to_le_bytes());
    packet[at + 2..at + ERROR_BODY_LEN].fill(0);
    turn(packet, envelope, Kind::Error, ERROR_BODY_LEN, None)
}
