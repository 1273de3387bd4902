//! `step()` on the `mem` port through random schedules: always exact, always ends, no frame lost.

use gradbox_protocol::{DType, Op};
use gradbox_tests::simulation::{Dice, Network, SimBox, SimJob, SimWorker, run};
use proptest::prelude::*;

/// Everything that a run follows from.
#[derive(Clone, Debug)]
struct Schedule {
    seed: u64,
    dtype: DType,
    op: Op,
    world: u8,
    elements: Vec<u64>,
    shards: u16,
    rounds: u32,
    mixed: bool,
    /// One result for all ranks, over IPv6 or not.
    group: Option<bool>,
    network: Network,
    speeds: Vec<u8>,
}

fn network() -> impl Strategy<Value = Network> {
    (0u8..30, 0u8..20, 0u8..50, 0u8..20, 0u8..10).prop_map(
        |(loss, duplicate, late, delay, misdirect)| Network {
            loss,
            duplicate,
            late,
            delay,
            misdirect,
        },
    )
}

fn schedule() -> impl Strategy<Value = Schedule> {
    (
        (
            any::<u64>(),
            proptest::sample::select(&DType::ALL[..]),
            proptest::sample::select(&Op::ALL[..]),
        ),
        (1u8..9, proptest::collection::vec(0u64..400, 1..5), 1u16..4, 1u32..4, any::<bool>()),
        network(),
        proptest::collection::vec(1u8..12, 1..5),
        any::<Option<bool>>(),
    )
        .prop_filter("something to do", |((..), (_, elements, ..), ..)| {
            elements.iter().any(|&e| e > 0)
        })
        .prop_map(
            |(
                (seed, dtype, op),
                (world, elements, shards, rounds, mixed),
                network,
                speeds,
                group,
            )| {
                Schedule {
                    seed,
                    dtype,
                    op,
                    world,
                    elements,
                    shards,
                    rounds,
                    mixed,
                    group,
                    network,
                    speeds,
                }
            },
        )
}

fn check(s: &Schedule) {
    let id = (s.seed % 200) as u16;
    let job = SimJob::new(
        (id, s.seed),
        (s.dtype, s.op),
        s.world,
        s.elements.clone(),
        (128, s.shards),
        s.mixed,
    );
    let job = match s.group {
        Some(v6) => job.with_group(v6),
        None => job,
    };
    // Frames for the job at its fullest, the fill ring, and what is on its way out.
    let need = (0..s.shards).map(|shard| job.plan.frames_needed(shard)).max().unwrap_or(0);
    let mut the_box = SimBox::new(s.shards, need as u32 + 64 + 64, 2048, 64);
    the_box.add(&job.plan);
    let mut workers: Vec<_> = (0..s.world).map(|r| SimWorker::new(&job, r, s.rounds)).collect();
    let mut dice = Dice(s.seed);
    run(&mut the_box, &mut workers, &s.speeds, s.network, &mut dice, 200_000);
    for worker in &workers {
        worker.verify();
    }
    the_box.remove(job.plan.id);
    the_box.receive();
    the_box.step();
    for frames in the_box.frames() {
        assert_eq!((frames.slot, frames.rx, frames.tx), (0, 0, 0), "{frames:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_ends_with_exact_sums_and_all_frames(s in schedule()) {
        check(&s);
    }

    #[test]
    fn two_jobs_share_a_box_and_do_not_mix(
        seed: u64,
        network in network(),
        dtypes in proptest::sample::subsequence(DType::ALL.to_vec(), 2),
        worlds in (1u8..5, 1u8..5),
    ) {
        let one = SimJob::new((1, seed), (dtypes[0], Op::Sum), worlds.0, vec![300, 5], (128, 2), false);
        let two = SimJob::new((2, !seed), (dtypes[1], Op::Avg), worlds.1, vec![77], (128, 2), true);
        let mut the_box = SimBox::new(2, 1024, 2048, 64);
        the_box.add(&one.plan);
        the_box.add(&two.plan);
        let mut workers: Vec<_> = (0..worlds.0).map(|r| SimWorker::new(&one, r, 2)).collect();
        workers.extend((0..worlds.1).map(|r| SimWorker::new(&two, r, 2)));
        run(&mut the_box, &mut workers, &[3], network, &mut Dice(seed), 200_000);
        for worker in &workers {
            worker.verify();
        }
    }
}
