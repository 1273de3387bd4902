//! Captures as files: classic pcap, or pcapng with what only the box knows of each packet.

use super::record::{Begin, Captured};
use crate::dataplane::tap::Direction;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError, TsResolution};
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// `if_tsresol` of pcapng: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Direction in `epb_flags` of pcapng: inbound and outbound.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Classic pcap with nanoseconds: packets and times.
    Pcap,
    /// pcapng: for each packet also its direction, its core, and its place in the UMEM.
    PcapNg,
}

impl Format {
    /// The format that a file's name says: `.pcap` or `.pcapng`.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "pcap" => Some(Self::Pcap),
            "pcapng" => Some(Self::PcapNg),
            _ => None,
        }
    }
}

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("writing the capture: {0}")]
pub struct WriteError(#[from] PcapError);

/// A file being written.
pub enum PacketFile<W: Write> {
    /// Classic pcap.
    Pcap(PcapWriter<W>),
    /// pcapng.
    PcapNg(PcapNgWriter<W>, Begin),
}

impl<W: Write> PacketFile<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// Where `out` cannot be written to.
    pub fn begin(out: W, format: Format, begin: Begin) -> Result<Self, WriteError> {
        let snaplen = u32::from(u16::MAX);
        if format == Format::Pcap {
            let ts_resolution = TsResolution::NanoSecond;
            let datalink = DataLink::ETHERNET;
            let header = PcapHeader { snaplen, datalink, ts_resolution, ..PcapHeader::default() };
            return Ok(Self::Pcap(PcapWriter::with_header(out, header)?));
        }
        let mut writer = PcapNgWriter::new(out)?;
        for shard in 0..begin.shards {
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen,
                options: vec![
                    InterfaceDescriptionOption::IfName(format!("core-{shard}").into()),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
        }
        Ok(Self::PcapNg(writer, begin))
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Where the file cannot be written to, or the packet's core or time is impossible.
    pub fn add(&mut self, packet: &Captured) -> Result<(), WriteError> {
        let timestamp = Duration::from_nanos(packet.at_ns);
        let (original_len, data) = (packet.len.into(), Cow::Borrowed(&packet.bytes[..]));
        match self {
            Self::Pcap(writer) => {
                writer.write_packet(&PcapPacket { timestamp, orig_len: original_len, data })?;
            }
            Self::PcapNg(writer, begin) => {
                let flags = match packet.direction {
                    Direction::In => INBOUND,
                    Direction::Out => OUTBOUND,
                };
                writer.write_pcapng_block(EnhancedPacketBlock {
                    interface_id: packet.shard.into(),
                    timestamp,
                    original_len,
                    data,
                    options: vec![
                        EnhancedPacketOption::Comment(place(packet, begin.frame_bytes).into()),
                        EnhancedPacketOption::Flags(flags),
                    ],
                })?;
            }
        }
        Ok(())
    }

    /// Ends the file and returns what it was written to.
    ///
    /// # Errors
    /// Where that cannot be flushed.
    pub fn end(self) -> io::Result<W> {
        let mut out = match self {
            Self::Pcap(writer) => writer.into_writer(),
            Self::PcapNg(writer, _) => writer.into_inner(),
        };
        out.flush()?;
        Ok(out)
    }
}

/// Where a packet lay: its frame, and its address in the UMEM as AF_XDP's descriptors have it.
fn place(packet: &Captured, frame_bytes: u32) -> String {
    let frame = u64::from(packet.frame) * u64::from(frame_bytes);
    format!("frame {} addr {:#x}", packet.frame, frame + u64::from(packet.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::PcapReader;
    use pcap_file::pcapng::PcapNgReader;

    const BEGIN: Begin = Begin { shards: 2, frame_bytes: 2048, kept: 4 };

    fn packet() -> Captured {
        Captured {
            at_ns: 1_700_000_000_123_456_789,
            direction: Direction::Out,
            shard: 1,
            frame: 17,
            start: 310,
            len: 60,
            bytes: vec![1, 2, 3, 4],
        }
    }

    fn written(format: Format) -> Vec<u8> {
        let mut file = PacketFile::begin(Vec::new(), format, BEGIN).unwrap();
        file.add(&packet()).unwrap();
        file.end().unwrap()
    }

    #[test]
    fn a_pcap_has_nanoseconds_and_both_lengths() {
        let bytes = written(Format::Pcap);
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        let found = reader.next_packet().unwrap().unwrap();
        assert_eq!(found.timestamp.as_nanos(), u128::from(packet().at_ns));
        assert_eq!((found.orig_len, &found.data[..]), (60, &[1, 2, 3, 4][..]));
        assert!(reader.next_packet().is_none());
    }

    #[test]
    fn a_pcapng_tells_direction_core_and_place() {
        let bytes = written(Format::PcapNg);
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Some(block) = block.unwrap().into_owned().into_enhanced_packet() {
                packets.push(block);
            }
        }
        let comment = EnhancedPacketOption::Comment("frame 17 addr 0x8936".into());
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0].options, [comment, EnhancedPacketOption::Flags(OUTBOUND)]);
        assert_eq!((packets[0].interface_id, packets[0].original_len), (1, 60));
        assert_eq!(reader.interfaces().len(), 2);
    }

    #[test]
    fn the_name_says_the_format() {
        assert_eq!(Format::of(Path::new("a/b.pcap")), Some(Format::Pcap));
        assert_eq!(Format::of(Path::new("b.pcapng")), Some(Format::PcapNg));
        assert_eq!(Format::of(Path::new("pcap")), None);
    }
}
