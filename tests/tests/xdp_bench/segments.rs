//! What the sink of `xdp-generate` makes of many answers in one message.

use crate::generator::{TO, answer, drained, payload, settings, until_quiet, workers};
use crate::{in_namespace, privileged, run};
use gradbox::bench::generator::{Counts, Generator, Replies, Settings};
use gradbox::bench::kernel_aggregator;
use gradbox_protocol::Kind;
use gradbox_protocol::envelope::{Envelope, SHORTEST};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// A message that was sent with UDP_SEGMENT passes a veth link in one piece.
#[test]
fn every_segment_of_a_message_counts() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        run("ip", "address add 10.77.0.254/24 dev box");
        let receiver = kernel_aggregator::address(0);
        let neighbour = format!("neighbour add {receiver} lladdr 02:00:00:00:00:09 dev box");
        run("ip", &format!("{neighbour} nud permanent"));
        let (workers, payload) = (workers(3), payload());
        let settings = Settings {
            replies: Replies::One,
            shards: 1,
            sample_every: 1,
            ..settings(&workers, &payload)
        };
        let (_generator, watch, mut samples) = Generator::load(&settings).unwrap();
        let results: Vec<_> = (0..5).map(|chunk| answer(Kind::Result, 0, chunk, 0, 1)).collect();
        let mut message: Vec<_> = results.iter().flat_map(|r| r[SHORTEST..].to_vec()).collect();
        // The last one may be shorter.
        message.truncate(message.len() - 10);
        let socket = UdpSocket::bind(TO).unwrap();
        set_segment(&socket, results[0].len() - SHORTEST);
        assert_eq!(socket.send_to(&message, (receiver, 7100)).unwrap(), message.len());
        let Counts { results: seen, advanced, other, .. } = until_quiet(&watch);
        assert_eq!((seen, advanced, other), (5, 5, 0));
        let sampled = drained(&mut samples);
        assert_eq!(sampled.len(), 5);
        for (chunk, sample) in sampled.iter().enumerate() {
            let found = Envelope::parse(sample).expect("lengths of its own");
            let len = results[chunk].len() - if chunk == 4 { 10 } else { 0 };
            assert_eq!(found.payload() + found.len(), len);
            assert!(sample[SHORTEST..] == results[chunk][SHORTEST..len], "chunk {chunk}");
        }
    });
}

/// Has the kernel cut what is sent into datagrams of `len` bytes.
fn set_segment(socket: &UdpSocket, len: usize) {
    let (level, option, len) = (libc::SOL_UDP, libc::UDP_SEGMENT, len as libc::c_int);
    let size = size_of_val(&len) as libc::socklen_t;
    // SAFETY: the option's value is an int that lives beyond the call.
    let refused = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const len).cast(), size)
    };
    assert_eq!(refused, 0);
}
