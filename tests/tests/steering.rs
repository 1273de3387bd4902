//! Packets that come to the wrong queue are served by the owner of their chunk, also when the owner
//! does not get to work for a long time: they wait, and none is lost.

use gradbox::dataplane::counters::Counter;
use gradbox_protocol::{DType, Kind, Op};
use gradbox_tests::packets::open;
use gradbox_tests::simulation::{SimBox, SimJob};

/// More than the buffers that a core has for other cores (1024) and the packets that it holds back.
const PACKETS: u32 = 1200;

#[test]
fn an_owner_that_sleeps_is_waited_for() {
    let chunks = u64::from(2 * PACKETS);
    let job = SimJob::new((1, 5), (DType::F32, Op::Sum), 1, vec![chunks * 16], (64, 2), false);
    let mut the_box = SimBox::new(2, 16_384, 2048, 2048);
    the_box.add(&job.plan);
    // All for shard 1, all on queue 0, while core 1 does nothing.
    for i in 0..PACKETS {
        assert!(the_box.send(0, &job.push(0, 0, 0, 2 * i + 1, 0)), "room on the wire");
        let c = &mut the_box.cores[0];
        c.core.step(&mut c.port, i);
        assert!(c.core.frames(&c.port).balanced());
    }
    assert!(the_box.counter(Counter::SteerWaited) > 0, "nothing had to wait");
    assert_eq!(the_box.counter(Counter::Completed), 0);
    let expected = job.expected(0, 0);
    let mut results = 0;
    for _ in 0..PACKETS {
        the_box.step();
        for packet in the_box.receive() {
            let (_, header, body) = open(&packet).expect("a packet of the protocol");
            assert_eq!(header.kind(), Some(Kind::Result));
            let at = job.plan.layout.chunk_offset(0, header.chunk.get());
            assert_eq!(body, expected[at..at + body.len()]);
            results += 1;
        }
    }
    assert_eq!(results, PACKETS);
    assert_eq!(the_box.counter(Counter::Steered), u64::from(PACKETS));
}
