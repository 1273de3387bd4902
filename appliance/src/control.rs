//! The control plane: join, leave, status, health and metrics over HTTP/1.1 and JSON, in one
//! thread of its own. It shares no lock with the cores: commands and events go through queues,
//! and numbers are read from atomics.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/health` | 200 `{"state": "ready"}`, or 503 where a core takes no commands |
//! | `GET /v1/box` | 200 [`BoxInfo`] |
//! | `GET /v1/status` | 200 [`Status`] |
//! | `GET /metrics` | 200, OpenMetrics text |
//! | `GET /v1/capture` | 200, a stream of [records](crate::capture::record) |
//! | `POST /v1/jobs/NAME/join` | 200 [`Joined`], or 202 [`Waiting`]: ask again |
//! | `POST /v1/jobs/NAME/leave` | 200 `{}` |
//!
//! Everything else is answered with a [`Refusal`] and the status of [`Refused::status`]. A job that
//! does not fit into memory is 507, `too_large`, with the bytes.
//!
//! [`Status`]: gradbox_protocol::control::Status
//! [`Joined`]: gradbox_protocol::control::Joined
//! [`Waiting`]: gradbox_protocol::control::Waiting
//! [`Refusal`]: gradbox_protocol::control::Refusal
#![forbid(unsafe_code)]

mod capture;
mod cookies;
mod http;
mod metrics;
mod plane;
mod refused;
mod registry;
mod sources;

pub use refused::{MAX_BODY, Refused};
pub use registry::{Action, Answer, Registry, Settings};
pub use sources::{OpenSources, Sources, SourcesError};

use crate::config::Config;
use crate::dataplane::handle::CoreHandle;
use axum::serve::ListenerExt;
use cookies::Cookies;
use gradbox_protocol::control::BoxInfo;
use http::Shared;
use plane::Plane;
use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

/// Time between two looks at clock and cores.
const TICK: Duration = Duration::from_millis(50);

/// The same while a removed job's frames are waited for: the next generation waits with them.
const TICK_REMOVING: Duration = Duration::from_millis(5);

/// A peer that acknowledges nothing for so long has vanished; a capture that it had ends.
const VANISHED: Duration = Duration::from_secs(5);

/// Time that open requests have to end when the box stops.
const LINGER: Duration = Duration::from_millis(500);

/// Time that [`Server::stop`] waits for the thread at most.
const STOP: Duration = Duration::from_secs(3);

/// Why the control plane does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("control.listen = {address}: {source}; {}", hint(source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// There are no cores, or their shards are not 0, 1, 2 and so on.
    #[error("cores of the shards {shards:?}: there must be one for each shard from 0")]
    Cores {
        /// The shards that there are.
        shards: Vec<u16>,
    },
    /// No random numbers for cookies.
    #[error("/dev/urandom: {0}; cookies need it: mount /dev")]
    Random(#[source] io::Error),
    /// No thread or runtime.
    #[error("the control plane's thread cannot be started: {0}")]
    Thread(#[source] io::Error),
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there (`ss -ltnp` names it): stop it, or use another port"
        }
        io::ErrorKind::AddrNotAvailable => "no interface has that address (`ip -br address`)",
        io::ErrorKind::PermissionDenied => {
            "use a port from 1024 up, or lower net.ipv4.ip_unprivileged_port_start: the box has no \
             capabilities any more when it binds"
        }
        _ => "use another address or port",
    }
}

/// A control plane that runs. Dropping it tells it to stop and waits for nothing.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: mpsc::Receiver<Box<dyn Sources + Send>>,
}

/// Serves jobs on `cores`, one per shard, whose packets `sources` lets in.
///
/// # Errors
/// Where the address of `control.listen` cannot be had, or the system gives no thread or no
/// random numbers, or `cores` are not one for each shard from 0.
pub fn serve(
    config: &Config,
    info: BoxInfo,
    mut cores: Vec<CoreHandle>,
    sources: Box<dyn Sources + Send>,
) -> Result<Server, ServeError> {
    cores.sort_by_key(|core| core.shard);
    let frame_bytes = match cores.first() {
        Some(first) if cores.iter().map(|c| c.shard).eq(0..cores.len() as u16) => first.frame_bytes,
        _ => return Err(ServeError::Cores { shards: cores.iter().map(|c| c.shard).collect() }),
    };
    let wanted = config.control.listen;
    let bind = |source| ServeError::Bind { address: wanted, source };
    let listener = TcpListener::bind(wanted).map_err(bind)?;
    listener.set_nonblocking(true).map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    let settings = Settings {
        capacity: cores.iter().map(|core| core.capacity).collect(),
        frame_bytes,
        chunk_bytes: info.chunk_bytes,
        addresses: info.addresses.clone(),
        port_base: info.port_base,
        groups: config.data.groups,
        token: config.control.token.clone(),
        join_timeout: config.control.join_timeout,
        idle_timeout: config.control.idle_timeout,
        // The other half is for what is not under credit: queries, and packets sent again.
        rx_budget: config.data.rings.fill / 2,
    };
    let cookies = Cookies::open().map_err(ServeError::Random)?;
    let plane = Shared::new(Plane::new(settings, info, cores, sources, cookies));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(ServeError::Thread)?;
    let (stop, stopped) = oneshot::channel();
    let (end, ended) = mpsc::channel();
    let run = move || {
        if let Err(error) = runtime.block_on(serve_until(listener, plane.clone(), stopped)) {
            error!(%error, "the control plane has ended");
        }
        runtime.shutdown_background();
        // Nobody may be waiting any more.
        let _ = end.send(plane.lock().take_sources());
    };
    thread::Builder::new().name("control".into()).spawn(run).map_err(ServeError::Thread)?;
    info!(%address, "control plane listens");
    Ok(Server { address, stop: Some(stop), ended })
}

/// Serves until `stopped` says so or its sender is gone.
async fn serve_until(
    listener: TcpListener,
    plane: Shared,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?.tap_io(|stream| {
        if let Err(error) = SockRef::from(&*stream).set_tcp_user_timeout(Some(VANISHED)) {
            warn!(%error, "a peer that vanishes will be noticed late (TCP_USER_TIMEOUT)");
        }
    });
    let (quit, quitting) = oneshot::channel::<()>();
    let server = axum::serve(listener, http::router(plane.clone()))
        .with_graceful_shutdown(async {
            // An error is a sender that is gone: the same.
            let _ = quitting.await;
        })
        .into_future();
    let ticks = async {
        loop {
            let removing = {
                let mut plane = plane.lock();
                plane.tick();
                plane.registry.is_removing()
            };
            tokio::time::sleep(if removing { TICK_REMOVING } else { TICK }).await;
        }
    };
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return ended,
        () = ticks => {}
        _ = stopped => {}
    }
    plane.lock().captures.stop();
    drop(quit);
    // A connection that is kept open does not keep the box.
    tokio::time::timeout(LINGER, server).await.unwrap_or(Ok(()))
}

impl Server {
    /// Where it listens: the address of `control.listen`, with the port that the system chose
    /// where that is 0.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops serving and gives the allow-list back, so that its last counters can be read before
    /// it is dropped. Takes a second at most, where the system is not overloaded; `None` where
    /// the thread has not ended after three.
    #[must_use]
    pub fn stop(mut self) -> Option<Box<dyn Sources + Send>> {
        // Dropping the sender is the signal.
        self.stop = None;
        self.ended.recv_timeout(STOP).ok()
    }
}
