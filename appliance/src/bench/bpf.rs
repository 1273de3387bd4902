//! What the loaders of the bench's BPF objects have in common.

use std::time::Duration;

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapError},
    programs::{ProgramError, TestRun, TestRunOptions, Xdp, xdp::XdpMode},
};

/// Why a BPF program of the bench could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings that make no sense.
    #[error("{field} is {found}, needed: {needed}")]
    Setting {
        /// The field.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        needed: String,
    },
    /// The kernel refused a map or a program.
    #[error(
        "{doing}: {source}; needed: root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and Linux 6.6 or newer"
    )]
    Refused {
        /// What was done.
        doing: &'static str,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The committed object lacks something: it is not the one of this source.
    #[error("the BPF object has no {kind} '{name}'; run xdp-redirect/rebuild.sh")]
    Object {
        /// `map` or `program`.
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// A map could not be read or written.
    #[error("{doing}: {source}")]
    Map {
        /// What was done.
        doing: &'static str,
        /// Why not.
        source: MapError,
    },
    /// There is no such interface in the network namespace of this thread.
    #[error("no interface '{interface}' in this network namespace")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// A test run failed.
    #[error("running a BPF program on a packet of {len} bytes: {source}")]
    Run {
        /// Bytes of the packet.
        len: usize,
        /// Why.
        source: ProgramError,
    },
    /// The kernel keeps programs from live frames: some that are hardened do, whoever asks.
    #[error(
        "this kernel refuses to run BPF programs on live frames ({source}), which the load is made \
         with; needed: CAP_NET_ADMIN and CAP_BPF, and a kernel that is not hardened against it: \
         measure on another machine (`gradbox bench path` and `replay` need no such load)"
    )]
    LiveFrames {
        /// What it said.
        source: std::io::Error,
    },
    /// The aggregator in the kernel did not do what it was measured for.
    #[error("the aggregator in the kernel: {what}")]
    Wrong {
        /// What it did, and what it should have.
        what: String,
    },
}

impl Error {
    /// A setting out of its range.
    pub(super) fn setting(
        field: &'static str,
        found: impl ToString,
        needed: impl Into<String>,
    ) -> Self {
        Self::Setting { field, found: found.to_string(), needed: needed.into() }
    }
}

/// For `map_err`: a map that could not be read or written while `doing` something.
pub(super) fn map(doing: &'static str) -> impl FnOnce(MapError) -> Error {
    move |source| Error::Map { doing, source }
}

/// Loads an object's maps.
pub(super) fn open(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, Error> {
    loader.load(object).map_err(|source: EbpfError| Error::Refused {
        doing: "creating the bench's BPF maps",
        source: source.into(),
    })
}

/// For `map_err`: a program that the kernel refused.
pub(super) fn refused(doing: &'static str) -> impl FnOnce(ProgramError) -> Error {
    move |source| Error::Refused { doing, source: source.into() }
}

/// Moves a map out of the object, as the type that the program gave it.
pub(super) fn take<T: TryFrom<Map>>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, Error> {
    ebpf.take_map(name)
        .and_then(|map| map.try_into().ok())
        .ok_or(Error::Object { kind: "map", name })
}

fn xdp_mut<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Xdp, Error> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::Object { kind: "program", name })
}

/// Loads the XDP program of this name through the verifier.
pub(super) fn load_xdp(ebpf: &mut Ebpf, name: &'static str) -> Result<(), Error> {
    xdp_mut(ebpf, name)?.load().map_err(refused("loading an XDP program of the bench"))
}

/// Attaches the loaded XDP program of this name, in the driver, for as long as the object lives.
pub(super) fn attach_xdp(
    ebpf: &mut Ebpf,
    name: &'static str,
    interface: &str,
) -> Result<(), Error> {
    interface_index(interface)?;
    xdp_mut(ebpf, name)?
        .attach(interface, XdpMode::Driver)
        .map(drop)
        .map_err(refused("attaching an XDP program of the bench"))
}

/// Number of an interface of the calling thread's network namespace.
pub(super) fn interface_index(interface: &str) -> Result<u32, Error> {
    nix::net::if_::if_nametoindex(interface)
        .map_err(|_| Error::NoInterface { interface: interface.into() })
}

/// The loaded XDP program of this name.
pub(super) fn xdp<'a>(ebpf: &'a Ebpf, name: &'static str) -> Result<&'a Xdp, Error> {
    ebpf.program(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::Object { kind: "program", name })
}

/// What a program did with one packet.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What it returned (`enum xdp_action` or `TC_ACT_*`, linux/bpf.h and linux/pkt_cls.h).
    pub action: u32,
    /// The packet as it left it.
    pub packet: Vec<u8>,
}

/// Runs a program once on `packet`, without a network.
pub(super) fn run_once<P>(program: &P, packet: &[u8]) -> Result<Ran, Error>
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = aya::programs::TestRunResult>,
{
    let mut out = vec![0; packet.len()];
    let options =
        TestRunOptions { data_in: Some(packet), data_out: Some(&mut out), ..Default::default() };
    let result =
        program.test_run(options).map_err(|source| Error::Run { len: packet.len(), source })?;
    out.truncate(result.data_size_out as usize);
    Ok(Ran { action: result.return_value, packet: out })
}

/// Runs an XDP program `repeat` times on `packet`, without a network: the mean time of a run, in
/// whole nanoseconds, rounded down by the kernel.
pub(super) fn run_timed(xdp: &Xdp, packet: &[u8], repeat: u32) -> Result<Duration, Error> {
    let options = TestRunOptions { data_in: Some(packet), repeat, ..Default::default() };
    let result =
        xdp.test_run(options).map_err(|source| Error::Run { len: packet.len(), source })?;
    Ok(result.duration)
}
