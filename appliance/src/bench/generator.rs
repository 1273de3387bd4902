//! The load generator: packets of all ranks of a job, made in the kernel and sent without an skb, and
//! the sink that takes the answers and closes the loop (`xdp-generate`).
//!
//! The generator deals packets chunk by chunk, and of a chunk rank by rank. It sends no more than a
//! window of unanswered packets. A chunk goes on to its next round when the sink has seen the RESULT of
//! the present one, so what was lost is sent again on the next pass over the chunks, as a worker would
//! do it. Where nothing is answered for some time, what is in flight is written off, and it goes on.
//!
//! All frames of a run go to one receive queue of the peer: with veth, that of the CPU that runs it.

mod counts;
mod samples;

use std::net::SocketAddrV4;
use std::time::Duration;

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData},
    programs::{
        ProgramError, SchedClassifier, TcAttachType, TestRun, TestRunAttrs, TestRunOptions,
        links::LinkOrder,
        tc::{SchedClassifierLink, TcAttachOptions},
    },
};
use gradbox_protocol::{
    HEADER_LEN, Header, Kind, MAX_WORLD,
    bench::{HEAD_LEN, HEAD_WORDS, LEAD},
    envelope::{self, Link, SHORTEST},
};
use zerocopy::IntoBytes;

use super::bpf::{self, Error, Ran};

pub use counts::{Counts, Watch};
pub use samples::Samples;

/// Built by `xdp-redirect/rebuild.sh`, which CI compares with the source.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!("../../../xdp-redirect/object/xdp-generate.bpf.o");

/// Names in the object (`xdp-redirect/src/generate/`).
const GENERATE: &str = "gradbox_generate";
const SINK: &str = "gradbox_sink";

/// Most shards, whose answers the generator adds up for each packet.
const MAX_SHARDS: u16 = 64;
/// Longest payload: a live frame lies in one page, with the kernel's own data before and behind it.
pub const MAX_PAYLOAD: usize = 3328;
/// Frames that the kernel hands on at a time; what NAPI takes, too.
const BATCH: u32 = 64;

/// One rank.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Address and port that it joined with.
    pub address: SocketAddrV4,
    /// Its cookie.
    pub cookie: u32,
    /// What its payloads begin with.
    pub lead: [u8; LEAD],
}

/// How the box answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replies {
    /// A RESULT to each rank; the last rank's says that a chunk is done.
    Each,
    /// One RESULT for all, to a multicast group.
    One,
}

/// What is to be sent, and where.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// The sender's interface, whose peer is the box's. In the network namespace of the thread that
    /// loads and runs.
    pub interface: &'a str,
    /// Ethernet addresses, from the workers to the box. No VLAN.
    pub link: Link,
    /// Address of the box and port of its first shard.
    pub to: SocketAddrV4,
    /// Number of shards, 1 to 64; the ports follow each other.
    pub shards: u16,
    /// Id of the job.
    pub job: u16,
    /// Its ranks in order, 1 to 32.
    pub workers: &'a [Worker],
    /// Chunks of its first tensor, all of one length; at least as many as shards.
    pub chunks: u32,
    /// What every packet carries behind its rank's lead; the first 64 bytes are not used. 64 to
    /// [`MAX_PAYLOAD`] bytes.
    pub payload: &'a [u8],
    /// Most packets in flight: at least 1, at most the world's for one shard's chunks, for else a slow
    /// shard would be sent what it still has to answer.
    pub window: u32,
    /// How the box answers.
    pub replies: Replies,
    /// Without an answer for so long, what is in flight is written off. A few milliseconds.
    pub stall: Duration,
    /// Of how many RESULTs one is handed out whole; 0: none.
    pub sample_every: u64,
}

/// The generator, loaded, with its sink on the interface. Dropping it takes the sink off.
pub struct Generator {
    // First, so that it goes before the maps that it uses.
    _sink: SchedClassifierLink,
    ebpf: Ebpf,
    frame: Vec<u8>,
    interface: u32,
}

impl Generator {
    /// Loads generator and sink, and attaches the sink to the interface (of the calling thread's
    /// network namespace). The [`Watch`] and the [`Samples`] are for other threads.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::NoInterface`], [`Error::Refused`], [`Error::Object`] or
    /// [`Error::Map`]. Nothing stays attached.
    pub fn load(settings: &Settings<'_>) -> Result<(Self, Watch, Samples), Error> {
        check(settings)?;
        let name = settings.interface;
        let interface = bpf::interface_index(name)?;
        let world = settings.workers.len() as u32;
        let shards = u32::from(settings.shards);
        let (port, window) = (settings.to.port(), u64::from(settings.window));
        let one_reply = u32::from(settings.replies == Replies::One);
        let stall = u64::try_from(settings.stall.as_nanos()).unwrap_or(u64::MAX);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("WORLD", &world, true)
            .override_global("CHUNK_COUNT", &settings.chunks, true)
            .override_global("PORT_BASE", &port, true)
            .override_global("SHARDS", &shards, true)
            .override_global("WINDOW", &window, true)
            .override_global("STALL", &stall, true)
            .override_global("JOB", &settings.job, true)
            .override_global("ONE_REPLY", &one_reply, true)
            .override_global("SAMPLE_EVERY", &settings.sample_every, true)
            .map_max_entries("CHUNKS", settings.chunks)
            .map_max_entries("ANSWERED", shards);
        let mut ebpf = bpf::open(&mut loader, OBJECT)?;
        bpf::load_xdp(&mut ebpf, GENERATE)?;
        let mut heads: Array<MapData, [u64; HEAD_WORDS]> = bpf::take(&mut ebpf, "HEADS")?;
        for rank in 0..world {
            let mut words = [0_u64; HEAD_WORDS];
            words.as_mut_bytes()[..HEAD_LEN].copy_from_slice(&frame(settings, rank)[..HEAD_LEN]);
            heads
                .set(rank, words, 0)
                .map_err(bpf::map("telling the load generator about a rank"))?;
        }
        let watch = Watch::new(&mut ebpf)?;
        let samples = Samples::new(bpf::take(&mut ebpf, "SAMPLES")?);
        let sink = attach_sink(&mut ebpf, name)?;
        let generator = Self { _sink: sink, ebpf, frame: frame(settings, 0), interface };
        Ok((generator, watch, samples))
    }

    /// Has the generator run `turns` times, each of which sends a packet or, where the window is full,
    /// polls. Returns when all have been used up, which takes 200 to 1000 ns each, and after
    /// [`Watch::stop`] about 120 ns: 500000 turns end within some 60 ms then. A signal ends it early.
    ///
    /// Each call has the kernel build and free a pool of pages: few calls of many turns are better.
    ///
    /// # Errors
    /// [`Error::LiveFrames`], [`Error::Run`] or [`Error::Object`].
    pub fn run(&mut self, turns: u32) -> Result<(), Error> {
        // struct xdp_md (linux/bpf.h): data, data_end, data_meta, ingress_ifindex, rx_queue_index,
        // egress_ifindex.
        let context = [0, self.frame.len() as u32, 0, self.interface, 0, 0];
        let options = TestRunOptions {
            data_in: Some(&self.frame),
            ctx_in: Some(context.as_bytes()),
            repeat: turns,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..Default::default()
        };
        match bpf::xdp(&self.ebpf, GENERATE)?.test_run(options) {
            Ok(_) => Ok(()),
            Err(ProgramError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::EINTR) =>
            {
                Ok(())
            }
            Err(ProgramError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::EPERM) =>
            {
                Err(Error::LiveFrames { source: error.io_error })
            }
            Err(source) => Err(Error::Run { len: self.frame.len(), source }),
        }
    }

    /// One turn, whose packet is handed out instead of being sent.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn turn(&mut self) -> Result<Ran, Error> {
        bpf::run_once(bpf::xdp(&self.ebpf, GENERATE)?, &self.frame)
    }

    /// Gives the sink a packet, as if it had come from the box.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn sink(&self, packet: &[u8]) -> Result<Ran, Error> {
        let program = self.ebpf.program(SINK).and_then(|program| program.try_into().ok());
        let sink: &SchedClassifier =
            program.ok_or(Error::Object { kind: "program", name: SINK })?;
        bpf::run_once(sink, packet)
    }
}

/// Whether the settings make sense.
fn check(settings: &Settings<'_>) -> Result<(), Error> {
    let Settings { shards, chunks, window, .. } = *settings;
    let world = settings.workers.len();
    if world == 0 || world > MAX_WORLD {
        return Err(Error::setting("workers", world, "1 to 32"));
    }
    if shards == 0 || shards > MAX_SHARDS || settings.to.port().checked_add(shards - 1).is_none() {
        return Err(Error::setting("shards", shards, "1 to 64, and no port above 65535"));
    }
    if chunks < u32::from(shards) {
        return Err(Error::setting("chunks", chunks, format!("at least {shards}, one a shard")));
    }
    let most = u64::from(chunks / u32::from(shards)) * world as u64;
    if window == 0 || u64::from(window) > most {
        return Err(Error::setting("window", window, format!("1 to {most} packets")));
    }
    let payload = settings.payload.len();
    if !(LEAD..=MAX_PAYLOAD).contains(&payload) {
        return Err(Error::setting("payload", payload, format!("{LEAD} to {MAX_PAYLOAD} bytes")));
    }
    if settings.link.vlan.is_some() {
        return Err(Error::setting("link", "with a VLAN tag", "none"));
    }
    Ok(())
}

/// The packet of a rank for chunk 0, in round 0.
fn frame(settings: &Settings<'_>, rank: u32) -> Vec<u8> {
    let worker = &settings.workers[rank as usize];
    let len = HEADER_LEN + settings.payload.len();
    let mut packet = vec![0; SHORTEST + len];
    let ends = (worker.address.into(), settings.to.into());
    let written = envelope::write(&mut packet, &settings.link, ends.0, ends.1, len);
    debug_assert!(written.is_some(), "two IPv4 addresses, and room for the packet");
    let mut header = Header::new(Kind::Push);
    header.job = settings.job.into();
    header.rank = rank as u8;
    header.cookie = worker.cookie.into();
    header.length = (settings.payload.len() as u16).into();
    let (head, payload) = packet.split_at_mut(SHORTEST + HEADER_LEN);
    head[SHORTEST..].copy_from_slice(header.as_bytes());
    payload.copy_from_slice(settings.payload);
    payload[..LEAD].copy_from_slice(&worker.lead);
    packet
}

/// Loads the sink and attaches it behind whatever else takes the interface's packets, by a link: it
/// goes with the process.
fn attach_sink(ebpf: &mut Ebpf, interface: &str) -> Result<SchedClassifierLink, Error> {
    let program = ebpf.program_mut(SINK).and_then(|program| program.try_into().ok());
    let sink: &mut SchedClassifier =
        program.ok_or(Error::Object { kind: "program", name: SINK })?;
    sink.load().map_err(bpf::refused("loading the sink of the load generator"))?;
    let order = TcAttachOptions::TcxOrder(LinkOrder::default());
    sink.attach_with_options(interface, TcAttachType::Ingress, order)
        .and_then(|id| sink.take_link(id))
        .map_err(bpf::refused("attaching the sink of the load generator"))
}
