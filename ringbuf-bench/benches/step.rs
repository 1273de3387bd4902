//! `step()` under criterion: one iteration is one round of the whole job.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gradbox_protocol::DType;
use ringbuf_bench::path::{Bench, Order, Setup, WorkingSet};

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    for world in [2, 4, 8, 16] {
        for (dtype, chunk_bytes) in [(DType::F32, 1408), (DType::F32, 3392), (DType::Bf16, 1408)] {
            for memory in [WorkingSet::L2, WorkingSet::L3] {
                let setup = Setup::new(world, dtype, chunk_bytes, memory, Order::InStep);
                let mut bench = Bench::new(setup);
                group.throughput(Throughput::Elements(bench.packets() as u64));
                let name = format!("{world}/{}/{chunk_bytes}/{}", dtype.name(), memory.name());
                group.bench_function(name, |b| {
                    b.iter_custom(|rounds| (0..rounds).flat_map(|_| bench.round().to_vec()).sum());
                });
                bench.finish();
            }
        }
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);
