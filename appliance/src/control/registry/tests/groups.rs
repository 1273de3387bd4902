//! Jobs whose results go to a multicast group.

use super::*;

/// A request for a job of kind 0 that wants one result for all.
fn for_all(rank: u8, instance: u64) -> JoinRequest {
    JoinRequest { reply: Reply::Multicast, ..request(0, rank, instance) }
}

#[test]
fn a_group_is_the_jobs_and_its_cookie_the_generations() {
    let mut rig = Rig::new();
    let mut cookies = Vec::new();
    for (name, instance, host) in [("a", 1, 0), ("b", 1, 1), ("a", 2, 2)] {
        rig.send(name, &for_all(0, instance)).unwrap();
        if instance == 2 {
            rig.send(name, &for_all(1, instance)).unwrap();
            rig.removed(0);
        }
        let answers: Vec<_> =
            (0..2).map(|r| rig.send(name, &for_all(r, instance)).unwrap()).collect();
        let [Answer::Waiting(_) | Answer::Joined(_), Answer::Joined(second)] = &answers[..] else {
            panic!("{answers:?}")
        };
        let Answer::Joined(first) = rig.send(name, &for_all(0, instance)).unwrap() else {
            panic!("not joined")
        };
        let group = first.group.unwrap();
        assert_eq!(second.group, Some(group));
        // Port 9102 is behind those of the two shards.
        assert_eq!(group.address, SocketAddr::from(([239, 255, 71, host], 9102)));
        assert!(![first.cookie, second.cookie].contains(&group.cookie));
        cookies.push(group.cookie);
        let added = rig.registry.take_actions().into_iter().rev().find_map(|a| match a {
            Action::Add { plan, .. } => plan.group,
            _ => None,
        });
        let added = added.expect("the cores know the group");
        assert_eq!((added.to, added.cookie), (group.address, group.cookie));
    }
    cookies.dedup();
    assert_eq!(cookies.len(), 3);
}

#[test]
fn a_job_that_wants_no_group_has_none() {
    let mut rig = Rig::new();
    rig.missing("a", 0, 0, 1);
    assert_eq!(rig.joined("a", 0, 1, 1).group, None);
}

#[test]
fn replies_that_differ_are_refused_and_named() {
    let mut rig = Rig::new();
    rig.missing("a", 0, 0, 1);
    let refused = rig.send("a", &for_all(1, 1)).unwrap_err();
    assert_eq!(refused.word(), "mismatch");
    let message = refused.to_string();
    assert!(message.contains("reply = unicast") && message.contains("multicast"), "{message}");
}

#[test]
fn a_group_needs_one_family_and_a_block_in_it() {
    let mut rig = Rig::new();
    rig.registry.settings.addresses.push("fd00::1".parse().unwrap());
    let over_v6 = |rank| JoinRequest {
        address: SocketAddr::new(
            std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 16).into(),
            4000,
        ),
        ..for_all(rank, 1)
    };
    rig.send("a", &for_all(0, 1)).unwrap();
    let refused = rig.send("a", &over_v6(1)).unwrap_err();
    assert_eq!((refused.word(), refused.status()), ("mixed_families", 409));
    let message = refused.to_string();
    assert!(message.contains("rank 1") && message.contains("rank 0"), "{message}");
    // Alone, a rank may change its family.
    rig.send("a", &over_v6(0)).unwrap();
    assert!(matches!(rig.send("a", &over_v6(1)), Ok(Answer::Joined(j)) if j.group.is_some()));

    rig.registry.settings.groups = Groups::NONE;
    let refused = rig.send("b", &for_all(0, 1)).unwrap_err();
    assert_eq!((refused.word(), refused.status()), ("no_group", 422));
    assert!(rig.send("b", &request(0, 0, 1)).is_ok());
}
