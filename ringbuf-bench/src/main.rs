//! scratch
use gradbox_protocol::DType;
use ringbuf_bench::path::{Setup, measure};
fn main() {
    let f: Vec<String> = std::env::args().skip(1).collect();
    let base = Setup { world: 4, dtype: DType::F32, chunk_bytes: 1408, chunks: 64, window: 16, ring: 256, rounds: 400 };
    for (name, s) in [
        ("l2", base),
        ("l3", Setup { chunks: 1024, window: 256, ring: 2048, rounds: 100, ..base }),
        ("dram-instep", Setup { chunks: 65536, window: 64, ring: 65536, rounds: 9, ..base }),
        ("dram-async", Setup { chunks: 65536, window: 65536, ring: 65536, rounds: 9, ..base }),
        ("dram-async-smallring", Setup { chunks: 65536, window: 65536, ring: 4096, rounds: 9, ..base }),
    ] {
        if !f.is_empty() && !f.iter().any(|f| f == name) { continue; }
        let o = measure(s);
        let p = o.ns_per_packet;
        println!("{name:22} {:6.1} ns [{:.1} {:.1}] {:.0} Gbps verified {}", p.median, p.low, p.high, o.gbps, o.verified);
    }
}
