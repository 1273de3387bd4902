//! A network of its own for the real box and real workers: namespaces behind a bridge, as in
//! `scripts/demo.sh`, or loopback.
//!
//! ```text
//! w0 --- eth0 ---+
//! w1 --- eth0 ---+--- bridge (sw) --- box0 --- box
//! x  --- eth0 ---+            (x: anybody else)
//! ```
//!
//! Labs have names by process and number, exist one at a time, and vanish when dropped, also in a
//! panic. The program under test is `$GRADBOX_BIN`, or else `gradbox` in the directory that cargo
//! built this test into (`cargo test --workspace` puts it there, as does `cargo build`).
//!
//! * [`appliance`]: the box
//! * [`http`]: requests to its control plane
//! * [`job`][]: workers
//! * [`process`]: programs that end with the test
//! * [`raw`]: any Ethernet frame at all

pub mod appliance;
pub mod http;
pub mod job;
pub mod process;
pub mod raw;

use nix::sched::{CloneFlags, setns};
use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, thread};

/// Labs would disturb each other's timing.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Labs so far.
static LABS: AtomicU32 = AtomicU32::new(0);

/// What a lab has.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Hosts for workers, `w0` and on.
    pub workers: u8,
    /// Queues of the box's interface.
    pub queues: u16,
    /// MTU of all interfaces.
    pub mtu: u16,
}

/// The network. Its parts go when it is dropped.
pub struct Lab {
    /// Prefix of the namespaces' names; none on loopback.
    net: Option<String>,
    /// Files of this lab.
    dir: PathBuf,
    /// Hosts for workers.
    workers: u8,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    /// Namespaces; `None`, and a line that says so, without root.
    ///
    /// # Panics
    /// Where the network cannot be made.
    #[must_use]
    pub fn new(shape: Shape) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let mut lab = Self::empty(shape.workers);
        let net = format!("gbt{}-{}", id(), LABS.load(Ordering::Relaxed));
        lab.net = Some(net);
        lab.namespace("sw");
        let mtu = shape.mtu.to_string();
        lab.ip("sw", &["link", "add", "br0", "mtu", &mtu, "type", "bridge"]);
        lab.ip("sw", &["link", "set", "br0", "up"]);
        lab.host("box", "box0", 1, shape.queues, &mtu);
        for rank in 0..shape.workers {
            lab.host(&format!("w{rank}"), "eth0", rank + 10, 1, &mtu);
        }
        lab.host("x", "eth0", 200, 1, &mtu);
        Some(lab)
    }

    /// No namespaces and no privileges: box and workers on loopback.
    #[must_use]
    pub fn loopback() -> Self {
        Self::empty(1)
    }

    fn empty(workers: u8) -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let number = LABS.fetch_add(1, Ordering::Relaxed) + 1;
        let dir = env::temp_dir().join(format!("gradbox-lab-{}-{number}", id()));
        fs::create_dir_all(&dir).expect("a directory for the lab");
        Self { net: None, dir, workers, _alone: alone }
    }

    /// Whether everything is on loopback.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        self.net.is_none()
    }

    /// A file of this lab.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Address of the box.
    #[must_use]
    pub const fn box_ip(&self) -> &'static str {
        if self.is_loopback() { "127.0.0.1" } else { "10.77.0.1" }
    }

    /// Host of a rank; ranks share hosts where there are not enough.
    #[must_use]
    pub fn worker(&self, rank: u8) -> String {
        format!("w{}", rank % self.workers)
    }

    /// `program` as a command on `host`.
    #[must_use]
    pub fn command(&self, host: &str, program: &Path) -> Command {
        match &self.net {
            None => Command::new(program),
            // Becomes the program, so that the process id is the program's.
            Some(net) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &format!("{net}-{host}")]).arg(program);
                command
            }
        }
    }

    /// What a short command on `host` printed.
    ///
    /// # Panics
    /// Where it fails.
    #[must_use]
    pub fn output(&self, host: &str, program: &str, args: &[&str]) -> String {
        run(self.command(host, Path::new(program)).args(args))
    }

    /// Does something in a thread that lives on `host`; sockets made there stay there.
    ///
    /// # Panics
    /// Where the namespace is gone, or `work` panics.
    pub fn within<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            if let Some(net) = &self.net {
                let file = File::open(format!("/run/netns/{net}-{host}")).expect("a namespace");
                setns(file, CloneFlags::CLONE_NEWNET).expect("entering a namespace");
            }
            work()
        };
        let done = thread::scope(|s| s.spawn(enter).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Whether an XDP program is on the box's interface.
    #[must_use]
    pub fn has_xdp(&self) -> bool {
        self.output("box", "ip", &["-d", "link", "show", "dev", "box0"]).contains("prog/xdp")
    }

    /// The first of `count` UDP ports in a row that are free on loopback.
    fn free_ports(count: u16) -> u16 {
        let free = |port| UdpSocket::bind(("127.0.0.1", port));
        (0..100)
            .find_map(|_| {
                let first = free(0).ok()?.local_addr().ok()?.port();
                let last = first.checked_add(count)?;
                (first..last).all(|port| free(port).is_ok()).then_some(first)
            })
            .expect("free ports")
    }

    fn namespace(&self, host: &str) {
        let net = self.net.as_deref().unwrap_or_default();
        run(Command::new("ip").args(["netns", "add", &format!("{net}-{host}")]));
    }

    fn ip(&self, host: &str, args: &[&str]) {
        let net = self.net.as_deref().unwrap_or_default();
        run(Command::new("ip").args(["-n", &format!("{net}-{host}")]).args(args));
    }

    /// A host with the interface `name` and the addresses of `number`.
    fn host(&self, host: &str, name: &str, number: u8, queues: u16, mtu: &str) {
        self.namespace(host);
        let net = self.net.as_deref().unwrap_or_default();
        let peer = format!("{net}-{host}");
        let queues = queues.to_string();
        let many = ["numtxqueues", &queues, "numrxqueues", &queues];
        let mut args = vec!["link", "add", host, "mtu", mtu];
        args.extend(many);
        args.extend(["type", "veth", "peer", "name", name, "netns", &peer, "mtu", mtu]);
        args.extend(many);
        self.ip("sw", &args);
        self.ip("sw", &["link", "set", host, "master", "br0", "up"]);
        self.ip(host, &["address", "add", &format!("10.77.0.{number}/24"), "dev", name]);
        let v6 = format!("fd77::{number:x}/64");
        self.ip(host, &["address", "add", &v6, "dev", name, "nodad"]);
        self.ip(host, &["link", "set", "lo", "up"]);
        self.ip(host, &["link", "set", name, "up"]);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(net) = &self.net {
            let hosts = (0..self.workers).map(|rank| format!("w{rank}"));
            for host in hosts.chain(["sw", "box", "x"].map(str::to_owned)) {
                // A lab that failed half-way has not all of them.
                let name = format!("{net}-{host}");
                let _ = Command::new("ip").args(["netns", "del", &name]).output();
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Output of a command that has to succeed.
fn run(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {error}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The program under test.
///
/// # Panics
/// Where it is not built.
#[must_use]
pub fn gradbox() -> PathBuf {
    let named = env::var_os("GRADBOX_BIN").map(PathBuf::from);
    // target/PROFILE/deps/TEST
    let own = env::current_exe().expect("the path of this test");
    let beside = own.parent().and_then(Path::parent).map(|dir| dir.join("gradbox"));
    let path = named.or(beside).unwrap_or_default();
    let shown = path.display();
    assert!(path.exists(), "{shown} is missing: cargo build -p gradbox, or set GRADBOX_BIN");
    path
}

/// A file of the repository.
#[must_use]
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
