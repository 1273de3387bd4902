//! The committed XDP object, through the verifier of this kernel, on packets of every verdict.
//!
//! Needs CAP_BPF and its like; without them each test says so and passes.

#[path = "xdp_program/packet.rs"]
mod packet;

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use gradbox::xdp::program::{Error, Mode, Program, Settings};
use gradbox_protocol::verdict::Verdict;
use packet::{ETHERNET, HEADER, Packet, UDP, V4, V6, shapes};
use socket2::{Domain, Socket, Type};

const SETTINGS: Settings = Settings { port_base: 7000, port_count: 4, mode: Mode::Driver };

/// Capabilities by bit (linux/capability.h).
const CAPABILITIES: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

/// `enum xdp_action` (linux/bpf.h).
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// Whether this process may do what the tests do; says so if not.
fn privileged() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let held = u64::from_str_radix(held, 16).unwrap();
    for (bit, name) in CAPABILITIES {
        if held >> bit & 1 == 0 {
            println!("skipped: needs {name}");
            return false;
        }
    }
    true
}

/// A loaded program with both sources allowed, and a socket on queue 0 (the queue of test runs).
fn loaded() -> (Program, Socket) {
    let mut program = Program::open(&SETTINGS).unwrap();
    let socket = xdp_socket();
    program.set_socket(0, &socket).unwrap();
    program.allow(V4).unwrap();
    program.allow(V6).unwrap();
    (program, socket)
}

/// Not bound to a queue: it need not be, to be in the map.
fn xdp_socket() -> Socket {
    Socket::new(Domain::from(libc::AF_XDP), Type::from(libc::SOCK_RAW), None).unwrap()
}

fn count(program: &Program, verdict: Verdict) -> u64 {
    let counters = program.counters().unwrap();
    counters.iter().find(|(name, _)| *name == verdict.name()).unwrap().1
}

/// Runs `packet`: the action must be that of `verdict`, and its counter the only one that moved.
#[track_caller]
fn expect(program: &Program, packet: &[u8], verdict: Verdict) {
    let mut wanted = program.counters().unwrap();
    wanted[verdict as usize].1 += 1;
    let action = match verdict.name() {
        "redirected" => XDP_REDIRECT,
        name if name.starts_with("pass_") => XDP_PASS,
        _ => XDP_DROP,
    };
    assert_eq!(program.run(packet, 1).unwrap().action, action, "{verdict:?}: {packet:02x?}");
    assert_eq!(program.counters().unwrap(), wanted, "{verdict:?}: {packet:02x?}");
}

#[test]
fn good_packets_are_redirected() {
    if !privileged() {
        return;
    }
    let (program, _socket) = loaded();
    for good in shapes() {
        expect(&program, &good.bytes(), Verdict::Redirected);
        for port in [7000, 7003] {
            let edge = Packet { port, ..good.clone() };
            expect(&program, &edge.bytes(), Verdict::Redirected);
        }
        let bare = Packet { payload: 0, ..good.clone() };
        expect(&program, &bare.bytes(), Verdict::Redirected);
        // More than a page: the kernel gives it to the program as several buffers.
        let jumbo = Packet { payload: 8900, ..good };
        expect(&program, &jumbo.bytes(), Verdict::Redirected);
    }
}

#[test]
fn packets_cut_anywhere_never_pass_as_good_ones() {
    if !privileged() {
        return;
    }
    let (program, _socket) = loaded();
    for good in shapes() {
        let bytes = good.bytes();
        let gradbox = good.udp_offset() + UDP;
        // The kernel runs no program on less than an Ethernet header.
        for len in ETHERNET..gradbox + HEADER {
            let verdict =
                if len < gradbox { Verdict::PassTruncated } else { Verdict::DropTruncated };
            expect(&program, &bytes[..len], verdict);
        }
        expect(&program, &bytes[..gradbox + HEADER], Verdict::Redirected);
    }
}

#[test]
fn traffic_of_others_goes_to_the_kernel() {
    if !privileged() {
        return;
    }
    let (program, _socket) = loaded();
    for good in shapes() {
        let with = |change: &dyn Fn(&mut Packet), verdict| {
            // Wrong in all that makes ours be dropped: none of it may matter for others.
            for wrong in [false, true] {
                let mut packet = good.clone();
                if wrong {
                    packet.magic = *b"XX";
                    packet.version = 9;
                    packet.udp_length = Some(8);
                }
                change(&mut packet);
                expect(&program, &packet.bytes(), verdict);
            }
        };
        with(&|packet| packet.ether_type = 0x0806, Verdict::PassNotIp);
        with(&|packet| packet.first ^= 0x20, Verdict::PassNotIp);
        for tag in [0x8100, 0x88a8] {
            let tags = [good.tags.as_slice(), &[tag, tag]].concat();
            with(&|packet| packet.tags = tags.clone(), Verdict::PassVlanStack);
        }
        for protocol in [1, 6, 58, 132] {
            with(&|packet| packet.protocol = protocol, Verdict::PassNotUdp);
        }
        for port in [0, 22, 6999, 7004, 65535] {
            with(&|packet| packet.port = port, Verdict::PassOtherPort);
        }
        if good.source.is_ipv4() {
            for fragment in [0x2000, 0x0001, 0x2001, 0x1fff] {
                with(&|packet| packet.fragment = fragment, Verdict::PassFragment);
            }
            for first in [0x44, 0x46, 0x4f] {
                with(&|packet| packet.first = first, Verdict::PassIpOptions);
            }
        } else {
            with(&|packet| packet.protocol = 44, Verdict::PassFragment);
            for protocol in [0, 43, 51, 60] {
                with(&|packet| packet.protocol = protocol, Verdict::PassIpOptions);
            }
        }
    }
}

#[test]
fn malformed_packets_to_a_shard_are_dropped() {
    if !privileged() {
        return;
    }
    let (program, _socket) = loaded();
    for good in shapes() {
        for udp_length in [0, 8, 39] {
            let packet = Packet { udp_length: Some(udp_length), ..good.clone() };
            expect(&program, &packet.bytes(), Verdict::DropTruncated);
        }
        let packet = Packet { udp_length: Some(40), ..good.clone() };
        expect(&program, &packet.bytes(), Verdict::Redirected);
        for magic in [*b"BG", *b"G\0", *b"\0B"] {
            let packet = Packet { magic, payload: 8900, ..good.clone() };
            expect(&program, &packet.bytes(), Verdict::DropBadMagic);
        }
        for version in [0, 2, 255] {
            let packet = Packet { version, ..good.clone() };
            expect(&program, &packet.bytes(), Verdict::DropBadVersion);
        }
    }
}

#[test]
fn sources_are_allowed_as_often_as_jobs_ask() {
    if !privileged() {
        return;
    }
    let (mut program, _socket) = loaded();
    for good in shapes() {
        // One bit off, in the first and in the last byte of the address.
        let strangers: [IpAddr; 2] = match good.source {
            IpAddr::V4(v4) => [1 << 24, 1].map(|bit| Ipv4Addr::from(u32::from(v4) ^ bit).into()),
            IpAddr::V6(v6) => [1 << 120, 1].map(|bit| Ipv6Addr::from(u128::from(v6) ^ bit).into()),
        };
        for source in strangers {
            let packet = Packet { source, ..good.clone() };
            expect(&program, &packet.bytes(), Verdict::DropStranger);
        }
        program.allow(good.source).unwrap();
        program.revoke(good.source).unwrap();
        expect(&program, &good.bytes(), Verdict::Redirected);
        program.revoke(good.source).unwrap();
        expect(&program, &good.bytes(), Verdict::DropStranger);
        assert!(matches!(program.revoke(good.source), Err(Error::NotAllowed { .. })));
        program.allow(good.source).unwrap();
        expect(&program, &good.bytes(), Verdict::Redirected);
    }
    // 1024 places, two of them taken.
    for last in 0..1022_u32 {
        program.allow(Ipv4Addr::from(0xc000_0000 + last).into()).unwrap();
    }
    let full = program.allow(Ipv4Addr::BROADCAST.into()).unwrap_err();
    assert!(matches!(full, Error::Full { held: 1024, .. }), "{full}");
    program.allow(V4).unwrap();
}

#[test]
fn a_queue_without_a_socket_passes() {
    if !privileged() {
        return;
    }
    let (mut program, socket) = loaded();
    drop(socket);
    for good in shapes() {
        expect(&program, &good.bytes(), Verdict::PassNoSocket);
    }
    // Queue 0 alone counts here; the map ends at 64, and takes AF_XDP sockets only.
    program.set_socket(63, xdp_socket()).unwrap();
    expect(&program, &Packet::new(V4, &[]).bytes(), Verdict::PassNoSocket);
    assert!(matches!(
        program.set_socket(64, xdp_socket()),
        Err(Error::Queue { queue: 64, limit: 64 })
    ));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(program.set_socket(0, udp), Err(Error::Socket { queue: 0, .. })));
}

#[test]
fn settings_must_be_a_port_range() {
    let open = |port_base, port_count| {
        Program::open(&Settings { port_base, port_count, mode: Mode::Driver }).map(drop)
    };
    assert!(matches!(open(7000, 0), Err(Error::Ports { .. })));
    assert!(matches!(open(65535, 2), Err(Error::Ports { .. })));
    if privileged() {
        open(65535, 1).unwrap();
    }
}

#[test]
fn time_of_a_run() {
    if !privileged() {
        return;
    }
    let (program, _socket) = loaded();
    for good in shapes() {
        let redirected = program.run(&good.bytes(), 1_000_000).unwrap();
        let passed = Packet { port: 22, ..good.clone() };
        let passed = program.run(&passed.bytes(), 1_000_000).unwrap();
        println!(
            "{} with {} tags: {} ns redirected, {} ns passed",
            good.source,
            good.tags.len(),
            redirected.time.as_nanos(),
            passed.time.as_nanos()
        );
    }
    assert_eq!(count(&program, Verdict::Redirected), 6_000_000);
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `test` on a thread in a network namespace of its own, with the veth pair `worker`-`box`.
/// The namespace ends with the thread, so nothing is left behind however the test ends.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        // SAFETY: takes no pointers; it moves this thread alone to a new namespace.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(moved, 0, "{}", std::io::Error::last_os_error());
        // A program without frags could not be attached at this MTU.
        ip("link add worker mtu 9000 type veth peer name box mtu 9000");
        ip("addr add 10.77.0.1/24 dev worker");
        ip("addr add fd77::1/64 dev worker nodad");
        ip("link set lo up");
        ip("link set worker up");
        ip("link set box up");
        ip("neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev worker");
        ip("neigh add fd77::2 lladdr 02:00:00:00:00:02 dev worker");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn datagrams_over_a_veth_are_counted() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let mut program = Program::load("box", &SETTINGS).unwrap();
        // prog/xdp is the driver's mode; the generic one is prog/xdpgeneric.
        assert!(ip("-d link show box").contains("prog/xdp "));
        program.allow(V4).unwrap();
        let good = Packet::new(V4, &[]).gradbox();
        let send = |source: &str, target: &str, payload: &[u8]| {
            let socket = UdpSocket::bind(source).unwrap();
            socket.send_to(payload, target).unwrap();
        };
        let arrives = |program: &Program, verdict, packets| {
            let deadline = Instant::now() + Duration::from_secs(5);
            while count(program, verdict) != packets {
                assert!(Instant::now() < deadline, "{verdict:?}: {:?}", program.counters());
                thread::sleep(Duration::from_millis(1));
            }
        };
        send("10.77.0.1:0", "10.77.0.2:7001", &good);
        arrives(&program, Verdict::PassNoSocket, 1);
        let socket = xdp_socket();
        program.set_socket(0, &socket).unwrap();
        send("10.77.0.1:0", "10.77.0.2:7001", &good);
        arrives(&program, Verdict::Redirected, 1);
        send("10.77.0.1:0", "10.77.0.2:7001", b"not gradbox, but long enough to be a packet of it");
        arrives(&program, Verdict::DropBadMagic, 1);
        send("[fd77::1]:0", "[fd77::2]:7001", &good);
        arrives(&program, Verdict::DropStranger, 1);
        program.allow(V6).unwrap();
        send("[fd77::1]:0", "[fd77::2]:7001", &good);
        arrives(&program, Verdict::Redirected, 2);
        let jumbo = Packet { payload: 8900, ..Packet::new(V4, &[]) }.gradbox();
        send("10.77.0.1:0", "10.77.0.2:7001", &jumbo);
        arrives(&program, Verdict::Redirected, 3);
        program.detach();
        assert!(!ip("-d link show box").contains("xdp"));
    });
}

#[test]
fn attaching_fails_with_the_reason() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let first = Program::load("box", &SETTINGS).unwrap();
        let skb = Settings { mode: Mode::Skb, ..SETTINGS };
        for settings in [SETTINGS, skb] {
            let busy = Program::load("box", &settings).map(drop).unwrap_err();
            assert!(matches!(busy, Error::Busy { .. }), "{busy:?}");
            assert!(busy.to_string().contains("ip link set dev box xdp off"));
        }
        drop(first);
        let lo = Program::load("lo", &SETTINGS).map(drop).unwrap_err();
        assert!(matches!(lo, Error::Unsupported { .. }), "{lo:?}");
        for name in ["nosuch", "no\0such"] {
            let missing = Program::load(name, &SETTINGS).map(drop).unwrap_err();
            assert!(matches!(missing, Error::NoInterface { .. }), "{missing:?}");
        }
        let _generic = Program::load("lo", &skb).unwrap();
        assert!(ip("-d link show lo").contains("xdpgeneric"));
    });
}

#[test]
fn a_killed_process_leaves_nothing_attached() {
    if !privileged() {
        return;
    }
    in_namespace(|| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "attach_and_wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let attached = lines.any(|line| line.unwrap().contains("attached"));
        let shown = ip("-d link show box");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(attached && shown.contains("prog/xdp "), "{shown}");
        assert!(!ip("-d link show box").contains("xdp"));
    });
}

#[test]
#[ignore = "not a test: the process that a_killed_process_leaves_nothing_attached kills"]
fn attach_and_wait() {
    let _program = Program::load("box", &SETTINGS).unwrap();
    println!("attached");
    thread::sleep(Duration::from_secs(60));
}
