//! Jobs, generations, members and memory as a state machine: no clock, no sockets, no threads.
//! Time is passed in as the time since the box started; what is to happen on the cores comes out
//! as [`Action`]s. The one thing outside that it touches is [`Sources`], because an address that
//! finds no place there must refuse the join that brings it.
//!
//! A job's first generation forms until all ranks have joined, then is put on the cores. A join
//! by another instance begins the next generation while the present one goes on working; when it
//! is complete the cores are told to remove the old, and only when all have is the new one added.

mod admission;
mod cores;
mod job;
#[cfg(test)]
mod tests;
mod view;

use super::refused::{Refused, check_group, check_join, check_name};
use super::sources::Sources;
use crate::config::Groups;
use crate::dataplane::plan::{JobPlan, MAX_JOBS};
use admission::Admission;
use gradbox_protocol::control::{Group, JoinRequest, Joined, LeaveRequest, Waiting};
use job::{Forming, Job, Joiner, Running, Spec};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// What the registry must know of the box. All of it is fixed from the start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Frames that jobs may reserve, by core; one entry per shard, at least one.
    pub capacity: Vec<u64>,
    /// Bytes of a frame.
    pub frame_bytes: u64,
    /// Payload bytes of a full chunk.
    pub chunk_bytes: u16,
    /// Addresses of the data plane, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// UDP port of shard 0. The port behind that of the last shard is the groups'.
    pub port_base: u16,
    /// Multicast groups, by job id.
    pub groups: Groups,
    /// What a join must bring, if anything.
    pub token: Option<String>,
    /// A member of a forming generation that is silent for longer is dropped.
    pub join_timeout: Duration,
    /// A job without a packet for longer is removed.
    pub idle_timeout: Duration,
    /// Packets to one shard that all ranks of all jobs together may have in flight.
    pub rx_budget: u32,
}

/// What is to be done on every core, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Serve this job.
    Add {
        /// The job.
        plan: Arc<JobPlan>,
        /// Packets that each rank may have in flight to each shard.
        credit: u16,
    },
    /// Stop serving this job, and say so with [`Registry::removed`].
    Remove {
        /// Id of the job.
        job: u16,
    },
    /// Grant this job another credit.
    Credit {
        /// Id of the job.
        job: u16,
        /// Packets that each rank may have in flight to each shard.
        credit: u16,
    },
}

/// Fresh random numbers for a join, none of them 0.
#[derive(Clone, Copy, Debug)]
pub struct Secrets {
    /// Cookie of the rank, where the join makes the worker a member.
    pub rank: u32,
    /// Cookie of the job's group, where the join begins a generation.
    pub group: u32,
}

/// The answer to a join that is not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All ranks are there.
    Joined(Joined),
    /// Ask again.
    Waiting(Waiting),
}

/// All jobs of the box.
#[derive(Debug)]
pub struct Registry {
    settings: Settings,
    jobs: BTreeMap<String, Job>,
    /// Where the search for a free id begins, so that ids are reused late.
    next_id: u16,
    actions: Vec<Action>,
}

impl Registry {
    /// A box without jobs.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, jobs: BTreeMap::new(), next_id: 0, actions: Vec::new() }
    }

    /// What is to be done since this was last called.
    #[must_use]
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether cores have been told to remove a job and not all have.
    #[must_use]
    pub fn is_removing(&self) -> bool {
        self.jobs.values().any(|j| j.current.as_ref().is_some_and(|c| c.removing.is_some()))
    }

    /// A worker joins, or repeats its join.
    ///
    /// [`Answer::Joined`] may be given before the cores have taken the job in: who passes it on
    /// must wait for them.
    ///
    /// # Errors
    /// Where the join cannot be served; the registry is then as before.
    pub fn join(
        &mut self,
        now: Duration,
        name: &str,
        request: &JoinRequest,
        secrets: Secrets,
        sources: &mut dyn Sources,
    ) -> Result<Answer, Refused> {
        let s = &self.settings;
        check_join(name, request, s.token.as_deref(), &s.addresses)?;
        check_group(request, &s.groups)?;
        self.expire(now, sources);
        let rank = usize::from(request.rank);
        let ip = request.address.ip().to_canonical();
        let address = SocketAddr::new(ip, request.address.port());

        if let Some(current) = self.jobs.get(name).and_then(|j| j.current.as_ref())
            && current.removing.is_none()
            && let Some(seat) = current.seats.get(rank)
            && seat.instance == request.instance
            && !seat.left
        {
            current.spec.must_match(name, request)?;
            if seat.address != address {
                let (before, job, rank) = (seat.address, name.to_owned(), request.rank);
                return Err(Refused::Moved { job, rank, before, now: address });
            }
            return Ok(Answer::Joined(self.joined(current, rank)));
        }

        let Some(next) = self.jobs.get_mut(name).and_then(|j| j.next.as_mut()) else {
            return self.begin(now, name, request, (address, secrets), sources);
        };
        let mine = next.members.get(rank).and_then(Option::as_ref);
        if next.complete() && mine.is_none_or(|m| m.instance != request.instance) {
            // Complete and about to work: this one is for the generation after.
            let missing = (0..request.world).collect();
            return Ok(Answer::Waiting(Waiting { missing }));
        }
        next.spec.must_match(name, request)?;
        next.must_share_family(name, request.rank, ip)?;
        match &mut next.members[rank] {
            Some(taken) if taken.instance != request.instance => {
                return Err(Refused::DuplicateRank {
                    job: name.to_owned(),
                    rank: request.rank,
                    address: taken.address,
                    timeout_s: self.settings.join_timeout.as_secs(),
                });
            }
            Some(taken) if taken.address != address => {
                allow(sources, ip)?;
                revoke(sources, taken.address);
                (taken.address, taken.seen) = (address, now);
            }
            Some(taken) => taken.seen = now,
            empty @ None => {
                allow(sources, ip)?;
                let (instance, cookie) = (request.instance, secrets.rank);
                *empty = Some(Joiner { instance, address, cookie, seen: now });
            }
        }
        Ok(self.answer(now, name, rank, sources))
    }

    /// The first join of a generation.
    fn begin(
        &mut self,
        now: Duration,
        name: &str,
        request: &JoinRequest,
        (address, secrets): (SocketAddr, Secrets),
        sources: &mut dyn Sources,
    ) -> Result<Answer, Refused> {
        if !self.jobs.contains_key(name) && self.jobs.len() >= MAX_JOBS {
            return Err(Refused::TooManyJobs { limit: MAX_JOBS });
        }
        let layout = match self.admit(name, request)? {
            Admission::Fits(layout) => layout,
            Admission::FitsSoon => {
                let missing = (0..request.world).collect();
                return Ok(Answer::Waiting(Waiting { missing }));
            }
        };
        allow(sources, address.ip())?;
        let rank = usize::from(request.rank);
        let mut next = Forming::new(Spec::of(request), layout, secrets.group, now);
        let (instance, cookie) = (request.instance, secrets.rank);
        next.members[rank] = Some(Joiner { instance, address, cookie, seen: now });
        self.jobs.entry(name.to_owned()).or_default().next = Some(next);
        Ok(self.answer(now, name, rank, sources))
    }

    /// Goes on with the job if that join completed its generation, and answers it.
    fn answer(
        &mut self,
        now: Duration,
        name: &str,
        rank: usize,
        sources: &mut dyn Sources,
    ) -> Answer {
        self.advance(now, name, sources);
        let job = self.jobs.get(name);
        if let Some(next) = job.and_then(|j| j.next.as_ref()) {
            return Answer::Waiting(Waiting { missing: next.missing() });
        }
        match job.and_then(|j| j.current.as_ref()) {
            Some(current) => Answer::Joined(self.joined(current, rank)),
            None => Answer::Waiting(Waiting { missing: Vec::new() }),
        }
    }

    fn joined(&self, current: &Running, rank: usize) -> Joined {
        let s = &self.settings;
        let v4 = current.seats[rank].address.is_ipv4();
        // A join from a family that the box lacks was refused.
        let own = s.addresses.iter().find(|a| a.is_ipv4() == v4).or(s.addresses.first());
        Joined {
            job: current.plan.id,
            generation: current.generation,
            cookie: current.plan.members[rank].cookie,
            address: own.copied().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
            port_base: s.port_base,
            shards: current.plan.layout.shards(),
            chunk_bytes: s.chunk_bytes,
            credit: current.credit,
            group: current.plan.group.map(|g| Group { address: g.to, cookie: g.cookie }),
        }
    }

    /// A worker leaves. A member of a forming generation is dropped from it; a running job is
    /// removed when its last rank has left. Repeating it is harmless.
    ///
    /// # Errors
    /// Where there is no such job, or that rank joined as another instance.
    pub fn leave(
        &mut self,
        now: Duration,
        name: &str,
        request: &LeaveRequest,
        sources: &mut dyn Sources,
    ) -> Result<(), Refused> {
        check_name(name)?;
        let unknown = || Refused::UnknownJob { job: name.to_owned() };
        let job = self.jobs.get_mut(name).ok_or_else(unknown)?;
        let (rank, mut member) = (usize::from(request.rank), false);
        if let Some(place) = job.next.as_mut().and_then(|n| n.members.get_mut(rank))
            && let Some(joiner) = place.take_if(|j| j.instance == request.instance)
        {
            revoke(sources, joiner.address);
            member = true;
        }
        if let Some(seat) = job.current.as_mut().and_then(|c| c.seats.get_mut(rank))
            && seat.instance == request.instance
        {
            (seat.left, member) = (true, true);
        }
        if !member {
            return Err(Refused::NotMember { job: name.to_owned(), rank: request.rank });
        }
        info!(job = name, rank = request.rank, "left");
        if job.current.as_ref().is_some_and(|c| c.seats.iter().all(|s| s.left)) {
            self.remove(name, "all ranks have left", sources);
        }
        self.advance(now, name, sources);
        Ok(())
    }

    /// Drops silent members of forming generations, and removes idle jobs.
    pub fn tick(&mut self, now: Duration, sources: &mut dyn Sources) {
        self.expire(now, sources);
        let idle = |job: &Job| {
            job.current
                .as_ref()
                .is_some_and(|c| now.saturating_sub(c.active) > self.settings.idle_timeout)
        };
        let names: Vec<_> =
            self.jobs.iter().filter(|(_, j)| idle(j)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.remove(&name, "no packet for idle_timeout_s", sources);
        }
    }

    /// Drops members of forming generations that have been silent for too long. Those of a
    /// complete one wait for the cores, not for each other.
    fn expire(&mut self, now: Duration, sources: &mut dyn Sources) {
        let limit = self.settings.join_timeout;
        let mut deserted = Vec::new();
        for (name, job) in &mut self.jobs {
            let Some(next) = job.next.as_mut().filter(|n| !n.complete()) else { continue };
            for (rank, place) in next.members.iter_mut().enumerate() {
                if let Some(silent) = place.take_if(|j| now.saturating_sub(j.seen) > limit) {
                    let address = silent.address;
                    info!(job = name, rank, %address, "dropped: silent for too long");
                    revoke(sources, silent.address);
                }
            }
            if next.deserted() {
                deserted.push(name.clone());
            }
        }
        for name in deserted {
            self.advance(now, &name, sources);
        }
    }
}

fn allow(sources: &mut dyn Sources, address: IpAddr) -> Result<(), Refused> {
    sources.allow(address).map_err(|source| Refused::Sources { address, source })
}

fn revoke(sources: &mut dyn Sources, address: SocketAddr) {
    if let Err(error) = sources.revoke(address.ip()) {
        warn!(%address, %error, "cannot be taken off the allow-list");
    }
}
