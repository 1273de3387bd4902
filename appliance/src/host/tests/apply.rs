//! What is set, and that it is put back, whatever happens.

use super::super::change::governor_file;
use super::super::fake::{ALL, Fake, Killed, governor, machine, put};
use super::super::{Applied, HostError, Machine, Needs, Severity, Store, Undone, undo};
use super::{apply, found, needs};
use crate::nic::{Rule, UdpFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const MUCH: &str = "queues = 2\ncpus = [2, 3]\nmtu = 3000\n";

fn store(dir: &Path) -> Store {
    Store::open(dir, "eth1").expect("a store")
}

/// Undoes; everything must be restored.
fn undone(nic: &Fake, machine: &Machine, store: &Store) -> usize {
    let mut restored = 0;
    undo(Some(nic), machine, store, &mut |undone| match undone {
        Undone::Failed(change, e) => panic!("{change:?}: {e}"),
        Undone::Restored(_) => restored += 1,
        Undone::Already(_) => {}
    })
    .unwrap();
    assert!(!store.path().exists());
    restored
}

/// A card that somebody has steered already.
fn busy(driver: &'static str) -> Fake {
    let nic = Fake::new(driver);
    if let Some(rules) = &mut nic.state.borrow_mut().rules {
        let matches = Some((UdpFlow::Udp4, 9101));
        rules.push(Rule { location: 6, matches, queue: Some(3) });
        rules.push(Rule { location: 9, matches: None, queue: Some(1) });
    }
    nic
}

/// A machine of which one core's CPU saves power.
fn saving() -> (Machine, tempfile::TempDir) {
    let (machine, dir) = machine("7.0.0");
    put(&dir, &governor_file(2), "schedutil\n");
    (machine, dir)
}

/// Ends what `work` does at its call `calls`; true where it ended by itself before.
fn killed(nic: &Fake, calls: u32, work: impl FnOnce()) -> bool {
    nic.life.set(Some(calls));
    let done = catch_unwind(AssertUnwindSafe(work));
    nic.life.set(None);
    match done {
        Ok(()) => true,
        Err(panic) if panic.is::<Killed>() => false,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn everything_is_set_and_put_back() {
    for driver in ALL {
        let needs = needs(MUCH);
        let (machine, dir) = saving();
        let store = store(dir.path());
        let nic = busy(driver);
        let before = nic.state.borrow().clone();
        let (dry, said) = apply(&needs, &nic, &machine, None);
        assert!(matches!(dry, Ok(Applied::Done)), "{driver}: {dry:?}");
        assert!(said.iter().any(|(_, words)| words.starts_with("would set MTU of eth1: 3000")));
        assert!(*nic.state.borrow() == before && !store.path().exists());
        assert_eq!(governor(&machine, 2), "schedutil");
        let (done, said) = apply(&needs, &nic, &machine, Some(&store));
        assert!(matches!(done, Ok(Applied::Done)), "{driver}: {done:?}");
        assert!(said.iter().any(|(_, words)| words == "MTU of eth1: 3000 (was 9000)"), "{said:?}");
        let words = "frequency governor of CPU 2: performance (was schedutil)";
        assert!(said.iter().any(|(_, said)| said == words), "{said:?}");
        assert_eq!(governor(&machine, 2), "performance");
        let left = found(&needs, &nic);
        assert!(left.iter().all(|f| f.change.is_none()), "{driver}: {left:#?}");
        assert!(left.iter().all(|f| f.severity < Severity::Fault), "{driver}: {left:#?}");
        // Twice is once.
        let (record, applied) = (store.load().unwrap(), nic.state.borrow().clone());
        assert!(matches!(apply(&needs, &nic, &machine, Some(&store)).0, Ok(Applied::Done)));
        assert_eq!(store.load().unwrap(), record);
        assert_eq!(*nic.state.borrow(), applied);
        // Another configuration on top keeps what was at first.
        let more = super::needs(
            "frame_bytes = 4096\nqueues = 2\ncpus = [1, 2]\nport_base = 7000\nrx_ring = 1024\n",
        );
        assert!(matches!(apply(&more, &nic, &machine, Some(&store)).0, Ok(Applied::Done)));
        assert!(*nic.state.borrow() != applied);
        assert!(undone(&nic, &machine, &store) > 3);
        assert_eq!(*nic.state.borrow(), before, "{driver}");
        assert_eq!(governor(&machine, 2), "schedutil");
        assert_eq!(undone(&nic, &machine, &store), 0);
    }
}

#[test]
fn a_kill_at_any_call_leaves_enough_to_undo() {
    let needs = needs(MUCH);
    let mut kills = 0;
    for (driver, last_call_counts) in ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for calls in 0.. {
            let (machine, dir) = saving();
            let nic = Fake { last_call_counts, ..busy(driver) };
            let before = nic.state.borrow().clone();
            let ended = killed(&nic, calls, || {
                let (done, _) = apply(&needs, &nic, &machine, Some(&store(dir.path())));
                assert!(matches!(done, Ok(Applied::Done)), "{done:?}");
            });
            // The undoing may be killed as well, anywhere: calls of it vary with those of apply.
            let undone_early = killed(&nic, calls * 7 % 40, || {
                let _ = undone(&nic, &machine, &store(dir.path()));
            });
            kills += u32::from(!undone_early);
            let _ = undone(&nic, &machine, &store(dir.path()));
            assert_eq!(*nic.state.borrow(), before, "{driver}, killed at call {calls}");
            assert_eq!(governor(&machine, 2), "schedutil", "{driver}, killed at call {calls}");
            if ended {
                assert!(calls > 20, "{calls}");
                break;
            }
        }
    }
    assert!(kills > 50, "{kills}");
}

#[test]
fn a_refused_rule_means_all_queues_for_the_box() {
    let needs = needs(MUCH);
    let (machine, dir) = machine("7.0.0");
    let nic = Fake { refuses: Some("rule udp4"), ..Fake::new("ice") };
    let before = nic.state.borrow().clone();
    let store = store(dir.path());
    let (done, said) = apply(&needs, &nic, &machine, Some(&store));
    assert!(matches!(done, Ok(Applied::Done)), "{done:?}");
    assert!(said.iter().any(|(s, w)| *s == Severity::Warning && w.contains("does not take rule")));
    assert_eq!(nic.state.borrow().link.rx_queues, 2);
    assert_eq!(nic.state.borrow().rules, Some(Vec::new()));
    assert!(nic.state.borrow().hash.unwrap().ports);
    let _ = undone(&nic, &machine, &store);
    assert_eq!(*nic.state.borrow(), before);
    // IPv6 alone is no reason.
    let nic = Fake { refuses: Some("rule udp6"), ..nic };
    let (done, _) = apply(&needs, &nic, &machine, Some(&store));
    assert!(matches!(done, Ok(Applied::Done)), "{done:?}");
    assert_eq!(nic.state.borrow().rules.as_ref().map(Vec::len), Some(2));
    assert_eq!(nic.state.borrow().link.rx_queues, 8);
}

#[test]
fn what_is_refused_is_fatal_only_where_it_must_be() {
    let needs = needs(MUCH);
    let (machine, dir) = machine("7.0.0");
    let store = store(dir.path());
    let nic = Fake { refuses: Some("rings"), ..Fake::new("igb") };
    let (done, said) = apply(&needs, &nic, &machine, Some(&store));
    assert!(matches!(done, Ok(Applied::Done)), "{done:?}");
    assert!(said.iter().any(|(_, words)| words.contains("does not take rings")), "{said:?}");
    let before = Fake::new("igb").state.into_inner();
    let _ = undone(&nic, &machine, &store);
    assert_eq!(*nic.state.borrow(), before);
    // A governor that the kernel has not: this file is read and never written.
    let governor = dir.path().join(governor_file(2));
    std::fs::remove_file(&governor).unwrap();
    std::os::unix::fs::symlink("/proc/version", governor).unwrap();
    let (done, said) = apply(&needs, &Fake::new("igb"), &machine, Some(&store));
    assert!(matches!(done, Ok(Applied::Done)), "{done:?}");
    let words = "cannot write performance to";
    assert!(said.iter().any(|(s, said)| *s == Severity::Warning && said.contains(words)));
    undo(Some(&nic), &machine, &store, &mut |_| ()).unwrap();
    std::fs::remove_file(dir.path().join(governor_file(2))).unwrap();
    // irdma holds the queues.
    let nic = Fake { refuses: Some("queues"), ..Fake::new("ice") };
    let many = super::needs("queues = 2\n");
    nic.state.borrow_mut().rules = None;
    let (done, said) = apply(&many, &nic, &machine, Some(&store));
    assert!(matches!(done, Err(HostError::Nic(_))), "{done:?}");
    assert!(said.iter().any(|(_, words)| words.contains("modprobe -r irdma")), "{said:?}");
    let _ = undone(&nic, &machine, &store);
    let nic = Fake { refuses: Some("up"), ..Fake::new("igb") };
    assert!(matches!(apply(&needs, &nic, &machine, Some(&store)).0, Err(HostError::Nic(_))));
    let _ = undone(&nic, &machine, &store);
    assert_eq!(*nic.state.borrow(), before);
}

#[test]
fn what_only_a_person_can_change_is_refused_before_anything_is_changed() {
    let (machine, dir) = machine("7.0.0");
    let nic = Fake::new("veth");
    let before = nic.state.borrow().clone();
    let store = store(dir.path());
    let (done, _) = apply(&needs("queues = 8\n"), &nic, &machine, Some(&store));
    let Ok(Applied::Refused(faults)) = done else { panic!("{done:?}") };
    assert!(faults[0].to_string().contains("eth1 has 4 at most"), "{}", faults[0]);
    assert!(*nic.state.borrow() == before && !store.path().exists());
}

#[test]
fn what_cannot_be_restored_stays_in_the_record() {
    let (machine, dir) = machine("7.0.0");
    let store = store(dir.path());
    let mut nic = Fake::new("mlx5_core");
    let before = nic.state.borrow().clone();
    assert!(apply(&needs(MUCH), &nic, &machine, Some(&store)).0.is_ok());
    nic.refuses = Some("mtu");
    let mut failed = Vec::new();
    let mut note = |undone: Undone| {
        if let Undone::Failed(change, _) = undone {
            failed.push(change.thing("eth1"));
        }
    };
    undo(Some(&nic), &machine, &store, &mut note).unwrap();
    assert_eq!(failed, ["MTU of eth1"]);
    assert_eq!(store.load().unwrap().changes.len(), 1);
    // An interface that is gone keeps everything in the record.
    undo(None, &machine, &store, &mut |undone| {
        assert!(matches!(undone, Undone::Failed(_, HostError::Gone { .. })));
    })
    .unwrap();
    nic.refuses = None;
    assert_eq!(undone(&nic, &machine, &store), 1);
    assert_eq!(*nic.state.borrow(), before);
}

/// Pages of the machine in `dir`.
fn pages(machine: &Machine) -> u64 {
    machine.huge_pages().unwrap().total
}

fn set_pages(dir: &tempfile::TempDir, total: u64) {
    let path = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    put(dir, path, &total.to_string());
}

#[test]
fn huge_pages_that_others_added_stay() {
    let huge: Needs = needs("memory_mib = 64\nhuge_pages = true\n");
    let (machine, dir) = machine("7.0.0");
    let store = store(dir.path());
    let nic = Fake::new("mlx5_core");
    // The directory does not make free pages of those asked for, as a kernel may not.
    let (done, _) = apply(&huge, &nic, &machine, Some(&store));
    assert!(matches!(done, Err(HostError::HugePages { found: 5, needed: 32 })), "{done:?}");
    // 32 of which 5 are free.
    assert_eq!(pages(&machine), 10 + 27);
    set_pages(&dir, 37 + 4);
    let record = store.load().unwrap();
    let _ = undone(&nic, &machine, &store);
    assert_eq!(pages(&machine), 10 + 4);
    // Killed before the number was written: nothing was added, and nothing is taken.
    set_pages(&dir, 10);
    store.save(&record).unwrap();
    let _ = undone(&nic, &machine, &store);
    assert_eq!(pages(&machine), 10);
    // Fewer than were added are left: no less than there were.
    set_pages(&dir, 12);
    store.save(&record).unwrap();
    let _ = undone(&nic, &machine, &store);
    assert_eq!(pages(&machine), 10);
}

#[test]
fn two_do_not_change_a_machine_at_once_and_nonsense_is_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let first = store(dir.path());
    assert!(matches!(Store::open(dir.path(), "eth2"), Err(HostError::Busy { .. })));
    std::fs::write(first.path(), "{\"interface\":").unwrap();
    let error = first.load().unwrap_err().to_string();
    assert!(error.contains("host-eth1.json"), "{error}");
    drop(first);
    assert!(Store::open(dir.path(), "eth2").is_ok());
}
