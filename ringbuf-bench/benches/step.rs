//! `step()` under criterion: one iteration is one round of the whole job.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gradbox::bench::figure::{Arrival, WorkingSet};
use gradbox::bench::path::{Bench, PathError, Setup};
use gradbox_protocol::{DType, Reply};
use std::time::Duration;

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    for world in [2, 4, 8, 16] {
        for (dtype, chunk_bytes) in [(DType::F32, 1408), (DType::F32, 3392), (DType::Bf16, 1408)] {
            for memory in [WorkingSet::L2, WorkingSet::L3] {
                let setup =
                    Setup::new(world, dtype, chunk_bytes, memory, Arrival::InStep, Reply::Unicast);
                let mut bench = Bench::new(setup).expect("a box");
                group.throughput(Throughput::Elements(setup.packets()));
                let name = format!("{world}/{}/{chunk_bytes}/{}", dtype.name(), memory.name());
                group.bench_function(name, |b| {
                    b.iter_custom(|rounds| {
                        (0..rounds).map(|_| round(&mut bench).expect("right results")).sum()
                    });
                });
                bench.finish().expect("nothing is lost");
            }
        }
    }
    group.finish();
}

fn round(bench: &mut Bench) -> Result<Duration, PathError> {
    Ok(bench.round(&mut || Ok(()))?.iter().sum())
}

criterion_group!(benches, step);
criterion_main!(benches);
