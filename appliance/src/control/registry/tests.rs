//! The registry under single cases and under random sequences of everything.

mod groups;

use super::super::sources::SourcesError;
use super::*;
use gradbox_protocol::control::TensorEntry;
use gradbox_protocol::{DType, Op, Reply};
use proptest::prelude::*;
use std::collections::HashMap;

/// An allow-list of a few places.
#[derive(Default)]
struct List {
    held: HashMap<IpAddr, u32>,
    room: usize,
}

impl Sources for List {
    fn allow(&mut self, ip: IpAddr) -> Result<(), SourcesError> {
        if !self.held.contains_key(&ip) && self.held.len() >= self.room {
            return Err("the allow-list is full".into());
        }
        *self.held.entry(ip).or_default() += 1;
        Ok(())
    }

    fn revoke(&mut self, ip: IpAddr) -> Result<(), SourcesError> {
        let count = self.held.get_mut(&ip).expect("allowed before");
        *count -= 1;
        if *count == 0 {
            self.held.remove(&ip);
        }
        Ok(())
    }

    fn counters(&self) -> Result<Vec<(&'static str, u64)>, SourcesError> {
        Ok(Vec::new())
    }
}

const CAPACITY: u64 = 100;
const BUDGET: u32 = 64;

fn registry() -> Registry {
    Registry::new(Settings {
        capacity: vec![CAPACITY, CAPACITY],
        frame_bytes: 2048,
        chunk_bytes: 64,
        addresses: vec!["10.0.0.1".parse().unwrap()],
        port_base: 9100,
        groups: Groups::default(),
        token: None,
        join_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(100),
        rx_budget: BUDGET,
    })
}

/// The kinds of generations that jobs of these tests come in, with different needs.
fn spec(kind: u8) -> (u8, DType, Vec<TensorEntry>) {
    let tensor = |elements| TensorEntry { name: "t".into(), elements };
    match kind {
        0 => (2, DType::F32, vec![tensor(16 * 20)]),
        1 => (3, DType::F32, vec![tensor(16 * 30)]),
        2 => (3, DType::Bf16, vec![tensor(16 * 30), tensor(1)]),
        _ => (1, DType::I32, vec![tensor(16 * 90)]),
    }
}

fn request(kind: u8, rank: u8, instance: u64) -> JoinRequest {
    let (world, dtype, tensors) = spec(kind);
    let address = SocketAddr::from(([10, 0, 1, rank + 10 * (instance % 3) as u8], 4000));
    let (op, reply, token) = (Op::Sum, Reply::Unicast, None);
    JoinRequest { rank, world, dtype, op, reply, token, instance, address, tensors }
}

struct Rig {
    registry: Registry,
    list: List,
    now: Duration,
    cookie: u32,
}

impl Rig {
    fn new() -> Self {
        let list = List { room: 100, ..List::default() };
        Self { registry: registry(), list, now: Duration::from_secs(1), cookie: 0 }
    }

    fn send(&mut self, name: &str, request: &JoinRequest) -> Result<Answer, Refused> {
        self.cookie += 1;
        let secrets = Secrets { rank: self.cookie, group: self.cookie + (1 << 20) };
        self.registry.join(self.now, name, request, secrets, &mut self.list)
    }

    fn join(&mut self, name: &str, kind: u8, rank: u8, instance: u64) -> Result<Answer, Refused> {
        self.send(name, &request(kind, rank, instance))
    }

    fn joined(&mut self, name: &str, kind: u8, rank: u8, instance: u64) -> Joined {
        match self.join(name, kind, rank, instance).unwrap() {
            Answer::Joined(joined) => joined,
            Answer::Waiting(waiting) => panic!("{waiting:?}"),
        }
    }

    fn missing(&mut self, name: &str, kind: u8, rank: u8, instance: u64) -> Vec<u8> {
        match self.join(name, kind, rank, instance).unwrap() {
            Answer::Waiting(waiting) => waiting.missing,
            Answer::Joined(joined) => panic!("{joined:?}"),
        }
    }

    fn leave(&mut self, name: &str, rank: u8, instance: u64) -> Result<(), Refused> {
        self.registry.leave(self.now, name, &LeaveRequest { rank, instance }, &mut self.list)
    }

    fn removed(&mut self, id: u16) {
        for shard in 0..2 {
            self.registry.removed(self.now, id, shard, &mut self.list);
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.registry.tick(self.now, &mut self.list);
    }
}

#[test]
fn ranks_wait_for_each_other() {
    let mut rig = Rig::new();
    assert_eq!(rig.missing("a", 1, 1, 7), [0, 2]);
    assert_eq!(rig.missing("a", 1, 1, 7), [0, 2]);
    assert_eq!(rig.missing("a", 1, 2, 8), [0]);
    let joined = rig.joined("a", 1, 0, 9);
    assert_eq!((joined.generation, joined.shards, joined.port_base), (1, 2, 9100));
    assert_eq!(joined.credit, 21);
    let actions = rig.registry.take_actions();
    assert!(matches!(&actions[..], [Action::Add { credit: 21, plan }] if plan.id == joined.job));
    let again = rig.joined("a", 1, 1, 7);
    assert_ne!(again.cookie, joined.cookie);
    assert_eq!(rig.joined("a", 1, 0, 9), joined);
    assert_eq!(rig.list.held.len(), 3);
}

#[test]
fn the_next_generation_comes_when_the_old_is_gone() {
    let mut rig = Rig::new();
    // 15 slots per core x 4 frames; twice that would not fit.
    for rank in 0..3 {
        let _ = rig.join("a", 1, rank, 7).unwrap();
    }
    let old = rig.joined("a", 1, 0, 7);
    let _ = rig.registry.take_actions();
    assert_eq!(rig.missing("a", 3, 0, 8), Vec::<u8>::new());
    assert_eq!(rig.registry.take_actions(), [Action::Remove { job: old.job }]);
    // The old one waits for the one after; the complete one is left alone.
    assert_eq!(rig.missing("a", 1, 0, 9), [0, 1, 2]);
    rig.registry.removed(rig.now, old.job, 1, &mut rig.list);
    assert_eq!(rig.missing("a", 3, 0, 8), Vec::<u8>::new());
    assert!(rig.registry.take_actions().is_empty());
    rig.registry.removed(rig.now, old.job, 0, &mut rig.list);
    let new = rig.joined("a", 3, 0, 8);
    assert_eq!(new.generation, 2);
    assert_ne!((new.job, new.cookie), (old.job, old.cookie));
    assert!(matches!(&rig.registry.take_actions()[..], [Action::Add { .. }]));
    assert_eq!(rig.list.held.len(), 1);
}

#[test]
fn differences_are_named() {
    let mut rig = Rig::new();
    let _ = rig.missing("a", 1, 0, 7);
    let mut differs = |change: fn(&mut JoinRequest), expected: &str| {
        let mut r = request(1, 1, 8);
        change(&mut r);
        let refused = rig.send("a", &r).unwrap_err();
        assert_eq!(refused.status(), 409);
        assert!(refused.to_string().contains(expected), "{refused}");
    };
    differs(|r| r.world = 4, "the other ranks bring world = 3, this one 4");
    differs(|r| r.dtype = DType::F16, "dtype = f32, this one f16");
    differs(|r| r.op = Op::Max, "op = sum, this one max");
    differs(|r| r.tensors.push(r.tensors[0].clone()), "1 tensors, this one 2");
    differs(
        |r| r.tensors[0].elements = 3,
        "as tensor 0 \"t\" of 480 elements, this one \"t\" of 3",
    );
    differs(|r| r.tensors[0].name = "u".into(), "this one \"u\" of 480 elements");
    let refused = rig.join("a", 1, 0, 8).unwrap_err();
    assert_eq!(refused.word(), "duplicate_rank");
    assert!(refused.to_string().contains("10.0.1.10:4000"), "{refused}");
}

#[test]
fn the_silent_are_dropped_and_an_empty_job_with_them() {
    let mut rig = Rig::new();
    let _ = rig.missing("a", 0, 0, 7);
    rig.pass(10);
    assert_eq!(rig.join("a", 0, 0, 8).unwrap_err().word(), "duplicate_rank");
    rig.now += Duration::from_secs(1);
    assert_eq!(rig.missing("a", 0, 0, 8), [1]);
    rig.pass(11);
    assert!(rig.registry.jobs(rig.now, |_, _| (0, 0)).is_empty());
    assert!(rig.list.held.is_empty());
    assert_eq!(rig.registry.reserved(), [0, 0]);
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let mut rig = Rig::new();
    // 45 slots per core x 2 frames.
    let big = rig.joined("big", 3, 0, 7);
    let Err(Refused::TooLarge { needed, available, total, .. }) = rig.join("a", 0, 0, 1) else {
        panic!()
    };
    assert_eq!((needed, available, total), (30 * 2 * 2048, 10 * 2 * 2048, 100 * 2 * 2048));
    rig.leave("big", 0, 7).unwrap();
    // The frames are about to be free: it waits without having joined.
    assert_eq!(rig.missing("a", 0, 0, 1), [0, 1]);
    assert_eq!(rig.registry.jobs(rig.now, |_, _| (0, 0)).len(), 1);
    rig.removed(big.job);
    assert_eq!(rig.missing("a", 0, 0, 1), [1]);
    // More chunks than there are numbers for.
    let mut huge = request(0, 0, 1);
    huge.tensors[0].elements = u64::MAX;
    let refused = rig.send("huge", &huge).unwrap_err();
    assert_eq!((refused.word(), refused.status()), ("too_large", 507));
}

#[test]
fn a_full_allow_list_refuses_the_join_and_leaves_no_trace() {
    let mut rig = Rig::new();
    rig.list.room = 1;
    let _ = rig.missing("a", 0, 0, 7);
    assert_eq!(rig.join("a", 0, 1, 8).unwrap_err().status(), 503);
    assert_eq!(rig.join("b", 0, 0, 8).unwrap_err().word(), "allow_list");
    assert_eq!(rig.registry.jobs(rig.now, |_, _| (0, 0)).len(), 1);
    assert_eq!(rig.missing("a", 0, 0, 7), [1]);
}

#[test]
fn leaving_ends_a_job_and_credit_follows() {
    let mut rig = Rig::new();
    let _ = (rig.join("a", 0, 0, 1), rig.join("b", 0, 0, 1), rig.join("b", 0, 1, 2));
    let b = rig.joined("b", 0, 0, 1);
    assert_eq!(b.credit, 32);
    let a = rig.joined("a", 0, 1, 2);
    assert_eq!(a.credit, 16);
    let actions = rig.registry.take_actions();
    assert_eq!(actions.len(), 3);
    assert_eq!(actions[1], Action::Credit { job: b.job, credit: 16 });
    assert_eq!(rig.leave("a", 0, 9).unwrap_err().word(), "not_member");
    assert_eq!(rig.leave("a", 9, 1).unwrap_err().word(), "not_member");
    assert_eq!(rig.leave("x", 0, 1).unwrap_err().word(), "unknown_job");
    rig.leave("a", 0, 1).unwrap();
    rig.leave("a", 0, 1).unwrap();
    assert!(rig.registry.take_actions().is_empty());
    rig.leave("a", 1, 2).unwrap();
    let credit = Action::Credit { job: b.job, credit: 32 };
    assert_eq!(rig.registry.take_actions(), [Action::Remove { job: a.job }, credit]);
    rig.removed(a.job);
    assert_eq!(rig.registry.jobs(rig.now, |_, _| (0, 0)).len(), 1);
}

#[test]
fn an_idle_job_is_removed_and_a_busy_one_is_not() {
    let mut rig = Rig::new();
    let idle = rig.joined("idle", 3, 0, 7);
    rig.pass(100);
    rig.registry.note_packets(rig.now, idle.job, 1);
    rig.pass(100);
    assert!(matches!(&rig.registry.take_actions()[..], [Action::Add { .. }]));
    rig.pass(1);
    assert_eq!(rig.registry.take_actions(), [Action::Remove { job: idle.job }]);
    assert!(rig.registry.is_removing());
}

#[test]
fn the_straggler_has_a_name() {
    let mut rig = Rig::new();
    let _ = (rig.join("a", 0, 0, 1), rig.join("a", 0, 1, 2));
    let waiting = |rig: &Rig, pushed: [u64; 2]| {
        rig.registry.jobs(rig.now, |_, rank| (pushed[rank], 0))[0].waiting_for
    };
    assert_eq!(waiting(&rig, [5, 5]), None);
    assert_eq!(waiting(&rig, [5, 4]), Some(1));
    rig.leave("a", 1, 2).unwrap();
    assert_eq!(waiting(&rig, [5, 4]), None);
}

#[test]
fn a_job_that_the_cores_cannot_serve_ends_without_a_trace() {
    let mut rig = Rig::new();
    let joined = rig.joined("a", 3, 0, 7);
    let _ = rig.registry.take_actions();
    rig.registry.not_added(rig.now, joined.job, &mut rig.list);
    assert!(rig.registry.take_actions().is_empty());
    assert!(rig.list.held.is_empty());
    assert_eq!(rig.registry.reserved(), [0, 0]);
}

#[derive(Clone, Debug)]
enum Event {
    Join { name: usize, kind: u8, rank: u8, instance: u64 },
    Leave { name: usize, rank: u8, instance: u64 },
    Pass(u64),
    Packets(usize),
    Removed { which: usize, shard: u16 },
}

fn event() -> impl Strategy<Value = Event> {
    let member = || (0usize..4, 0u8..3, 1u64..5);
    prop_oneof![
        8 => (member(), 0u8..4)
            .prop_map(|((name, rank, instance), kind)| Event::Join { name, kind, rank, instance }),
        3 => member().prop_map(|(name, rank, instance)| Event::Leave { name, rank, instance }),
        1 => (0u64..15).prop_map(Event::Pass),
        1 => (0usize..4).prop_map(Event::Packets),
        4 => (0usize..4, 0u16..2).prop_map(|(which, shard)| Event::Removed { which, shard }),
    ]
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What the cores would hold: by id, the plan, the job's name, and who was told to go where.
#[derive(Default)]
struct Cores {
    on: HashMap<u16, (Arc<JobPlan>, usize)>,
    removing: Vec<(u16, Vec<u16>)>,
}

/// Who each cookie was drawn for: name, kind, rank and instance.
type Drawn = HashMap<u32, (usize, u8, u8, u64)>;

impl Cores {
    fn apply(&mut self, actions: Vec<Action>, drawn: &Drawn) {
        for action in actions {
            match action {
                Action::Add { plan, credit } => {
                    let who = |rank: usize| drawn[&plan.members[rank].cookie];
                    let (name, kind, ..) = who(0);
                    let (world, dtype, _) = spec(kind);
                    assert_eq!((plan.members.len(), plan.dtype), (usize::from(world), dtype));
                    for rank in 0..plan.members.len() {
                        let (n, k, r, _) = who(rank);
                        assert_eq!((n, k, usize::from(r)), (name, kind, rank));
                    }
                    assert!(credit >= 8);
                    assert!(self.on.values().all(|(_, other)| *other != name), "two generations");
                    assert!(self.on.insert(plan.id, (plan, name)).is_none(), "id twice");
                }
                Action::Remove { job } => {
                    assert!(self.on.contains_key(&job));
                    assert!(self.removing.iter().all(|(id, _)| *id != job));
                    self.removing.push((job, vec![0, 1]));
                }
                Action::Credit { job, .. } => assert!(self.on.contains_key(&job)),
            }
        }
        for shard in 0..2 {
            let used: u64 = self.on.values().map(|(plan, _)| plan.frames_needed(shard)).sum();
            assert!(used <= CAPACITY);
        }
    }

    fn hand_back(&mut self, which: usize, shard: u16) -> Option<u16> {
        let (id, shards) = self.removing.get_mut(which)?;
        let (id, at) = (*id, shards.iter().position(|s| *s == shard)?);
        shards.remove(at);
        if shards.is_empty() {
            self.removing.remove(which);
            self.on.remove(&id);
        }
        Some(id)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_never_overbooked_and_generations_never_mix(
        events in proptest::collection::vec(event(), 1..120),
        room in 1usize..8,
    ) {
        let mut rig = Rig::new();
        rig.list.room = room;
        let (mut cores, mut drawn, mut packets) = (Cores::default(), Drawn::new(), 0);
        for event in events {
            match event {
                Event::Join { name, kind, rank, instance } => {
                    drawn.insert(rig.cookie + 1, (name, kind, rank, instance));
                    if let Ok(Answer::Joined(j)) = rig.join(NAMES[name], kind, rank, instance) {
                        prop_assert_eq!(drawn[&j.cookie], (name, kind, rank, instance));
                    }
                }
                Event::Leave { name, rank, instance } => {
                    let _ = rig.leave(NAMES[name], rank, instance);
                }
                Event::Pass(seconds) => rig.pass(seconds),
                Event::Packets(which) => {
                    packets += 1;
                    if let Some(id) = cores.on.keys().nth(which) {
                        rig.registry.note_packets(rig.now, *id, packets);
                    }
                }
                Event::Removed { which, shard } => {
                    if let Some(id) = cores.hand_back(which, shard) {
                        rig.registry.removed(rig.now, id, shard, &mut rig.list);
                    }
                }
            }
            cores.apply(rig.registry.take_actions(), &drawn);
            prop_assert!(rig.registry.reserved().iter().all(|r| *r <= CAPACITY));
        }
        // All fall silent; a complete generation may still follow an idle one.
        for _ in 0..3 {
            rig.pass(101);
            cores.apply(rig.registry.take_actions(), &drawn);
            while !cores.removing.is_empty() {
                for shard in 0..2 {
                    if let Some(id) = cores.hand_back(0, shard) {
                        rig.registry.removed(rig.now, id, shard, &mut rig.list);
                    }
                }
                cores.apply(rig.registry.take_actions(), &drawn);
            }
        }
        prop_assert_eq!(rig.registry.reserved(), [0, 0]);
        prop_assert!(rig.registry.jobs(rig.now, |_, _| (0, 0)).is_empty());
        prop_assert!(cores.on.is_empty());
        prop_assert!(rig.list.held.is_empty());
    }
}
