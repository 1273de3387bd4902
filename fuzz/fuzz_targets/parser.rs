//! Any bytes through the parsers: no panic, and what they find lies in the packet.
#![no_main]

use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::status::{STATUS_BODY_LEN, StatusBody};
use gradbox_protocol::{Header, STATUS_CHUNKS};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    datagram(bytes);
    if let Some(envelope) = Envelope::parse(bytes) {
        let (at, len) = (envelope.payload(), envelope.len());
        datagram(&bytes[at..at + len]);
        assert_eq!(Envelope::of_shape(envelope.shape(), len as u16), envelope);

        let mut reply = bytes.to_vec();
        envelope.reply(&mut reply, len, None);
        assert_eq!(Envelope::parse(&reply), Some(envelope));
        assert_eq!(envelope.source(&reply), envelope.destination(bytes));
        assert_eq!(envelope.destination(&reply), envelope.source(bytes));
        assert!(!envelope.congestion(&reply));
        assert_eq!(reply[at..], bytes[at..]);
    }
});

/// Bytes as header and body, and as the body of STATUS.
fn datagram(bytes: &[u8]) {
    if let Some((header, body)) = Header::parse(bytes) {
        assert_eq!(usize::from(header.length.get()), body.len());
        assert_eq!(body, &bytes[32..]);
    }
    if let Some(status) = StatusBody::parse(bytes) {
        assert_eq!(bytes.len(), STATUS_BODY_LEN);
        assert!(usize::from(status.count.get()) <= STATUS_CHUNKS);
        assert_ne!(status.is_done(511, 0), status.is_done(511, 1));
    }
}
