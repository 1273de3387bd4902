//! The load: ranks that have joined, whose packets the kernel makes, and a look at the answers.

use super::{PORT_BASE, Place, Settings, WireError};
use crate::bench::bpf;
use crate::bench::generator::{self, Counts, Generator, Replies, Samples, Watch, Worker};
use crate::bench::network::{BOX_ADDRESS, worker_address};
use crate::bench::running::RunningBox;
use crate::sum;
use gradbox_protocol::bench::LEAD;
use gradbox_protocol::control::{JoinRequest, TensorEntry};
use gradbox_protocol::envelope::Envelope;
use gradbox_protocol::{Header, Kind, Op, Reply, chunk_bytes};
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// UDP port of every rank.
const WORKER_PORT: u16 = 40_000;
/// Turns of the generator in one call: long ones cost least.
const TURNS: u32 = 500_000;
/// Silence after which packets in flight are written off.
const STALL: Duration = Duration::from_millis(20);
/// Longest wait for the generator's thread to start or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running load.
pub(super) struct Load {
    watch: Watch,
    samples: Samples,
    expected: Vec<u8>,
    checked: u64,
    wrong: u64,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), bpf::Error>>>,
}

impl Load {
    /// Joins all ranks to `running` and starts sending.
    pub(super) fn start(
        settings: &Settings,
        place: &Place,
        running: &RunningBox,
        chunks: u32,
    ) -> Result<Self, WireError> {
        let workers = usize::from(settings.workers);
        let payload = chunk_bytes(usize::from(settings.mtu)).map_or(0, usize::from);
        let elements = u64::from(chunks) * (payload / settings.dtype.size()) as u64;
        let at = |rank: u8| SocketAddrV4::new(worker_address(rank), WORKER_PORT);
        let requests: Vec<JoinRequest> = (0..settings.workers)
            .map(|rank| JoinRequest {
                rank,
                world: settings.workers,
                dtype: settings.dtype,
                op: Op::Sum,
                reply: settings.reply,
                token: None,
                instance: u64::from(rank) + 1,
                address: at(rank).into(),
                tensors: vec![TensorEntry { name: "bench".to_owned(), elements }],
            })
            .collect();
        let joined = running.join(place.boxes(), "bench", &requests)?;

        let body = values(payload, 0);
        let mut payloads = Vec::with_capacity(workers);
        let mut ranks = Vec::with_capacity(workers);
        for (rank, joined) in (0..settings.workers).zip(&joined) {
            let mut lead = [0; LEAD];
            lead.copy_from_slice(&values(LEAD, usize::from(rank) + 1));
            let mut payload = body.clone();
            payload[..LEAD].copy_from_slice(&lead);
            payloads.push(payload);
            ranks.push(Worker { address: at(rank), cookie: joined.cookie, lead });
        }
        let inputs: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let mut expected = vec![0; payload];
        sum::reference(settings.dtype, Op::Sum, &inputs, &mut expected);

        let job = joined.first().map_or(0, |j| j.job);
        let window = settings.window.min(chunks * u32::from(settings.workers) / 2).max(1);
        let (cpu, reply, sample_every) = (settings.load_cpu, settings.reply, settings.sample_every);
        let (link, interface) = (place.link(), place.load_interface().to_owned());
        let end = Arc::new(AtomicBool::new(false));
        let stop = end.clone();
        let (loaded, ready) = mpsc::channel();
        let work = move || {
            core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
            let settings = generator::Settings {
                interface: &interface,
                link,
                to: SocketAddrV4::new(BOX_ADDRESS, PORT_BASE),
                shards: 1,
                job,
                workers: &ranks,
                chunks,
                payload: &body,
                window,
                replies: match reply {
                    Reply::Unicast => Replies::Each,
                    Reply::Multicast => Replies::One,
                },
                stall: STALL,
                sample_every,
            };
            let mut generator: Generator = match Generator::load(&settings) {
                Ok((generator, watch, samples)) => {
                    // A receiver that is gone has given up.
                    let _ = loaded.send(Ok((watch, samples)));
                    generator
                }
                Err(error) => {
                    let _ = loaded.send(Err(error));
                    return Ok(());
                }
            };
            while !stop.load(Ordering::Relaxed) {
                generator.run(TURNS)?;
            }
            Ok(())
        };
        let spawn = || thread::Builder::new().name("load".to_owned()).spawn(work);
        let spawned = place.workers().run(spawn).map_err(super::PlaceError::from)?;
        let thread = spawned.map_err(WireError::Thread)?;
        let (watch, samples) = ready
            .recv_timeout(PATIENCE)
            .map_err(|e| WireError::Thread(std::io::Error::other(e)))??;
        let thread = Some(thread);
        Ok(Self { watch, samples, expected, checked: 0, wrong: 0, end, thread })
    }

    pub(super) fn counts(&self) -> Result<Counts, bpf::Error> {
        self.watch.counts()
    }

    /// Compares the RESULTs that were handed out since the last look with the reference.
    pub(super) fn check(&mut self) {
        let (expected, mut checked, mut wrong) = (&self.expected, 0, 0);
        self.samples.drain(|packet| {
            checked += 1;
            wrong += u64::from(!is_right(packet, expected));
        });
        self.checked += checked;
        self.wrong += wrong;
    }

    /// Stops sending, and tells how many results were compared and how many were wrong.
    pub(super) fn stop(&mut self) -> Result<(u64, u64), WireError> {
        self.check();
        self.end.store(true, Ordering::Relaxed);
        self.watch.stop()?;
        if let Some(thread) = self.thread.take() {
            let deadline = Instant::now() + PATIENCE;
            while !thread.is_finished() {
                if Instant::now() > deadline {
                    let late = format!("the load has not ended after {PATIENCE:?}");
                    return Err(WireError::Thread(std::io::Error::other(late)));
                }
                thread::sleep(Duration::from_millis(1));
            }
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok((self.checked, self.wrong))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // Where this fails, the thread still ends after its turns.
        let _ = self.watch.stop();
    }
}

/// Whether a packet is a RESULT with these bytes.
fn is_right(packet: &[u8], expected: &[u8]) -> bool {
    let Some(envelope) = Envelope::parse(packet) else { return false };
    let datagram = &packet[envelope.payload()..envelope.payload() + envelope.len()];
    let parsed = Header::parse(datagram);
    parsed.is_some_and(|(h, body)| h.kind() == Some(Kind::Result) && body == expected)
}

/// Numbers whose sums depend on every bit, of ordinary size in every type.
fn values(len: usize, seed: usize) -> Vec<u8> {
    (0..len / 2)
        .flat_map(|i| (0x3c00 | ((i * 37 + seed * 101) & 0x3ff) as u16).to_le_bytes())
        .collect()
}
