//! The model box on real sockets: loopback UDP and a tiny HTTP server.

use crate::model::{JOB, Model};
use gradbox_protocol::control::{BoxInfo, JoinRequest, Joined, LeaveRequest, Refusal, Waiting};
use gradbox_protocol::layout::Layout;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const CHUNK: u16 = 1408;
const CREDIT: u16 = 128;

/// Changes of behaviour while it runs.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// UDP is received and ignored.
    pub(crate) deaf: AtomicBool,
    /// Every tenth packet in each direction is lost.
    pub(crate) lossy: AtomicBool,
    /// Joins are refused.
    pub(crate) full: AtomicBool,
    /// End.
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    joined: BTreeMap<u8, JoinRequest>,
    left: Vec<u8>,
    model: Option<Model>,
}

/// A running box for one job.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) control: SocketAddr,
    pub(crate) switches: Arc<Switches>,
    state: Arc<Mutex<State>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// A box with `shards` shards on an address of loopback.
    pub(crate) fn start(ip: IpAddr, shards: u16) -> Self {
        let (sockets, port_base) = consecutive(ip, shards);
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let control = listener.local_addr().unwrap();
        let (switches, state) = (Arc::new(Switches::default()), Arc::default());
        let mut threads = Vec::new();
        for socket in sockets {
            let (switches, state) = (Arc::clone(&switches), Arc::clone(&state));
            threads.push(std::thread::spawn(move || shard(&socket, &switches, &state)));
        }
        let info = BoxInfo {
            version: "model".into(),
            protocol: gradbox_protocol::VERSION,
            addresses: vec![ip],
            port_base,
            shards,
            chunk_bytes: CHUNK,
            mtu: 1500,
            port: "udp".into(),
            mode: "udp".into(),
            transmit: "socket".into(),
        };
        let (s, st) = (Arc::clone(&switches), Arc::clone(&state));
        threads.push(std::thread::spawn(move || {
            for stream in listener.incoming() {
                if s.stop.load(SeqCst) {
                    break;
                }
                http(stream.unwrap(), &info, &s, &st);
            }
        }));
        Self { control, switches, state, threads }
    }

    /// Gives all ranks other cookies, as a newer generation would.
    pub(crate) fn replace_generation(&self) {
        let mut state = self.state.lock().unwrap();
        state.model.as_mut().unwrap().cookies.iter_mut().for_each(|c| *c += 1000);
    }

    pub(crate) fn left(&self) -> Vec<u8> {
        self.state.lock().unwrap().left.clone()
    }

    pub(crate) fn duplicates(&self) -> u64 {
        self.state.lock().unwrap().model.as_ref().unwrap().duplicates
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.switches.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.control);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sockets with consecutive ports.
fn consecutive(ip: IpAddr, shards: u16) -> (Vec<UdpSocket>, u16) {
    for _ in 0..1000 {
        let first = UdpSocket::bind((ip, 0)).unwrap();
        let base = first.local_addr().unwrap().port();
        let Some(end) = base.checked_add(shards) else { continue };
        let others = (base + 1..end).map(|port| UdpSocket::bind((ip, port)));
        if let Ok(others) = others.collect::<Result<Vec<_>, _>>() {
            let sockets: Vec<_> = std::iter::once(first).chain(others).collect();
            for socket in &sockets {
                socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                let wanted = 8 << 20;
                socket2::SockRef::from(socket).set_recv_buffer_size(wanted).unwrap();
            }
            return (sockets, base);
        }
    }
    panic!("no {shards} free ports in a row");
}

fn shard(socket: &UdpSocket, switches: &Switches, state: &Mutex<State>) {
    let mut buffer = [0; 9216];
    let mut count = 0u64;
    while !switches.stop.load(SeqCst) {
        let Ok((len, _)) = socket.recv_from(&mut buffer) else { continue };
        let lossy = switches.lossy.load(SeqCst);
        let mut lose = || {
            count += 1;
            lossy && count.is_multiple_of(10)
        };
        if switches.deaf.load(SeqCst) || lose() {
            continue;
        }
        let mut state = state.lock().unwrap();
        let State { joined, model: Some(model), .. } = &mut *state else { continue };
        for (rank, packet) in model.receive(&buffer[..len], false) {
            if !lose() {
                // A full buffer at the worker is loss like any other.
                let _ = socket.send_to(&packet, joined[&rank].address);
            }
        }
    }
}

fn http(stream: TcpStream, info: &BoxInfo, switches: &Switches, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
            break;
        }
        if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        } else if line.to_ascii_lowercase().starts_with("transfer-encoding:") {
            panic!("the client sends a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let path = first.split(' ').nth(1).unwrap_or("");
    let (status, answer) = match path.rsplit('/').next().unwrap_or("") {
        "box" => (200, serde_json::to_string(info).unwrap()),
        "join" if switches.full.load(SeqCst) => {
            let refusal = Refusal {
                error: "too_large".into(),
                message: "the job does not fit: lower its tensors or free other jobs".into(),
                needed_bytes: Some(9000),
                available_bytes: Some(4000),
            };
            (503, serde_json::to_string(&refusal).unwrap())
        }
        "join" => join(serde_json::from_slice(&body).unwrap(), info, &mut state.lock().unwrap()),
        "leave" => {
            let request: LeaveRequest = serde_json::from_slice(&body).unwrap();
            let mut state = state.lock().unwrap();
            assert_eq!(state.joined[&request.rank].instance, request.instance);
            state.left.push(request.rank);
            (200, "{}".into())
        }
        _ => (404, "{}".into()),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let _ = reader.get_mut().write_all((head + &answer).as_bytes());
}

fn join(request: JoinRequest, info: &BoxInfo, state: &mut State) -> (u16, String) {
    let (rank, world, dtype, op) = (request.rank, request.world, request.dtype, request.op);
    let sizes: Vec<u64> = request.tensors.iter().map(|t| t.elements).collect();
    state.joined.insert(rank, request);
    let missing: Vec<u8> = (0..world).filter(|r| !state.joined.contains_key(r)).collect();
    if !missing.is_empty() {
        return (202, serde_json::to_string(&Waiting { missing }).unwrap());
    }
    let model = state.model.get_or_insert_with(|| {
        let layout = Layout::new(dtype, sizes, info.chunk_bytes, info.shards).unwrap();
        Model::new(dtype, op, world, layout, CREDIT)
    });
    let joined = Joined {
        job: JOB,
        generation: 1,
        cookie: model.cookies[usize::from(rank)],
        address: info.addresses[0],
        port_base: info.port_base,
        shards: info.shards,
        chunk_bytes: info.chunk_bytes,
        credit: CREDIT,
        group: None,
    };
    (200, serde_json::to_string(&joined).unwrap())
}
