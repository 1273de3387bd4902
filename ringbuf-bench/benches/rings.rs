//! Hand-overs between cores under criterion: one iteration is one value.

use criterion::{Criterion, criterion_group, criterion_main};
use ringbuf_bench::handover::{self, Way};
use ringbuf_bench::report::BATCHES;

fn hand_over(c: &mut Criterion) {
    let mut group = c.benchmark_group("hand-over");
    for way in Way::ALL {
        for batch in BATCHES {
            group.bench_function(format!("{}/{batch}", way.name()), |b| {
                b.iter_custom(|count| handover::run(way, u64::from(batch), count));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, hand_over);
criterion_main!(benches);
