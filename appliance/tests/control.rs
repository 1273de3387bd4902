//! The control plane over real sockets on loopback, with real cores on the `mem` port.

#[path = "control/rig.rs"]
mod rig;

use gradbox::control::{OpenSources, ServeError, Sources, SourcesError, serve};
use gradbox::dataplane::handle::{Command, CoreHandle};
use gradbox_protocol::Reply;
use gradbox_protocol::control::{BoxInfo, Waiting};
use rig::{CAPACITY, Rig, changed, config, info, refused, request};
use serde_json::Value;
use serde_json::json;
use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn the_box_says_what_it_is() {
    let rig = Rig::new("");
    assert_eq!(rig.get("/v1/health"), (200, r#"{"state":"ready"}"#.into()));
    let (status, body) = rig.get("/v1/box");
    assert_eq!((status, serde_json::from_str::<BoxInfo>(&body).unwrap()), (200, info()));
    let status = rig.status();
    assert_eq!((status.cores.len(), status.jobs.len()), (2, 0));
    assert!(status.uptime_s >= 0.0);
}

#[test]
fn two_ranks_meet_work_and_leave() {
    let rig = Rig::new("");
    let (status, body) = rig.join("j", &request(1, 8));
    assert_eq!(status, 202);
    assert_eq!(serde_json::from_str::<Waiting>(&body).unwrap().missing, [0]);
    let forming = &rig.status().jobs[0];
    assert_eq!((forming.job, forming.generation, &*forming.joining), (None, 0, &[0][..]));
    assert_eq!(forming.reserved_bytes, 2 * 30 * 2048);

    let zero = rig.joined("j", &request(0, 7));
    let one = rig.joined("j", &request(1, 8));
    assert_eq!((zero.job, zero.generation, zero.shards), (one.job, 1, 2));
    assert_eq!((zero.chunk_bytes, zero.port_base), (1408, 9100));
    assert_eq!(zero.address, IpAddr::from([127, 0, 0, 1]));
    assert_eq!(zero.credit, 4096 / 2 / 2);
    assert!(zero.cookie != one.cookie && zero.cookie != 0);
    assert_eq!(rig.joined("j", &request(0, 7)), zero);

    assert_eq!(rig.leave("j", 0, 7).0, 200);
    assert!(rig.status().jobs[0].ranks[0].left);
    assert_eq!(rig.leave("j", 1, 8).0, 200);
    rig.wait_until("the job ends", |s| s.jobs.is_empty());
    refused(rig.leave("j", 0, 7), 404, "unknown_job", "no job j");
}

#[test]
fn ranks_that_want_one_result_for_all_are_given_a_group() {
    let rig = Rig::new("");
    let want = |rank, instance| {
        let mut body = request(rank, instance);
        body["reply"] = "multicast".into();
        body
    };
    assert_eq!(rig.join("j", &want(1, 8)).0, 202);
    refused(rig.join("j", &request(0, 7)), 409, "mismatch", "reply = multicast");
    let zero = rig.joined("j", &want(0, 7));
    let one = rig.joined("j", &want(1, 8));
    let group = zero.group.expect("a group");
    assert_eq!(one.group, Some(group));
    // The first id's address, and the port behind those of the two shards.
    assert_eq!(group.address.to_string(), format!("239.255.71.{}:9102", zero.job));
    assert!(![0, zero.cookie, one.cookie].contains(&group.cookie));
    assert_eq!(rig.status().jobs[0].reply, Reply::Multicast);
    let (_, body) = rig.join("j", &want(0, 7));
    let group = format!(r#""group":{{"address":"{}","cookie":{}}}"#, group.address, group.cookie);
    assert!(body.contains(&group), "{body}");
}

#[test]
fn a_new_generation_replaces_the_old() {
    let rig = Rig::new("");
    let _ = rig.join("j", &request(0, 1));
    let old = rig.joined("j", &request(1, 2));
    // Twice as large as would fit beside the old one.
    let mut new = request(0, 3);
    new["world"] = json!(1);
    new["dtype"] = json!("bf16");
    new["tensors"][0]["elements"] = json!(704 * 240);
    let joined = rig.joined("j", &new);
    assert_eq!(joined.generation, 2);
    assert_ne!((joined.job, joined.cookie), (old.job, old.cookie));
    let status = rig.status();
    assert_eq!((status.jobs[0].world, status.jobs[0].generation), (1, 2));
    assert_eq!(status.jobs[0].reserved_bytes, 2 * 240 * 2048);
}

#[test]
fn joins_that_cannot_be_served_are_refused_with_what_to_change() {
    let rig = Rig::new("");
    let join = |body: &Value| rig.join("j", body);
    let cases: [(Value, u16, &str, &str); 19] = [
        (
            changed(0, "dtype", json!("f64")),
            422,
            "bad_body",
            "dtype: unknown variant `f64`, expected one of `f32`, `f16`",
        ),
        (
            changed(0, "op", json!("xor")),
            422,
            "bad_body",
            "op: unknown variant `xor`, expected one of `sum`",
        ),
        (changed(0, "rank", json!(-1)), 422, "bad_body", "rank: invalid value: integer `-1`"),
        (changed(0, "rank", json!("zero")), 422, "bad_body", "rank: invalid type"),
        (changed(0, "colour", json!("red")), 422, "bad_body", "unknown field `colour`"),
        (json!({}), 422, "bad_body", "missing field `rank`"),
        (changed(2, "world", json!(2)), 422, "bad_rank", "2 is not below world = 2: use 0 to 1"),
        (changed(0, "world", json!(0)), 422, "bad_world", "0 is out of range: use 1 to 32"),
        (changed(0, "world", json!(33)), 422, "bad_world", "33 is out of range: use 1 to 32"),
        (changed(0, "instance", json!(1u64 << 53)), 422, "bad_instance", "not below 2^53"),
        (changed(0, "address", json!("0.0.0.0:4000")), 422, "bad_address", "0.0.0.0:4000"),
        (changed(0, "address", json!("127.0.0.1:0")), 422, "bad_address", "127.0.0.1:0"),
        (changed(0, "address", json!("224.0.0.1:1")), 422, "bad_address", "224.0.0.1:1"),
        (
            changed(0, "address", json!("worker:1")),
            422,
            "bad_body",
            "address: invalid socket address",
        ),
        (
            changed(0, "address", json!("[fd00::2]:4000")),
            422,
            "address_family",
            "fd00::2]:4000 is IPv6, and this box has only 127.0.0.1",
        ),
        (changed(0, "tensors", json!([])), 422, "bad_tensors", "found 0"),
        (
            changed(0, "tensors", json!([{"name": "w"}])),
            422,
            "bad_body",
            "tensors[0]: missing field `elements`",
        ),
        (
            changed(0, "tensors", json!([{"name": "w", "elements": 352 * 2000}])),
            507,
            "too_large",
            "job j needs 12288000 bytes",
        ),
        (
            changed(0, "tensors", json!([{"name": "w", "elements": u64::MAX}])),
            507,
            "too_large",
            "available",
        ),
    ];
    for (body, status, word, says) in cases {
        let refusal = refused(join(&body), status, word, says);
        assert_eq!(refusal.needed_bytes.is_some(), status == 507);
    }
    let large = changed(0, "tensors", json!([{"name": "w", "elements": 352 * 2000}]));
    let numbers = refused(join(&large), 507, "too_large", "1048576 are available");
    assert_eq!(numbers.needed_bytes, Some(2000 / 2 * 3 * 2 * 2048));
    assert_eq!(numbers.available_bytes, Some(2 * u64::from(CAPACITY) * 2048));
    assert!(rig.status().jobs.is_empty());
    // An IPv4 address in IPv6's clothes is welcome.
    assert_eq!(join(&changed(0, "address", json!("[::ffff:127.0.0.1]:4000"))).0, 202);
}

#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    let rig = Rig::new("");
    assert_eq!(rig.join("j", &request(0, 7)).0, 202);
    let mut other = request(0, 8);
    other["address"] = json!("127.0.0.1:5000");
    let says = "rank 0 of job j is taken by a worker at 127.0.0.1:4000";
    refused(rig.join("j", &other), 409, "duplicate_rank", says);
    let differ = changed(1, "dtype", json!("bf16"));
    refused(
        rig.join("j", &differ),
        409,
        "mismatch",
        "the other ranks bring dtype = f32, this one bf16",
    );
    refused(rig.leave("j", 0, 8), 409, "not_member", "rank 0 of job j");
    let _ = rig.join("j", &request(1, 8));
    let joined = rig.joined("j", &request(0, 7));
    let moved = changed(0, "address", json!("127.0.0.1:5000"));
    refused(
        rig.join("j", &moved),
        409,
        "moved",
        "from 127.0.0.1:4000, and now from 127.0.0.1:5000",
    );
    assert_eq!(rig.joined("j", &request(0, 7)), joined);
}

#[test]
fn a_token_is_wanted_where_there_is_one() {
    let rig = Rig::new("token = \"open sesame\"");
    refused(
        rig.join("j", &request(0, 7)),
        403,
        "bad_token",
        "missing: bring the one of control.token",
    );
    for wrong in ["", "open sesam", "open sesame!", "OPEN SESAME"] {
        let body = changed(0, "token", json!(wrong));
        refused(rig.join("j", &body), 403, "bad_token", "it is not this box's");
    }
    assert_eq!(rig.join("j", &changed(0, "token", json!("open sesame"))).0, 202);
}

#[test]
fn what_is_no_request_is_refused_in_json_too() {
    let rig = Rig::new("");
    refused(rig.get("/"), 404, "unknown_path", "POST /v1/jobs/NAME/join");
    refused(rig.get("/v1/jobs/j/join"), 405, "wrong_method", "is not for GET");
    refused(rig.send("POST", "/v1/jobs/j/join", b"{"), 400, "not_json", "no JSON");
    refused(rig.send("POST", "/v1/jobs/j/join", b"\xff\xfe"), 400, "not_json", "no JSON");
    refused(rig.join("a%20b", &request(0, 7)), 400, "bad_name", "\"a b\"");
    refused(rig.join("%ff", &request(0, 7)), 400, "bad_name", "job name");
    refused(rig.join(&"x".repeat(65), &request(0, 7)), 400, "bad_name", "1 to 64");
    // Refused by its announced length: the body is not waited for.
    let long = "POST /v1/jobs/j/join HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\
                Content-Length: 16777217\r\n\r\n";
    refused(rig.raw(long.as_bytes()), 413, "body_too_large", "16777216");
    // What is not even HTTP does no harm.
    let mut stream = TcpStream::connect(rig.address).unwrap();
    stream.write_all(&[0; 4096]).unwrap();
    drop(stream);
    assert_eq!(rig.get("/v1/health").0, 200);
}

#[test]
fn the_silent_and_the_idle_are_removed() {
    let rig = Rig::new("join_timeout_s = 1\nidle_timeout_s = 1");
    assert_eq!(rig.join("forming", &request(0, 7)).0, 202);
    let _ = rig.join("idle", &request(0, 7));
    let _ = rig.joined("idle", &request(1, 8));
    assert_eq!(rig.status().jobs.len(), 2);
    rig.wait_until("both end", |s| s.jobs.is_empty());
}

/// An allow-list without room.
struct Full;

impl Sources for Full {
    fn allow(&mut self, ip: IpAddr) -> Result<(), SourcesError> {
        Err(format!("no room for {ip}").into())
    }

    fn revoke(&mut self, _: IpAddr) -> Result<(), SourcesError> {
        Ok(())
    }

    fn counters(&self) -> Result<Vec<(&'static str, u64)>, SourcesError> {
        Ok(vec![("redirected", 42)])
    }
}

#[test]
fn a_full_allow_list_refuses_and_its_counters_are_shown() {
    let mut rig = Rig::with("", Box::new(Full));
    let says = "no room for 127.0.0.1";
    refused(rig.join("j", &request(0, 7)), 503, "allow_list", says);
    let (_, text) = rig.get("/metrics");
    assert!(text.contains("gradbox_xdp_packets_total{verdict=\"redirected\"} 42"), "{text}");
    let sources = rig.server.take().unwrap().stop().expect("the thread has ended");
    assert_eq!(sources.counters().unwrap(), [("redirected", 42)]);
}

#[test]
fn metrics_are_complete() {
    let rig = Rig::new("");
    let _ = rig.join("j", &request(0, 7));
    let _ = rig.joined("j", &request(1, 8));
    let has_reports = |text: &str| {
        let count = |core| format!("gradbox_completion_seconds_count{{core=\"{core}\"}}");
        (0..2).all(|core| text.contains(&count(core)))
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut text = rig.get("/metrics").1;
    while !has_reports(&text) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        text = rig.get("/metrics").1;
    }
    for line in [
        "# HELP gradbox_pushed Chunks taken into a slot.",
        "gradbox_pushed_total{core=\"1\"} 0",
        "gradbox_frames{core=\"0\",state=\"free\"} ",
        "gradbox_frames_all{core=\"0\"} ",
        "gradbox_frames_balanced{core=\"0\"} 1",
        "gradbox_busy_seconds_total{core=\"0\"} ",
        "gradbox_job_frames_reserved{core=\"0\"} 30",
        "gradbox_job_frames_available{core=\"0\"} 226",
        "gradbox_job_pushed_total{job=\"j\",rank=\"1\"} 0",
        "gradbox_job_last_total{job=\"j\",rank=\"0\"} 0",
        "gradbox_job_waiting_for{job=\"j\",rank=\"0\"} 0",
        "gradbox_job_reserved_bytes{job=\"j\"} 122880",
        "gradbox_completion_seconds_bucket{le=\"+Inf\",core=\"0\"} 0",
        "gradbox_completion_seconds_count{core=\"1\"} 0",
        "gradbox_build_info{version=\"0.0.0\",protocol=\"1\",port=\"udp\",mode=\"udp\"} 1",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn it_stops_soon_though_a_connection_stays_open_and_frees_its_port() {
    let mut rig = Rig::new("");
    let mut open = TcpStream::connect(rig.address).unwrap();
    open.write_all(b"POST /v1/jobs/j/join HTTP/1.1\r\nHost: b\r\nContent-Length: 9\r\n\r\n")
        .unwrap();
    let begun = Instant::now();
    assert!(rig.server.take().unwrap().stop().is_some());
    assert!(begun.elapsed() < Duration::from_secs(3));
    let mut again = config("");
    again.control.listen = rig.address;
    let server = serve(&again, info(), rig.cores.clone(), Box::new(OpenSources)).unwrap();
    let Err(ServeError::Bind { address, .. }) =
        serve(&again, info(), rig.cores.clone(), Box::new(OpenSources))
    else {
        panic!("two servers on one port")
    };
    assert_eq!(address, rig.address);
    assert!(server.stop().is_some());
}

#[test]
fn an_address_in_use_is_named_with_what_to_do() {
    let rig = Rig::new("");
    let mut taken = config("");
    taken.control.listen = rig.address;
    let error = serve(&taken, info(), rig.cores.clone(), Box::new(OpenSources)).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with(&format!("control.listen = {}: ", rig.address)), "{message}");
    assert!(message.contains("stop it, or use another port"), "{message}");
    let none = serve(&config(""), info(), Vec::new(), Box::new(OpenSources)).unwrap_err();
    assert!(none.to_string().contains("one for each shard"), "{none}");
}

#[test]
fn a_core_that_takes_no_commands_is_reported() {
    // Nobody is at the other end of these queues.
    let cores: Vec<_> = (0..2).map(|s| CoreHandle::new(s, None, 10_000, 2048).0).collect();
    let server = serve(&config(""), info(), cores.clone(), Box::new(OpenSources)).unwrap();
    let rig = Rig { address: server.address(), server: Some(server), cores, threads: Vec::new() };
    let mut body = request(0, 7);
    body["world"] = json!(1);
    // A worker is not sent off before the cores know its job.
    assert_eq!(rig.join("first", &body), (202, r#"{"missing":[]}"#.to_owned()));
    while rig.cores[0].send(Command::Remove(u16::MAX)).is_ok() {}
    assert_eq!(rig.join("lost", &body).0, 202);
    let says = "the core of shard 0 took no commands and lost one: restart the box";
    refused(rig.get("/v1/health"), 503, "not_served", says);
    refused(rig.join("more", &body), 503, "not_served", says);
}
