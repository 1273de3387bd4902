//! The control plane: HTTP and JSON.

use crate::error::Error;
use gradbox_protocol::VERSION;
use gradbox_protocol::control::{BoxInfo, JoinRequest, Joined, LeaveRequest, Refusal, Waiting};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// One request: a box that does not answer by then is not there.
const REQUEST: Duration = Duration::from_secs(5);
/// A worker that ends does not wait longer than this for its farewell.
const FAREWELL: Duration = Duration::from_millis(500);
/// Between two joins.
const AGAIN: Duration = Duration::from_millis(100);

/// A client of one box's control plane for one job.
#[derive(Debug)]
pub(crate) struct Control {
    agent: ureq::Agent,
    address: String,
    job: String,
}

impl Control {
    pub(crate) fn new(address: &str, job: &str) -> Result<Self, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if job.is_empty() || job.len() > 64 || !job.chars().all(plain) {
            return Err(Error::Option {
                option: "job",
                found: format!("{job:?}"),
                needs: "1 to 64 letters, digits, '-', '_' and '.'",
            });
        }
        let config = ureq::Agent::config_builder()
            // A refusal has a body that says why.
            .http_status_as_error(false)
            // The box is on the training network, which no proxy leads to.
            .proxy(None)
            .timeout_global(Some(REQUEST))
            .build();
        Ok(Self { agent: config.into(), address: address.into(), job: job.into() })
    }

    fn error(&self, reason: impl ToString) -> Error {
        Error::Control { control: self.address.clone(), reason: reason.to_string() }
    }

    /// `GET /v1/box`, the version checked.
    pub(crate) fn info(&self) -> Result<BoxInfo, Error> {
        let url = format!("http://{}/v1/box", self.address);
        let mut answer = self.agent.get(url).call().map_err(|e| self.error(e))?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(self.error(format!("HTTP {status} to GET /v1/box")));
        }
        // The version comes first: a newer box may have other fields.
        let body: serde_json::Value = answer.body_mut().read_json().map_err(|e| self.error(e))?;
        let version = body.get("protocol").and_then(serde_json::Value::as_u64);
        match version.and_then(|v| u8::try_from(v).ok()) {
            Some(found) if found != VERSION => {
                Err(Error::Version { control: self.address.clone(), found, needs: VERSION })
            }
            _ => serde_json::from_value(body).map_err(|e| self.error(e)),
        }
    }

    /// The address of the box's data plane: of the family that its control plane is reached by,
    /// where it has both.
    pub(crate) fn data_address(&self, info: &BoxInfo) -> Result<SocketAddr, Error> {
        let control = self.resolve()?;
        let same = info.addresses.iter().find(|a| a.is_ipv4() == control.is_ipv4());
        let ip = same.or(info.addresses.first()).copied();
        let ip = ip.ok_or_else(|| self.error("the box names no address of its data plane"))?;
        // A box that listens everywhere is where its control plane is.
        let ip = if ip.is_unspecified() { control } else { ip };
        Ok(SocketAddr::new(ip, info.port_base))
    }

    fn resolve(&self) -> Result<IpAddr, Error> {
        let mut found = self.address.to_socket_addrs().map_err(|e| self.error(e))?;
        let first = found.next().ok_or_else(|| self.error("the name has no address"))?;
        Ok(first.ip().to_canonical())
    }

    /// Joins, again and again until all ranks are there or `timeout` has passed.
    pub(crate) fn join(&self, request: &JoinRequest, timeout: Duration) -> Result<Joined, Error> {
        let url = format!("http://{}/v1/jobs/{}/join", self.address, self.job);
        let start = Instant::now();
        let mut missing = Vec::new();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let wait = left.min(REQUEST).max(Duration::from_millis(1));
            let post = self.agent.post(&url).config().timeout_global(Some(wait)).build();
            match post.send_json(request) {
                Ok(mut answer) => match answer.status().as_u16() {
                    200 => return answer.body_mut().read_json().map_err(|e| self.error(e)),
                    202 => {
                        let waiting: Waiting =
                            answer.body_mut().read_json().map_err(|e| self.error(e))?;
                        missing = waiting.missing;
                    }
                    status => {
                        let refusal = answer.body_mut().read_json::<Refusal>();
                        let refusal = refusal.map_err(|e| {
                            self.error(format!("HTTP {status} to a join without a reason: {e}"))
                        })?;
                        let (job, rank) = (self.job.clone(), request.rank);
                        return Err(Error::Refused { job, rank, status, refusal });
                    }
                },
                // One request may be lost to a busy box; only the deadline ends the attempts.
                Err(error) if left.is_zero() && missing.is_empty() => {
                    return Err(self.error(error));
                }
                Err(error) => tracing::debug!(%error, "join unanswered"),
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Err(Error::JoinTimeout { job: self.job.clone(), missing, waited });
            }
            std::thread::sleep(AGAIN.min(timeout - waited));
        }
    }

    /// Leaves. The box forgets a rank that could not say farewell when the next generation forms.
    pub(crate) fn leave(&self, request: &LeaveRequest) -> Result<(), Error> {
        let url = format!("http://{}/v1/jobs/{}/leave", self.address, self.job);
        let post = self.agent.post(&url).config().timeout_global(Some(FAREWELL)).build();
        let answer = post.send_json(request).map_err(|e| self.error(e))?;
        match answer.status().as_u16() {
            200..300 => Ok(()),
            status => Err(self.error(format!("HTTP {status} to leave"))),
        }
    }
}
