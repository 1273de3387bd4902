//! The whole box: cores, ports, XDP program and control plane, started and stopped in order.
//!
//! Start: attach the program, bind one socket per queue, show them to the program, start the
//! cores, then the control plane. Stop: the control plane, the cores, then detach, then the
//! sockets, then the memory; so no packet meets a thing that is half gone. None of what comes after
//! the sockets needs a capability.

mod answers;
mod interface;
mod summary;

pub use interface::InterfaceError;
pub use summary::{CoreSummary, Summary};

use crate::config::{Attach, Config, Idle, PortConfig, Transmit, UdpChecksum, XdpMode};
use crate::control::{self, OpenSources, ServeError, Server, Sources, SourcesError};
use crate::dataplane::core::Core;
use crate::dataplane::counters::Reading;
use crate::dataplane::faults::{Faults, FaultyPort};
use crate::dataplane::handle::CoreHandle;
use crate::dataplane::pool::Pool;
use crate::dataplane::port::Port;
use crate::dataplane::steer::Steering;
use crate::dataplane::udp::{UdpError, UdpPort};
use crate::dataplane::umem::{Umem, UmemError};
use crate::privileges::{self, DropError};
use crate::xdp::program::{self, Program};
use crate::xdp::socket::{self, Wanted, XdpPort};
use gradbox_protocol::VERSION;
use gradbox_protocol::control::BoxInfo;
use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Idle steps before a core that may sleep does so.
const STEPS_BEFORE_SLEEP: u32 = 100;

/// Longest sleep of a core: commands and a late wake-up wait that long at most.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);

/// Longest wait for a core's thread to end; one step takes microseconds.
const LONGEST_STOP: Duration = Duration::from_secs(5);

/// Why the box does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The interface is not what the configuration says.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The XDP program.
    #[error(transparent)]
    Program(#[from] program::Error),
    /// An AF_XDP socket.
    #[error(transparent)]
    Socket(#[from] socket::Error),
    /// A UDP socket.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// Memory for the `udp` port.
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// The control plane.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A core's thread.
    #[error("cannot start the thread of core {shard}: {source}")]
    Thread {
        /// Shard of that core.
        shard: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// Capabilities that cannot be dropped.
    #[error(transparent)]
    Privileges(#[from] DropError),
    /// No event descriptors.
    #[error("cannot make event descriptors: {0}; raise the limit on open files (ulimit -n)")]
    Events(#[source] std::io::Error),
    /// More frames than one UMEM can have.
    #[error(
        "{frames} frames per core: a core can have {} at most; lower data.frames or \
         data.memory_mib, or use more queues",
        crate::dataplane::frame::MAX_FRAMES
    )]
    Frames {
        /// Frames asked for.
        frames: u64,
    },
}

/// A core's thread when it has ended: its numbers, and its port, which is still open.
struct Ended {
    summary: CoreSummary,
    port: Box<dyn Any + Send>,
}

/// A core's thread.
struct CoreThread {
    handle: CoreHandle,
    thread: JoinHandle<Ended>,
}

/// The box, running. Stop it with [`stop`](Self::stop).
pub struct Appliance {
    info: BoxInfo,
    server: Server,
    cores: Vec<CoreThread>,
    started: Instant,
}

/// The allow-list of the XDP program.
impl Sources for Program {
    fn allow(&mut self, ip: IpAddr) -> Result<(), SourcesError> {
        Ok(Self::allow(self, ip)?)
    }

    fn revoke(&mut self, ip: IpAddr) -> Result<(), SourcesError> {
        Ok(Self::revoke(self, ip)?)
    }

    fn counters(&self) -> Result<Vec<(&'static str, u64)>, SourcesError> {
        Ok(Self::counters(self)?)
    }
}

/// What becomes of the capabilities of the thread that starts the box, and of the box's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// They stay: for a process that does more than run the box.
    Keep,
    /// All are dropped once the sockets are bound, before any thread of the box is started.
    Drop,
}

/// What starting the ports gave.
struct Ports {
    cores: Vec<CoreThread>,
    sources: Box<dyn Sources + Send>,
    addresses: Vec<IpAddr>,
    port: &'static str,
    mode: &'static str,
    transmit: Transmit,
}

impl Appliance {
    /// Starts everything that `config` asks for. When it returns, the box serves.
    ///
    /// # Errors
    /// Where something cannot be had, or `privileges` cannot be dropped; nothing stays behind.
    pub fn start(config: &Config, privileges: Privileges) -> Result<Self, StartError> {
        if let Some(faults) = config.faults.filter(Faults::any) {
            warn!(?faults, "the fault injector is on: packets are lost, doubled and reordered");
        }
        let ports = match &config.data.port {
            PortConfig::Xdp { interface, mode, attach, transmit } => {
                start_xdp(config, interface, (*mode, *attach), *transmit, privileges)?
            }
            PortConfig::Udp => start_udp(config, privileges)?,
        };
        let info = BoxInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: VERSION,
            addresses: ports.addresses,
            port_base: config.data.port_base,
            shards: config.data.queues,
            chunk_bytes: config.data.chunk_bytes,
            mtu: config.data.mtu,
            port: ports.port.to_owned(),
            mode: ports.mode.to_owned(),
            transmit: ports.transmit.name().to_owned(),
        };
        let handles = ports.cores.iter().map(|c| c.handle.clone()).collect();
        let server = match control::serve(config, info.clone(), handles, ports.sources) {
            Ok(server) => server,
            Err(error) => {
                end(ports.cores);
                return Err(error.into());
            }
        };
        Ok(Self { info, server, cores: ports.cores, started: Instant::now() })
    }

    /// What the box tells workers before they join.
    #[must_use]
    pub const fn info(&self) -> &BoxInfo {
        &self.info
    }

    /// Where the control plane listens.
    #[must_use]
    pub const fn control(&self) -> SocketAddr {
        self.server.address()
    }

    /// What each core shows, by shard.
    pub fn readings(&self) -> impl Iterator<Item = Reading> + '_ {
        self.cores.iter().map(|c| c.handle.shown.read())
    }

    /// Stops everything, in order, and tells what was done.
    #[must_use]
    pub fn stop(self) -> Summary {
        let uptime = self.started.elapsed();
        let sources = self.server.stop();
        let ended = end(self.cores);
        let verdicts = sources.as_ref().and_then(|s| s.counters().ok()).unwrap_or_default();
        // Detaches the program.
        drop(sources);
        let mut cores = Vec::new();
        for core in ended {
            cores.push(core.summary);
            // Closes the socket and frees the memory.
            drop(core.port);
        }
        Summary { uptime, cores, verdicts }
    }
}

/// Stops cores and waits for their threads, for a bounded time.
fn end(cores: Vec<CoreThread>) -> Vec<Ended> {
    for core in &cores {
        core.handle.stop();
    }
    let deadline = Instant::now() + LONGEST_STOP;
    let mut ended = Vec::new();
    for core in cores {
        while !core.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if !core.thread.is_finished() {
            warn!(shard = core.handle.shard, "the core does not stop; its port stays open");
            continue;
        }
        match core.thread.join() {
            Ok(end) => ended.push(end),
            Err(_) => warn!(shard = core.handle.shard, "the core had panicked"),
        }
    }
    ended
}

/// Frames per core, whole huge pages where those are asked for.
fn frames(config: &Config) -> Result<u32, StartError> {
    let mut frames = config.frames_per_core();
    if config.data.huge_pages {
        frames = frames.next_multiple_of((2 << 20) / u64::from(config.frame_bytes()));
    }
    u32::try_from(frames)
        .ok()
        .filter(|&f| f <= crate::dataplane::frame::MAX_FRAMES)
        .ok_or(StartError::Frames { frames })
}

/// The program, one AF_XDP socket per queue, and their cores.
fn start_xdp(
    config: &Config,
    name: &str,
    (mode, attach): (XdpMode, Attach),
    transmit: Transmit,
    privileges: Privileges,
) -> Result<Ports, StartError> {
    let data = &config.data;
    interface::check(name, data.mtu, data.queues)?;
    let addresses = if data.addresses.is_empty() {
        interface::addresses(name)?
    } else {
        data.addresses.clone()
    };
    let mut program = Program::load(
        name,
        &program::Settings {
            port_base: data.port_base,
            port_count: data.queues,
            mode: match attach {
                Attach::Driver => program::Mode::Driver,
                Attach::Skb => program::Mode::Skb,
            },
        },
    )?;
    interface::wait_for_carrier(name)?;
    let mut bound = Vec::new();
    for queue in 0..u32::from(data.queues) {
        let (port, pool) = XdpPort::bind(&socket::Settings {
            interface: name.to_owned(),
            queue,
            wanted: match mode {
                XdpMode::Auto => Wanted::Auto,
                XdpMode::Zerocopy => Wanted::ZeroCopy,
                XdpMode::Copy => Wanted::Copy,
            },
            frames: frames(config)?,
            frame_bytes: config.frame_bytes(),
            rx: data.rings.rx,
            tx: data.rings.tx,
            fill: data.rings.fill,
            completion: data.rings.completion,
            huge_pages: data.huge_pages,
        })?;
        program.set_socket(queue, port.socket())?;
        info!(interface = name, queue, mode = %port.mode(), "AF_XDP socket bound");
        if let Some(reason) = port.refused() {
            warn!(interface = name, queue, reason, "the driver refused zero-copy: copy it is");
        }
        bound.push((port, pool));
    }
    let mode = if bound.iter().all(|(port, _)| port.mode() == socket::Mode::ZeroCopy) {
        socket::Mode::ZeroCopy
    } else {
        socket::Mode::Copy
    };
    if mode == socket::Mode::ZeroCopy {
        interface::check_room(name, data.mtu, data.frame_bytes)?;
    }
    let transmit = match answers::senders(data, name, &addresses, mode, transmit)? {
        None => Transmit::Ring,
        Some(senders) => {
            let with = bound.into_iter().zip(senders);
            bound = with.map(|((port, pool), s)| (port.with_sender(s), pool)).collect();
            Transmit::Socket
        }
    };
    let (sources, mode) = (Box::new(program), mode.name());
    let cores = start_cores(config, bound, privileges)?;
    Ok(Ports { cores, sources, addresses, port: "xdp", mode, transmit })
}

/// One set of UDP sockets per shard, and their cores.
fn start_udp(config: &Config, privileges: Privileges) -> Result<Ports, StartError> {
    let data = &config.data;
    let addresses = if data.addresses.is_empty() {
        vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]
    } else {
        data.addresses.clone()
    };
    let mut bound = Vec::new();
    for shard in 0..data.queues {
        let (umem, all) = Umem::new(frames(config)?, config.frame_bytes() as usize)?;
        let ends: Vec<_> =
            addresses.iter().map(|&ip| SocketAddr::new(ip, data.port_base + shard)).collect();
        bound.push((UdpPort::new(umem, &ends)?, Pool::new(all)));
    }
    let (sources, transmit) = (Box::new(OpenSources), Transmit::Socket);
    let cores = start_cores(config, bound, privileges)?;
    Ok(Ports { cores, sources, addresses, port: "udp", mode: "udp", transmit })
}

/// A thread for each port, in order of shard, with as many privileges as are to be kept.
fn start_cores<P: Port + Send + 'static>(
    config: &Config,
    ports: Vec<(P, Pool)>,
    privileges: Privileges,
) -> Result<Vec<CoreThread>, StartError> {
    if privileges == Privileges::Drop {
        let dropped = privileges::drop_all()?.join(" ");
        let dropped = if dropped.is_empty() { "none was held" } else { &dropped };
        info!(dropped, "the box has no capabilities any more, and can get none");
    }
    let mut cores: Vec<CoreThread> = Vec::new();
    let steering = Steering::new(ports.len() as u16).map_err(StartError::Events)?;
    for (shard, ((port, pool), steering)) in (0u16..).zip(ports.into_iter().zip(steering)) {
        let cpu = config.data.cpus.get(usize::from(shard)).copied();
        let capacity = config.job_frames_per_core();
        let frame_bytes = u64::from(config.frame_bytes());
        let (handle, link) = CoreHandle::new(shard, cpu, capacity, frame_bytes);
        let full_checksum = config.data.udp_checksum == UdpChecksum::Full;
        let core = Core::new(shard, pool, steering, link, full_checksum);
        let idle = config.data.idle;
        let work: Box<dyn FnOnce() -> Ended + Send> = match config.faults {
            Some(faults) if faults.any() => {
                let port = FaultyPort::new(port, faults, shard);
                Box::new(move || run_core(core, port, shard, cpu, idle))
            }
            _ => Box::new(move || run_core(core, port, shard, cpu, idle)),
        };
        match thread::Builder::new().name(format!("core-{shard}")).spawn(work) {
            Ok(thread) => cores.push(CoreThread { handle, thread }),
            Err(source) => {
                end(cores);
                return Err(StartError::Thread { shard, source });
            }
        }
    }
    Ok(cores)
}

/// The life of a core: step after step until it is told to stop.
fn run_core<P: Port + Send + 'static>(
    mut core: Core,
    mut port: P,
    shard: u16,
    cpu: Option<usize>,
    idle: Idle,
) -> Ended {
    if let Some(id) = cpu
        && !core_affinity::set_for_current(core_affinity::CoreId { id })
    {
        warn!(shard, cpu = id, "cannot pin the core: does that CPU exist, and is it allowed?");
    }
    let started = Instant::now();
    let mut idle_steps = 0u32;
    let mut before = started;
    while !core.stopped() {
        // The clock wraps after 71 minutes; only differences count.
        let now_us = before.duration_since(started).as_micros() as u32;
        let on_the_way = port.lent().tx;
        let worked = core.step(&mut port, now_us);
        let after = Instant::now();
        // Sending what was gathered is work, too, and so is taking back what was sent.
        if worked > 0 || port.lent().tx < on_the_way {
            core.add_busy((after - before).as_nanos() as u64);
            idle_steps = 0;
        } else {
            idle_steps = idle_steps.saturating_add(1);
        }
        before = after;
        if idle == Idle::Poll && idle_steps > STEPS_BEFORE_SLEEP && core.backlog() == 0 {
            core.sleep(&mut port, LONGEST_SLEEP);
            before = Instant::now();
        }
    }
    core.close(&port);
    let summary = CoreSummary::of(&core, &port, shard, cpu, started.elapsed());
    Ended { summary, port: Box::new(port) }
}
