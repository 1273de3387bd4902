//! The golden packets of `tests/data/packets`, whose README says what the lines mean.

use crate::simulation::SimBox;
use gradbox::dataplane::plan::{Group, JobPlan, Member};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{DType, Op};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// One packet to the box, what it raises, and what comes back.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The words of its line.
    pub text: String,
    /// Names of the counters that it raises by one.
    pub counters: Vec<String>,
    /// The packet.
    pub packet: Vec<u8>,
    /// The answers, in order.
    pub answers: Vec<Vec<u8>>,
}

/// The exchanges of one file.
///
/// # Panics
/// Where the file cannot be read or is not as the README says.
#[must_use]
pub fn read(name: &str) -> Vec<Exchange> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/packets").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut exchanges: Vec<Exchange> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(line) = line.strip_prefix("> [") {
            let (counters, text) = line.split_once("] ").expect("counters in brackets");
            exchanges.push(Exchange {
                text: text.to_owned(),
                counters: counters.split(' ').map(str::to_owned).collect(),
                packet: Vec::new(),
                answers: Vec::new(),
            });
            continue;
        }
        let exchange = exchanges.last_mut().expect("a packet to the box first");
        if line.starts_with("< ") {
            exchange.answers.push(Vec::new());
            continue;
        }
        let bytes = line.split(' ').map(|hex| u8::from_str_radix(hex, 16).expect("hex"));
        exchange.answers.last_mut().unwrap_or(&mut exchange.packet).extend(bytes);
    }
    exchanges
}

/// The four envelopes: name of the file, bytes of VLAN tag, bytes of IP header.
pub const ENVELOPES: [(&str, usize, usize); 4] =
    [("ipv4.hex", 0, 20), ("ipv4-vlan.hex", 4, 20), ("ipv6.hex", 0, 40), ("ipv6-vlan.hex", 4, 40)];

/// The job of the golden packets.
///
/// # Panics
/// Never: its numbers are constants.
#[must_use]
pub fn plan(v6: bool) -> Arc<JobPlan> {
    let member = |host: u8, cookie| {
        let (v4, six) = (format!("10.0.0.{host}:40000"), format!("[fd00::{host:x}]:40000"));
        let source: SocketAddr = if v6 { six } else { v4 }.parse().expect("well-formed address");
        Member { source: source.into(), cookie }
    };
    Arc::new(JobPlan {
        id: 7,
        dtype: DType::F32,
        op: Op::Sum,
        layout: Layout::new(DType::F32, [20, 3], 64, 2).expect("a layout"),
        members: vec![member(16, 0x1122_3344), member(17, 0x5566_7788)],
        group: None,
    })
}

/// The conversations with a group, in the form of [`ENVELOPES`].
pub const GROUPS: [(&str, usize, usize); 2] =
    [("ipv4-multicast.hex", 0, 20), ("ipv6-vlan-multicast.hex", 4, 40)];

/// A box of two shards with that job.
#[must_use]
pub fn the_box(v6: bool) -> SimBox {
    with(&plan(v6))
}

/// The same, where the job's results go to a multicast group.
///
/// # Panics
/// Never: the addresses are well-formed.
#[must_use]
pub fn the_box_with_group(v6: bool) -> SimBox {
    let to: SocketAddr = if v6 { "[ff15::8047:4207]:9102" } else { "239.255.71.7:9102" }
        .parse()
        .expect("well-formed address");
    let mut plan = JobPlan::clone(&plan(v6));
    plan.group = Some(Group { to, cookie: 0x99aa_bbcc });
    with(&Arc::new(plan))
}

fn with(plan: &Arc<JobPlan>) -> SimBox {
    let mut the_box = SimBox::new(2, 256, 2048, 64);
    the_box.add(plan);
    the_box
}
