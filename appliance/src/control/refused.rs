//! Everything that the control plane refuses, with the word, the status and the sentence for it.

use super::sources::SourcesError;
use crate::config::Groups;
use gradbox_protocol::control::Refusal;
use gradbox_protocol::layout::LayoutError;
use gradbox_protocol::{MAX_WORLD, Reply, control::JoinRequest};
use std::net::{IpAddr, SocketAddr};

/// Largest body of a request, in bytes.
pub const MAX_BODY: usize = 16 << 20;

/// Why a request is refused. The message says what to change.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Refused {
    #[error("{path}: no such path; there are {PATHS}")]
    UnknownPath { path: String },
    #[error("{path} is not for {method}; there are {PATHS}")]
    WrongMethod { path: String, method: String },
    #[error("the body is larger than {MAX_BODY} bytes: join with fewer tensors or shorter names")]
    BodyTooLarge,
    #[error("the body did not come within {seconds} s: send it at once")]
    Slow { seconds: u64 },
    #[error("the body is no JSON: {reason}")]
    NotJson { reason: String },
    #[error("{reason}")]
    BadBody { reason: String },
    #[error("job name {name:?}: use 1 to 64 of the characters A-Z a-z 0-9 . _ -")]
    BadName { name: String },
    #[error("token: {}", match given {
        true => "it is not this box's: bring the one of control.token in its configuration",
        false => "missing: bring the one of control.token in the box's configuration",
    })]
    BadToken { given: bool },
    #[error("world: {world} is out of range: use 1 to {MAX_WORLD}")]
    BadWorld { world: u8 },
    #[error("rank: {rank} is not below world = {world}: use 0 to {}", world.saturating_sub(1))]
    BadRank { rank: u8, world: u8 },
    #[error("instance: {instance} is not below 2^53: draw a smaller random number")]
    BadInstance { instance: u64 },
    #[error("address: packets cannot come from {address}: name the worker's own address and port")]
    BadAddress { address: SocketAddr },
    #[error(
        "address: {address} is {}, and this box has only {}: send from an address of that family",
        if address.is_ipv4() { "IPv4" } else { "IPv6" },
        list(has)
    )]
    AddressFamily { address: SocketAddr, has: Vec<IpAddr> },
    #[error(
        "reply: multicast needs a group, and this box has none for {}: join with reply = unicast, \
         or give it a block of that family in data.multicast",
        if *v4 { "IPv4" } else { "IPv6" }
    )]
    NoGroup { v4: bool },
    #[error(
        "rank {rank} of job {job} joins from {ip}, rank {other} from {theirs}: with reply = \
         multicast all ranks need addresses of one family; use one, or reply = unicast"
    )]
    MixedFamilies { job: String, rank: u8, ip: IpAddr, other: u8, theirs: SocketAddr },
    #[error("tensors: {0}")]
    BadTensors(LayoutError),
    #[error(
        "job {job} needs {needed} bytes of frames ((world + 1) x gradient, in whole frames), and \
         {available} are available{}: use a smaller wire type, split the job, or give the box \
         more memory_mib",
        match total > available {
            true => format!(" of {total}, the rest being other jobs'; wait for them"),
            false => String::new(),
        }
    )]
    TooLarge { job: String, needed: u64, available: u64, total: u64 },
    #[error("{limit} jobs are there, and the box serves no more: leave one first")]
    TooManyJobs { limit: usize },
    #[error(
        "rank {rank} of job {job} is taken by a worker at {address}: it must leave first, or be \
         silent for {timeout_s} s (join_timeout_s); or use another rank"
    )]
    DuplicateRank { job: String, rank: u8, address: SocketAddr, timeout_s: u64 },
    #[error("job {job}: the other ranks bring {theirs}, this one {yours}: all must bring the same")]
    Mismatch { job: String, theirs: String, yours: String },
    #[error(
        "rank {rank} of job {job} joined as this instance from {before}, and now from {now}: use \
         another instance to begin a new generation"
    )]
    Moved { job: String, rank: u8, before: SocketAddr, now: SocketAddr },
    #[error("address {address}: {source}")]
    Sources { address: IpAddr, source: SourcesError },
    #[error("the system gives no random numbers ({0}): try again")]
    Random(std::io::Error),
    #[error("the cores cannot serve this job: {reason}")]
    NotServed { reason: String },
    #[error("{reason}; there are sample, job and bytes")]
    BadQuery { reason: String },
    #[error(
        "another capture is on, and the box makes one at a time: end it, or wait until it has ended"
    )]
    CaptureRunning,
    #[error("there is no job {job}: it was never joined, or has ended")]
    UnknownJob { job: String },
    #[error("rank {rank} of job {job} did not join as this instance: leave as the one that joined")]
    NotMember { job: String, rank: u8 },
}

/// For messages about paths.
const PATHS: &str = "GET /v1/health, /v1/box, /v1/status, /v1/capture, /metrics and POST \
                     /v1/jobs/NAME/join, /v1/jobs/NAME/leave";

impl Refused {
    /// HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::NotJson { .. } | Self::BadName { .. } => 400,
            Self::BadToken { .. } => 403,
            Self::UnknownPath { .. } | Self::UnknownJob { .. } => 404,
            Self::WrongMethod { .. } => 405,
            Self::Slow { .. } => 408,
            Self::DuplicateRank { .. }
            | Self::Mismatch { .. }
            | Self::MixedFamilies { .. }
            | Self::Moved { .. }
            | Self::CaptureRunning
            | Self::NotMember { .. } => 409,
            Self::BodyTooLarge => 413,
            Self::BadBody { .. }
            | Self::BadQuery { .. }
            | Self::BadWorld { .. }
            | Self::BadRank { .. }
            | Self::BadInstance { .. }
            | Self::BadAddress { .. }
            | Self::AddressFamily { .. }
            | Self::NoGroup { .. }
            | Self::BadTensors(_) => 422,
            Self::TooManyJobs { .. }
            | Self::Sources { .. }
            | Self::Random(_)
            | Self::NotServed { .. } => 503,
            Self::TooLarge { .. } => 507,
        }
    }

    /// The word for programs.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::UnknownPath { .. } => "unknown_path",
            Self::WrongMethod { .. } => "wrong_method",
            Self::BodyTooLarge => "body_too_large",
            Self::Slow { .. } => "slow",
            Self::NotJson { .. } => "not_json",
            Self::BadBody { .. } => "bad_body",
            Self::BadName { .. } => "bad_name",
            Self::BadQuery { .. } => "bad_query",
            Self::CaptureRunning => "capture_running",
            Self::BadToken { .. } => "bad_token",
            Self::BadWorld { .. } => "bad_world",
            Self::BadRank { .. } => "bad_rank",
            Self::BadInstance { .. } => "bad_instance",
            Self::BadAddress { .. } => "bad_address",
            Self::AddressFamily { .. } => "address_family",
            Self::NoGroup { .. } => "no_group",
            Self::MixedFamilies { .. } => "mixed_families",
            Self::BadTensors(_) => "bad_tensors",
            Self::TooLarge { .. } => "too_large",
            Self::TooManyJobs { .. } => "too_many_jobs",
            Self::DuplicateRank { .. } => "duplicate_rank",
            Self::Mismatch { .. } => "mismatch",
            Self::Moved { .. } => "moved",
            Self::Sources { .. } => "allow_list",
            Self::Random(_) => "no_random",
            Self::NotServed { .. } => "not_served",
            Self::UnknownJob { .. } => "unknown_job",
            Self::NotMember { .. } => "not_member",
        }
    }

    /// The JSON body.
    #[must_use]
    pub fn body(&self) -> Refusal {
        let (needed_bytes, available_bytes) = match self {
            Self::TooLarge { needed, available, .. } => (Some(*needed), Some(*available)),
            _ => (None, None),
        };
        Refusal {
            error: self.word().to_owned(),
            message: self.to_string(),
            needed_bytes,
            available_bytes,
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    all.join(" and ")
}

/// What can be wrong with a join whatever else there is.
///
/// # Errors
/// For a name, token, rank, world, instance or address that no box with these `addresses` and
/// this `token` serves.
pub(super) fn check_join(
    name: &str,
    r: &JoinRequest,
    token: Option<&str>,
    addresses: &[IpAddr],
) -> Result<(), Refused> {
    check_name(name)?;
    check_token(r.token.as_deref(), token)?;
    if r.world == 0 || usize::from(r.world) > MAX_WORLD {
        return Err(Refused::BadWorld { world: r.world });
    }
    if r.rank >= r.world {
        return Err(Refused::BadRank { rank: r.rank, world: r.world });
    }
    if r.instance >= 1 << 53 {
        return Err(Refused::BadInstance { instance: r.instance });
    }
    let ip = r.address.ip().to_canonical();
    let broadcast = ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    if ip.is_unspecified() || ip.is_multicast() || broadcast || r.address.port() == 0 {
        return Err(Refused::BadAddress { address: r.address });
    }
    if !addresses.iter().any(|a| a.is_ipv4() == ip.is_ipv4()) {
        let address = SocketAddr::new(ip, r.address.port());
        return Err(Refused::AddressFamily { address, has: addresses.to_vec() });
    }
    Ok(())
}

/// Refuses whoever does not bring the box's token, where it has one.
pub(super) fn check_token(given: Option<&str>, token: Option<&str>) -> Result<(), Refused> {
    match (given, token) {
        (_, None) => Ok(()),
        (Some(given), Some(token)) if same(given.as_bytes(), token.as_bytes()) => Ok(()),
        _ => Err(Refused::BadToken { given: given.is_some() }),
    }
}

/// Refuses a job that wants a group where the box has none for its address.
pub(super) fn check_group(r: &JoinRequest, groups: &Groups) -> Result<(), Refused> {
    let v4 = r.address.ip().to_canonical().is_ipv4();
    if r.reply == Reply::Multicast && groups.of(0, v4).is_none() {
        return Err(Refused::NoGroup { v4 });
    }
    Ok(())
}

/// Whether `name` may name a job.
pub(super) fn check_name(name: &str) -> Result<(), Refused> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if (1..=64).contains(&name.len()) && name.bytes().all(valid) {
        return Ok(());
    }
    Err(Refused::BadName { name: name.chars().take(80).collect() })
}

/// Equality whose time depends on the lengths alone, so that a token cannot be guessed bit by bit.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (x, y)| std::hint::black_box(differ | (x ^ y)));
    a.len() == b.len() && differ == 0
}
