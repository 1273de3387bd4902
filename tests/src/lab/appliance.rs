//! The real box in a lab.

use super::http;
use super::process::{Ended, Process, until};
use super::{Lab, gradbox};
use gradbox_protocol::control::Status;
use nix::sys::signal::Signal;
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

/// Boxes so far: each has files of its own.
static BOXES: AtomicU32 = AtomicU32::new(0);

/// How a box is configured.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// `xdp` or `udp`.
    pub port: &'static str,
    /// `auto`, `copy` or `zerocopy`; for `xdp` only.
    pub mode: &'static str,
    /// `auto`, `ring` or `socket`; for `xdp` only.
    pub transmit: &'static str,
    /// Queues and cores.
    pub queues: u16,
    /// MTU.
    pub mtu: u16,
    /// Shares of packets that the fault injector loses, doubles and delays.
    pub faults: Option<(f64, f64, f64)>,
    /// MiB of frames for each core.
    pub memory_mib: u32,
    /// Token that joins must bring.
    pub token: Option<&'static str>,
    /// Addresses of the data plane as a TOML list, where not all of the interface.
    pub addresses: Option<&'static str>,
}

impl Setup {
    /// AF_XDP in copy mode with one queue at MTU 1500; answers go by sockets.
    pub const XDP: Self = Self {
        port: "xdp",
        mode: "copy",
        transmit: "auto",
        queues: 1,
        mtu: 1500,
        faults: None,
        memory_mib: 64,
        token: None,
        addresses: None,
    };

    /// Ordinary sockets, likewise.
    pub const UDP: Self = Self { port: "udp", ..Self::XDP };

    /// The configuration file.
    #[must_use]
    pub fn toml(&self, lab: &Lab) -> String {
        let Self { port, mode, transmit, queues, mtu, memory_mib, .. } = self;
        let ip = lab.box_ip();
        // Everything is free in a namespace of one's own.
        let (control, base) = match lab.is_loopback() {
            true => (0, Lab::free_ports(*queues)),
            false => (9099, 9100),
        };
        // On all addresses of the box, so that IPv6 reaches the control plane too.
        let listen = if lab.is_loopback() { ip } else { "[::]" };
        let mut text = format!("[control]\nlisten = \"{listen}:{control}\"\n");
        if let Some(token) = self.token {
            let _ = writeln!(text, "token = \"{token}\"");
        }
        let _ = write!(
            text,
            "[data]\nport = \"{port}\"\nport_base = {base}\nqueues = {queues}\nmtu = {mtu}\n\
             memory_mib = {memory_mib}\nfill_ring = 4096\nrx_ring = 4096\ntx_ring = 4096\n\
             completion_ring = 4096\nidle = \"poll\"\n"
        );
        if *port == "xdp" {
            let _ = writeln!(
                text,
                "interface = \"box0\"\nmode = \"{mode}\"\ntransmit = \"{transmit}\""
            );
        }
        if let Some(list) = self.addresses {
            let _ = writeln!(text, "addresses = {list}");
        } else if *port == "udp" {
            let _ = writeln!(text, "addresses = [\"{ip}\"]");
        }
        if let Some((loss, duplicate, reorder)) = self.faults {
            let _ = write!(
                text,
                "[faults]\nloss = {loss:?}\nduplicate = {duplicate:?}\nreorder = {reorder:?}\nseed = 7\n"
            );
        }
        text
    }
}

/// A box that runs. Dropping it kills it.
pub struct TheBox<'a> {
    lab: &'a Lab,
    process: Process,
    /// HOST:PORT of its control plane over IPv4.
    pub control: String,
    /// Its line of readiness.
    pub ready: String,
}

impl<'a> TheBox<'a> {
    /// Starts a box and waits until it is ready.
    ///
    /// # Panics
    /// Where it does not become ready.
    #[must_use]
    pub fn start(lab: &'a Lab, setup: &Setup) -> Self {
        let mut process = Self::process(lab, setup);
        process.wait_for("READY");
        Self::ready(lab, process)
    }

    /// Starts a box that may refuse to.
    ///
    /// # Panics
    /// Where the program cannot be started.
    #[must_use]
    pub fn process(lab: &Lab, setup: &Setup) -> Process {
        let name = format!("box{}", BOXES.fetch_add(1, Ordering::Relaxed));
        let config = lab.file(&format!("{name}.toml"));
        fs::write(&config, setup.toml(lab)).expect("a configuration");
        let mut command = lab.command("box", &gradbox());
        Process::start(&name, command.arg("run").arg("--config").arg(config), &lab.dir)
    }

    /// A box that has said that it is ready, however it was started.
    ///
    /// # Panics
    /// Where it has not.
    #[must_use]
    pub fn ready(lab: &'a Lab, process: Process) -> Self {
        let out = process.out();
        let ready = out.lines().find(|l| l.starts_with("READY")).expect("READY").to_owned();
        let address = ready.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let port = address.and_then(|a| a.rsplit(':').next()).expect("a port in READY");
        let control = format!("{}:{port}", lab.box_ip());
        Self { lab, process, control, ready }
    }

    /// What `/v1/status` says.
    ///
    /// # Panics
    /// Where the box does not answer.
    #[must_use]
    pub fn status(&self) -> Status {
        let (code, body) = self.request("GET", "/v1/status", "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).expect("a status")
    }

    /// A request to its control plane from its own host: status code and body.
    ///
    /// # Panics
    /// Where the box does not answer.
    #[must_use]
    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.lab.within("box", || http::request(&self.control, method, path, body))
    }

    /// A counter of the cores, or of the XDP program: the sum over cores of the metric.
    ///
    /// # Panics
    /// Where there is no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let (_, text) = self.request("GET", "/metrics", "");
        let of_core = format!("gradbox_{name}_total{{core=");
        let of_xdp = format!("gradbox_xdp_packets_total{{verdict=\"{name}\"}}");
        let lines = text.lines().filter(|l| l.starts_with(&of_core) || l.starts_with(&of_xdp));
        let values: Vec<u64> = lines
            .map(|l| l.rsplit(' ').next().and_then(|v| v.parse().ok()).expect("a number"))
            .collect();
        assert!(!values.is_empty(), "no counter {name} in\n{text}");
        values.iter().sum()
    }

    /// Asserts that no frame is lost.
    ///
    /// # Panics
    /// Where one is.
    pub fn assert_balanced(&self) {
        for core in self.status().cores {
            let sum: u64 = core.frames.iter().map(|(_, n)| n).sum();
            assert_eq!(sum, core.frames_total, "{:?}", core.frames);
        }
    }

    /// Waits until no job is there and no slot holds a frame.
    ///
    /// # Panics
    /// Where that does not come about.
    pub fn assert_empty(&self) {
        let empty = |s: &Status| {
            let held = |c: &gradbox_protocol::control::CoreStatus| {
                c.frames.iter().any(|(state, n)| state == "slot" && *n > 0)
            };
            s.jobs.is_empty() && !s.cores.iter().any(held)
        };
        assert!(until(|| empty(&self.status())), "{:#?}", self.status());
    }

    /// The process, to be signalled.
    pub const fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Stops it with `signal`, and takes its exit.
    ///
    /// # Panics
    /// Where it does not end.
    #[must_use]
    pub fn stop(self, signal: Signal) -> Ended {
        self.process.signal(signal);
        self.process.end()
    }
}
