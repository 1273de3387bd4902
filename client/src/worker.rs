//! What a training loop calls.

use crate::control::Control;
use crate::engine::{Config, Engine};
use crate::error::Error;
use crate::handle::{Handle, IDLE, Shared};
use crate::io::{Command, Io, lock};
use crate::options::Options;
use crate::path;
use crate::socket;
use crate::stats::{Report, Stats};
use crate::tensor::Tensor;
use crate::transport::Transport;
use gradbox_protocol::control::{BoxInfo, Group, JoinRequest, Joined, LeaveRequest, TensorEntry};
use gradbox_protocol::layout::Layout;
use gradbox_protocol::{ErrorCode, HEADER_LEN, Header, Kind, MAX_WORLD, Reply};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A worker that has joined a job. Calls may come from several threads. Dropping it leaves the job;
/// other ranks can still fetch their results from the box.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    control: Control,
    farewell: Option<LeaveRequest>,
    info: BoxInfo,
    joined: Joined,
    local: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// A random number: the standard library seeds its hash tables from the system.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn check(options: &Options) -> Result<(), Error> {
    let world = usize::from(options.world);
    if world == 0 || world > MAX_WORLD {
        let found = world.to_string();
        return Err(Error::Option { option: "world", found, needs: "1 to 32 workers" });
    }
    if options.rank >= options.world {
        let found = format!("{} of {world}", options.rank);
        return Err(Error::Option { option: "rank", found, needs: "a rank below world" });
    }
    Ok(())
}

/// The group that the box gave, where one was asked for.
fn group(control: &str, reply: Reply, group: Option<Group>) -> Result<Option<Group>, Error> {
    let wrong = |what: String| {
        let reason = format!("it was asked for reply = multicast, and answered {what}");
        Err(Error::Control { control: control.into(), reason })
    };
    match (reply, group) {
        (Reply::Unicast, _) => Ok(None),
        (Reply::Multicast, None) => wrong("without a group".into()),
        (Reply::Multicast, Some(g)) if !g.address.ip().is_multicast() => {
            wrong(format!("with the group {}, which is no multicast address", g.address))
        }
        (Reply::Multicast, group) => Ok(group),
    }
}

impl Worker {
    /// Joins the job, waits for the other ranks and checks that UDP reaches the box.
    ///
    /// # Errors
    /// Where an option is out of range, the box cannot be reached or refuses, ranks are missing
    /// after `join_timeout`, UDP does not get through, or the kernel grants no socket or thread.
    pub fn join(options: Options) -> Result<Self, Error> {
        check(&options)?;
        let control = Control::new(&options.control, &options.job)?;
        let info = control.info()?;
        let data = control.data_address(&info)?;
        let socket = socket::bind(data, options.bind)?;
        let refused = |doing: &str, e: std::io::Error| Error::Socket {
            doing: doing.into(),
            reason: e.to_string(),
        };
        let local = socket.local_addr().map_err(|e| refused("reading the local address", e))?;
        let instance = (random() & ((1 << 53) - 1)).max(1);
        let request = JoinRequest {
            rank: options.rank,
            world: options.world,
            dtype: options.wire_dtype,
            op: options.op,
            reply: options.reply,
            token: options.token,
            instance,
            address: local,
            tensors: options.tensors,
        };
        // What the box cannot lay out it need not be asked about.
        let sizes = |table: &[TensorEntry]| table.iter().map(|t| t.elements).collect::<Vec<_>>();
        let sizes = sizes(&request.tensors);
        Layout::new(request.dtype, sizes.iter().copied(), info.chunk_bytes, info.shards)?;
        let joined = control.join(&request, options.join_timeout)?;
        // From here on, whatever fails, the box is told that this rank is gone.
        let farewell = LeaveRequest { rank: options.rank, instance };
        let start = || {
            let (bytes, shards) = (joined.chunk_bytes, joined.shards);
            let layout = Layout::new(request.dtype, sizes.iter().copied(), bytes, shards)?;
            let data = SocketAddr::new(joined.address, joined.port_base);
            if data.is_ipv4() != local.is_ipv4() {
                return Err(Error::Control {
                    control: options.control.clone(),
                    reason: format!("the box moved from {} to {data} during join", local.ip()),
                });
            }
            let datagram = HEADER_LEN + usize::from(bytes);
            let buffer = options.receive_buffer;
            let (mut transport, receive_packets) =
                Transport::new(socket, data.ip(), data.port(), shards, buffer, datagram)?;
            let group = group(&options.control, request.reply, joined.group)?;
            let receive_packets = match group {
                Some(g) => {
                    let more = transport.listen(g.address, local.ip(), buffer, datagram)?;
                    receive_packets.min(more)
                }
                None => receive_packets,
            };
            let mut ping = Header::new(Kind::Ping);
            ping.job = joined.job.into();
            ping.rank = options.rank;
            ping.cookie = joined.cookie.into();
            path::check(&mut transport, ping, shards, data, &options.control)?;
            let engine = Engine::new(Config {
                job: joined.job,
                rank: options.rank,
                cookie: joined.cookie,
                layout,
                credit: joined.credit,
                group_cookie: group.map(|g| g.cookie),
                receive_packets,
                stamp_base: random() >> 2,
            });
            let (wake, woken) = UnixStream::pair().map_err(|e| refused("opening a pipe", e))?;
            for end in [&wake, &woken] {
                end.set_nonblocking(true).map_err(|e| refused("opening a pipe", e))?;
            }
            let (commands, receiver) = channel();
            let stats = Arc::new(Mutex::new(Stats::default()));
            let states: Arc<[AtomicU8]> =
                request.tensors.iter().map(|_| AtomicU8::new(IDLE)).collect();
            let (job, rank) = (options.job.clone(), options.rank);
            let rejection = move |code: ErrorCode| Error::Rejected { job: job.clone(), rank, code };
            let io = Io {
                engine,
                transport,
                commands: receiver,
                wake: woken,
                stats: Arc::clone(&stats),
                states: Arc::clone(&states),
                slots: HashMap::new(),
                rejection: Box::new(rejection),
                broken: None,
                silent_group: group.map(|g| g.address),
            };
            let thread = std::thread::Builder::new().name(format!("gradbox-io-{rank}"));
            let thread =
                thread.spawn(move || io.run()).map_err(|e| refused("starting a thread", e))?;
            let shared = Shared {
                job: options.job,
                wire: request.dtype,
                timeout: options.timeout,
                states,
                table: request.tensors,
                commands,
                wake,
                next_call: AtomicU64::new(0),
                stats,
                data,
            };
            Ok((Arc::new(shared), thread))
        };
        match start() {
            Ok((shared, thread)) => Ok(Self {
                shared,
                control,
                farewell: Some(farewell),
                info,
                joined,
                local,
                thread: Some(thread),
            }),
            Err(error) => {
                if let Err(error) = control.leave(&farewell) {
                    tracing::debug!(%error, "leave after a failed join");
                }
                Err(error)
            }
        }
    }

    /// What the box said of itself before join.
    #[must_use]
    pub const fn box_info(&self) -> &BoxInfo {
        &self.info
    }

    /// What the box answered to join.
    #[must_use]
    pub const fn joined(&self) -> &Joined {
        &self.joined
    }

    /// Address and port that this worker's packets come from.
    #[must_use]
    pub const fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Counters since join.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }

    /// All-reduces one tensor for each entry of the table, in order, and waits: at most `timeout`,
    /// by default the options'. The sums are in place of the inputs.
    ///
    /// # Errors
    /// Where the tensors are not as in the table or in flight, the box refuses this worker, or time
    /// runs out; the error then says who is waited for. The tensors are handed back in any case,
    /// but after an error their contents are a mixture of inputs and sums.
    pub fn all_reduce(
        &self,
        tensors: &mut [Tensor],
        timeout: Option<Duration>,
    ) -> Result<Report, Error> {
        if tensors.len() != self.shared.table.len() {
            let (found, needs) = (tensors.len(), self.shared.table.len());
            return Err(Error::TensorCount { found, needs });
        }
        self.shared.check(tensors.iter().enumerate())?;
        let owned = tensors.iter_mut().map(std::mem::take).enumerate().collect();
        let put_back = |owned: Vec<(usize, Tensor)>, tensors: &mut [Tensor]| {
            for (index, tensor) in owned {
                tensors[index] = tensor;
            }
        };
        let mut handle = match self.shared.start(owned) {
            Ok(handle) => handle,
            Err(failed) => {
                let (error, owned) = *failed;
                put_back(owned, tensors);
                return Err(error);
            }
        };
        match handle.wait(timeout) {
            Ok(finished) => {
                put_back(finished.tensors, tensors);
                Ok(finished.report)
            }
            Err(error) => {
                put_back(handle.cancel(), tensors);
                Err(error)
            }
        }
    }

    /// Begins to all-reduce `tensors`, pairs of place in the table and data, in that order. Several
    /// calls may be outstanding; their chunks are sent in order of the calls. All ranks must reduce
    /// each tensor equally often, in whatever order.
    ///
    /// # Errors
    /// Where a tensor is not as in the table or in flight, or the I/O thread has ended. The tensors
    /// are dropped then.
    pub fn all_reduce_async(&self, tensors: Vec<(usize, Tensor)>) -> Result<Handle, Error> {
        self.shared.check(tensors.iter().map(|(index, tensor)| (*index, tensor)))?;
        self.shared.start(tensors).map_err(|failed| failed.0)
    }

    /// Leaves the job. Calls that have not ended are given up.
    ///
    /// # Errors
    /// Where the box cannot be reached within half a second; it finds out by itself.
    pub fn leave(mut self) -> Result<(), Error> {
        self.stop();
        self.farewell.take().map_or(Ok(()), |request| self.control.leave(&request))
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Both fail only where the thread has ended already.
            let _ = self.shared.command(Command::Stop);
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        if let Some(request) = self.farewell.take()
            && let Err(error) = self.control.leave(&request)
        {
            tracing::debug!(%error, "leave");
        }
    }
}
