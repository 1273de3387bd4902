//! A box without a wire, and a worker's side of HTTP.

use gradbox::config::Config;
use gradbox::control::{OpenSources, Server, Sources, serve};
use gradbox::dataplane::core::Core;
use gradbox::dataplane::handle::CoreHandle;
use gradbox::dataplane::mem;
use gradbox::dataplane::steer::Steering;
use gradbox_protocol::control::{BoxInfo, Joined, Refusal, Status};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames of each core that jobs may reserve in these tests.
pub(super) const CAPACITY: u32 = 256;

/// A box without a wire: two cores, and a control plane on a port of the system's choice.
pub(super) struct Rig {
    pub(super) server: Option<Server>,
    pub(super) address: SocketAddr,
    pub(super) cores: Vec<CoreHandle>,
    pub(super) threads: Vec<JoinHandle<()>>,
}

impl Rig {
    pub(super) fn new(control: &str) -> Self {
        Self::with(control, Box::new(OpenSources))
    }

    pub(super) fn with(control: &str, sources: Box<dyn Sources + Send>) -> Self {
        let (mut cores, mut threads) = (Vec::new(), Vec::new());
        for (shard, steering) in
            Steering::new(2).expect("event descriptors").into_iter().enumerate()
        {
            let (handle, link) = CoreHandle::new(shard as u16, None, CAPACITY.into(), 2048);
            cores.push(handle);
            threads.push(std::thread::spawn(move || {
                let (mut port, wire, pool) = mem::pair(CAPACITY + 128, 2048, 64).unwrap();
                let mut core = Core::new(shard as u16, pool, steering, link, false);
                while !core.stopped() {
                    core.step(&mut port, 0);
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(wire);
            }));
        }
        let server = serve(&config(control), info(), cores.clone(), sources).unwrap();
        Self { address: server.address(), server: Some(server), cores, threads }
    }

    /// Sends a request as it is, and returns status and body.
    pub(super) fn raw(&self, request: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub(super) fn send(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let length = body.len();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.raw(&request)
    }

    pub(super) fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, b"")
    }

    pub(super) fn join(&self, name: &str, body: &Value) -> (u16, String) {
        self.send("POST", &format!("/v1/jobs/{name}/join"), body.to_string().as_bytes())
    }

    /// Repeats a join, as a worker does, until all are there.
    pub(super) fn joined(&self, name: &str, body: &Value) -> Joined {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.join(name, body) {
                (200, answer) => return serde_json::from_str(&answer).unwrap(),
                (202, _) if Instant::now() < deadline => {}
                (status, answer) => panic!("{status}: {answer}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn leave(&self, name: &str, rank: u8, instance: u64) -> (u16, String) {
        let body = json!({"rank": rank, "instance": instance}).to_string();
        self.send("POST", &format!("/v1/jobs/{name}/leave"), body.as_bytes())
    }

    pub(super) fn status(&self) -> Status {
        let (status, body) = self.get("/v1/status");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(super) fn wait_until(&self, what: &str, is: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is(&self.status()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            drop(server.stop());
        }
        self.cores.iter().for_each(CoreHandle::stop);
        for thread in self.threads.drain(..) {
            // A core that panicked has failed the test already.
            let _ = thread.join();
        }
    }
}

pub(super) fn config(control: &str) -> Config {
    let text = format!("[control]\nlisten = \"127.0.0.1:0\"\n{control}\n[data]\nport = \"udp\"\n");
    Config::parse(&text, Path::new("test.toml")).unwrap()
}

pub(super) fn info() -> BoxInfo {
    BoxInfo {
        version: "0.0.0".into(),
        protocol: gradbox_protocol::VERSION,
        addresses: vec!["127.0.0.1".parse().unwrap()],
        port_base: 9100,
        shards: 2,
        chunk_bytes: 1408,
        mtu: 1500,
        port: "udp".into(),
        mode: "udp".into(),
        transmit: "socket".into(),
    }
}

/// A join of two ranks with 20 chunks: 10 slots and 30 frames on each core.
pub(super) fn request(rank: u8, instance: u64) -> Value {
    json!({
        "rank": rank, "world": 2, "dtype": "f32", "op": "sum", "instance": instance,
        "address": format!("127.0.0.1:{}", 4000 + u16::from(rank)),
        "tensors": [{"name": "w", "elements": 352 * 20}],
    })
}

pub(super) fn changed(rank: u8, field: &str, value: Value) -> Value {
    let mut body = request(rank, 7);
    body[field] = value;
    body
}

#[track_caller]
pub(super) fn refused(
    (status, body): (u16, String),
    expected: u16,
    word: &str,
    says: &str,
) -> Refusal {
    let refusal: Refusal =
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{status}: {body}: {e}"));
    assert_eq!((status, &*refusal.error), (expected, word), "{}", refusal.message);
    assert!(refusal.message.contains(says), "expected {says}\n   found {}", refusal.message);
    refusal
}
