//! The same through xsk-rs's accessors, on a real AF_XDP socket over a veth pair in a network
//! namespace of this thread's own. The kernel's part (sending, in copy mode) is not timed.
#![expect(unsafe_code, reason = "xsk-rs's accessors are unsafe: frames must not be used twice")]

use crate::ring::{Cost, SIZE, Samples};
use nix::sched::{CloneFlags, unshare};
use std::num::NonZeroU32;
use std::process::Command;
use std::time::{Duration, Instant};
use xsk_rs::config::{
    BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig,
};
use xsk_rs::{CompQueue, FrameDesc, Socket, TxQueue, Umem};

/// How long the kernel may take to send the packets of a sample.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a packet: the shortest that Ethernet has.
const PACKET: usize = 60;

/// Why this cannot be measured here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No network namespace.
    #[error("no network namespace: {0}: needs root")]
    Namespace(#[from] nix::Error),
    /// No veth pair.
    #[error("`ip {command}`: {reason}")]
    Interface {
        /// Arguments.
        command: String,
        /// What it said.
        reason: String,
    },
    /// No AF_XDP socket.
    #[error("no AF_XDP socket: {0}")]
    Socket(String),
    /// The kernel did not send everything in time.
    #[error("the kernel completed {0} of {SIZE} packets")]
    Stuck(usize),
}

/// Puts [`SIZE`] descriptors through the TX ring and takes as many from the completion ring, for
/// each of `batches` at a time, `samples` times.
///
/// # Errors
/// Where the kernel refuses namespace, interface or socket.
///
/// # Panics
/// Where a frame comes back that was not sent.
pub fn measure(batches: &[u32], samples: usize) -> Result<Vec<Cost>, Error> {
    let measure = || {
        let mut bench = Bench::new()?;
        batches.iter().map(|&batch| bench.measure(batch as usize, samples)).collect()
    };
    // The namespace ends with its thread.
    std::thread::scope(|s| s.spawn(measure).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

struct Bench {
    tx: TxQueue,
    completion: CompQueue,
    descs: Vec<FrameDesc>,
}

impl Bench {
    fn new() -> Result<Self, Error> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        for command in
            ["link add ring0 type veth peer name ring1", "link set ring0 up", "link set ring1 up"]
        {
            ip(command)?;
        }
        let (tx, completion, descs) = socket().map_err(|e| Error::Socket(e.to_string()))?;
        Ok(Self { tx, completion, descs })
    }

    fn measure(&mut self, batch: usize, samples: usize) -> Result<Cost, Error> {
        let mut all = Samples::default();
        for _ in 0..samples {
            all.add(self.sample(batch)?);
        }
        Ok(all.cost())
    }

    fn sample(&mut self, batch: usize) -> Result<(Duration, Duration), Error> {
        let start = Instant::now();
        for descs in self.descs.chunks(batch) {
            // SAFETY: the descriptors are of this socket's UMEM, and all of them came back from
            // the completion ring since they were used last.
            let taken = unsafe { self.tx.produce(descs) };
            assert_eq!(taken, descs.len(), "there was room");
        }
        let produce = start.elapsed();
        self.send_all()?;
        let mut back = self.descs.clone();
        let start = Instant::now();
        for descs in back.chunks_mut(batch) {
            // SAFETY: the frames that come back are of the UMEM of `descs`.
            let taken = unsafe { self.completion.consume(descs) };
            assert_eq!(taken, descs.len(), "all were sent");
        }
        let consume = start.elapsed();
        for (back, sent) in back.iter().zip(&self.descs) {
            assert_eq!(back.addr(), sent.addr(), "the kernel completes in order");
        }
        Ok((produce, consume))
    }

    /// Lets the kernel send until everything is complete.
    fn send_all(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let complete = self.completion.nb_avail_exact() as usize;
            if complete == SIZE as usize {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Stuck(complete));
            }
            // 32 packets a call in copy mode, then EAGAIN: that is normal.
            let _ = self.tx.wakeup();
        }
    }
}

/// Runs `ip` in this thread's namespace.
fn ip(command: &str) -> Result<(), Error> {
    let failed = |reason| Error::Interface { command: command.to_owned(), reason };
    let out =
        Command::new("ip").args(command.split(' ')).output().map_err(|e| failed(e.to_string()))?;
    if out.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned()))
}

/// A socket in copy mode with a packet in each of [`SIZE`] frames.
fn socket() -> Result<(TxQueue, CompQueue, Vec<FrameDesc>), Box<dyn std::error::Error>> {
    let size = QueueSize::new(SIZE)?;
    let config = UmemConfig::builder()
        .frame_size(FrameSize::new(2048)?)
        .fill_queue_size(size)
        .comp_queue_size(size)
        .build()?;
    let count = NonZeroU32::new(SIZE).unwrap_or(NonZeroU32::MIN);
    let (umem, mut descs) = Umem::new(config, count, false)?;
    for desc in &mut descs {
        // SAFETY: a frame of this UMEM, which nobody else uses yet.
        let mut data = unsafe { umem.data_mut(desc) };
        data.cursor().set_pos(PACKET);
        // To nobody, and of an EtherType for experiments (IEEE 802): the peer drops it.
        data.contents_mut()[..PACKET].fill(0);
        data.contents_mut()[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    }
    let config = SocketConfig::builder()
        .rx_queue_size(size)
        .tx_queue_size(size)
        .bind_flags(BindFlags::XDP_COPY)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .build();
    let name: Interface = "ring0".parse()?;
    // SAFETY: the only socket of this UMEM.
    let (tx, _rx, queues) = unsafe { Socket::new(config, &umem, &name, 0) }?;
    let (_fill, completion) = queues.ok_or("the socket has no fill and completion rings")?;
    Ok((tx, completion, descs))
}
