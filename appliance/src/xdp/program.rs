//! The XDP program in the kernel: loading, attaching, its socket map, allow-list and counters.
//!
//! Nothing is pinned, and the attachment is a BPF link: when the process ends, however it ends,
//! the kernel closes the link and the interface is as it was.

mod error;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap as BpfHashMap, Map, MapData, PerCpuArray, XskMap},
    programs::{TestRun, TestRunOptions, Xdp, links::FdLink, xdp::XdpMode},
};
use gradbox_protocol::verdict::Verdict;

pub use error::Error;
use error::{attach_error, errno, refused};

/// Built by `xdp-redirect/rebuild.sh`, which CI compares with the source.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!("../../../xdp-redirect/object/xdp-redirect.bpf.o");

/// Names in the object (`xdp-redirect/src/main.rs`).
const PROGRAM: &str = "gradbox_redirect";
const SOCKETS: &str = "SOCKETS";
const SOURCES: &str = "SOURCES";
const COUNTERS: &str = "COUNTERS";
const PORT_BASE: &str = "PORT_BASE";
const PORT_COUNT: &str = "PORT_COUNT";

/// How long an interface that a dying process still holds is waited for (15-22 ms were seen).
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Where in the kernel the program runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// In the driver, before the kernel makes an skb. Needs a driver with native XDP.
    #[default]
    Driver,
    /// In the network stack ("generic"): any interface, several times slower, never zero-copy.
    Skb,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "driver",
            Self::Skb => "skb",
        })
    }
}

/// What the program needs to know before it is loaded; fixed from then on.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// UDP port of shard 0.
    pub port_base: u16,
    /// Number of shards, one port each. At least 1; the last port is at most 65535.
    pub port_count: u16,
    /// Where to run. Never changed silently: if this mode is not possible, attaching fails.
    pub mode: Mode,
}

/// What [`Program::run`] found.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The action that the program returned (`enum xdp_action`, linux/bpf.h).
    pub action: u32,
    /// Mean time of one run.
    pub time: Duration,
}

/// The loaded XDP program. Dropping it detaches and unloads it.
pub struct Program {
    // First, so that it is dropped first: packets stop before the maps go.
    link: Option<FdLink>,
    ebpf: Ebpf,
    sockets: XskMap<MapData>,
    sources: BpfHashMap<MapData, [u8; 16], u8>,
    counters: PerCpuArray<MapData, u64>,
    /// How often each address is allowed: jobs share workers' addresses.
    allowed: HashMap<[u8; 16], u32>,
}

impl Program {
    /// Loads the program and attaches it to `interface` (of the calling thread's network
    /// namespace).
    ///
    /// Until a queue has a socket its packets go on to the kernel; until a source is allowed its
    /// Gradbox packets are dropped.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`attach`](Self::attach). Nothing stays attached.
    pub fn load(interface: &str, settings: &Settings) -> Result<Self, Error> {
        let mut program = Self::open(settings)?;
        program.attach(interface, settings.mode)?;
        Ok(program)
    }

    /// Loads the program through the verifier without attaching it.
    ///
    /// # Errors
    ///
    /// [`Error::Ports`], [`Error::Permission`], [`Error::Refused`] or [`Error::Object`].
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let Settings { port_base: base, port_count: count, mode: _ } = *settings;
        if count == 0 || base.checked_add(count - 1).is_none() {
            return Err(Error::Ports { base, count });
        }
        let mut ebpf = EbpfLoader::new()
            .override_global(PORT_BASE, &base, true)
            .override_global(PORT_COUNT, &count, true)
            .load(OBJECT)
            .map_err(|error| refused("creating the XDP program's maps", error))?;
        xdp(&mut ebpf)?.load().map_err(|error| refused("loading the XDP program", error))?;
        Ok(Self {
            link: None,
            sockets: take(&mut ebpf, SOCKETS)?,
            sources: take(&mut ebpf, SOURCES)?,
            counters: take(&mut ebpf, COUNTERS)?,
            ebpf,
            allowed: HashMap::new(),
        })
    }

    /// Attaches the loaded program to `interface`, in place of any attachment of this one before.
    ///
    /// Some drivers reset the link for it: wait for the carrier before sending. An interface that
    /// is busy is tried again for a second: a killed process holds it a little longer than it lives.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterface`], [`Error::Permission`], [`Error::Busy`], [`Error::Unsupported`],
    /// [`Error::NoLink`] or [`Error::Attach`].
    pub fn attach(&mut self, interface: &str, mode: Mode) -> Result<(), Error> {
        self.detach();
        // A name with a zero byte names nothing, and aya panics on it.
        if interface.contains('\0') {
            return Err(Error::NoInterface { interface: interface.into() });
        }
        let started = Instant::now();
        loop {
            match attach_link(xdp(&mut self.ebpf)?, interface, mode) {
                Err(Error::Busy { .. }) if started.elapsed() < BUSY_WAIT => {
                    thread::sleep(Duration::from_millis(10));
                }
                attached => {
                    self.link = Some(attached?);
                    return Ok(());
                }
            }
        }
    }

    /// Detaches: packets go to the kernel from now on. Counters stay readable.
    pub fn detach(&mut self) {
        // Closing the link's descriptor detaches; that cannot fail.
        self.link = None;
    }

    /// Gives the packets of receive `queue` to `socket`, an AF_XDP one.
    ///
    /// The kernel takes the socket out again when it is closed.
    ///
    /// # Errors
    ///
    /// [`Error::Queue`] or [`Error::Socket`].
    pub fn set_socket(&mut self, queue: u32, socket: impl AsFd) -> Result<(), Error> {
        let limit = self.sockets.len();
        if queue >= limit {
            return Err(Error::Queue { queue, limit });
        }
        self.sockets
            .set(queue, socket.as_fd().as_raw_fd(), 0)
            .map_err(|source| Error::Socket { queue, source })
    }

    /// Lets Gradbox packets from `address` in. Calls add up: it takes as many
    /// [`revoke`](Self::revoke)s to shut it out again.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] or [`Error::Map`]; the call then does not count.
    pub fn allow(&mut self, address: IpAddr) -> Result<(), Error> {
        let held = self.allowed.len();
        match self.allowed.entry(key(address)) {
            Entry::Occupied(mut count) => *count.get_mut() += 1,
            Entry::Vacant(vacant) => {
                self.sources.insert(vacant.key(), 0, 0).map_err(|source| {
                    if errno(&source) == Some(libc::E2BIG) {
                        Error::Full { address, held }
                    } else {
                        Error::Map { doing: "adding to the XDP program's allow-list", source }
                    }
                })?;
                vacant.insert(1);
            }
        }
        Ok(())
    }

    /// Takes back one [`allow`](Self::allow) of `address`; with the last one its packets are
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::NotAllowed`] or [`Error::Map`]; the call then does not count.
    pub fn revoke(&mut self, address: IpAddr) -> Result<(), Error> {
        let Entry::Occupied(mut count) = self.allowed.entry(key(address)) else {
            return Err(Error::NotAllowed { address });
        };
        if *count.get() > 1 {
            *count.get_mut() -= 1;
            return Ok(());
        }
        self.sources.remove(count.key()).map_err(|source| Error::Map {
            doing: "removing from the XDP program's allow-list",
            source,
        })?;
        count.remove();
        Ok(())
    }

    /// Packets by verdict since the program was loaded, summed over the CPUs, in the order of
    /// [`Verdict::ALL`].
    ///
    /// # Errors
    ///
    /// [`Error::Map`].
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        let read = |verdict: &Verdict| {
            let of_cpus = self.counters.get(&(*verdict as u32), 0).map_err(|source| {
                Error::Map { doing: "reading the XDP program's counters", source }
            })?;
            Ok((verdict.name(), of_cpus.iter().sum()))
        };
        Verdict::ALL.iter().map(read).collect()
    }

    /// Runs the program `repeat` times on `packet` without a network (BPF_PROG_TEST_RUN), as if it
    /// came in on queue 0. It counts, but nothing is delivered.
    ///
    /// # Errors
    ///
    /// [`Error::Object`] or [`Error::Run`].
    pub fn run(&self, packet: &[u8], repeat: u32) -> Result<Run, Error> {
        let program = self.ebpf.program(PROGRAM).and_then(|program| program.try_into().ok());
        let xdp: &Xdp = program.ok_or(Error::Object { kind: "program", name: PROGRAM })?;
        let options = TestRunOptions { data_in: Some(packet), repeat, ..Default::default() };
        let result =
            xdp.test_run(options).map_err(|source| Error::Run { len: packet.len(), source })?;
        Ok(Run { action: result.return_value, time: result.duration })
    }
}

/// The only place that calls aya's `attach`, whose signature changes with its versions.
fn attach_link(xdp: &mut Xdp, interface: &str, mode: Mode) -> Result<FdLink, Error> {
    let flag = match mode {
        Mode::Driver => XdpMode::Driver,
        Mode::Skb => XdpMode::Skb,
    };
    let attached = xdp.attach(interface, flag).and_then(|id| xdp.take_link(id));
    let link = attached.map_err(|source| attach_error(interface.into(), mode, source))?;
    // On EINVAL aya tries netlink, whose attachment outlives a killed process. The conversion
    // fails for such a one, and dropping it detaches.
    FdLink::try_from(link).map_err(|_| Error::NoLink { interface: interface.into() })
}

fn xdp(ebpf: &mut Ebpf) -> Result<&mut Xdp, Error> {
    ebpf.program_mut(PROGRAM)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::Object { kind: "program", name: PROGRAM })
}

/// Moves a map out of the object, as the type that the program gave it.
fn take<T: TryFrom<Map>>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, Error> {
    ebpf.take_map(name)
        .and_then(|map| map.try_into().ok())
        .ok_or(Error::Object { kind: "map", name })
}

/// Key of the allow-list: IPv4 as `::ffff:a.b.c.d`, as the program does.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
