//! What the registry asks of the cores, and what it makes of their answers.

use super::job::{Forming, Running};
use super::{Action, Registry, revoke};
use crate::control::sources::Sources;
use crate::dataplane::plan::MAX_JOBS;
use gradbox_protocol::Reply;
use std::net::SocketAddr;
use std::time::Duration;
use tracing::info;

/// Least packets in flight that a rank is granted per shard, however many jobs there are.
const LEAST_CREDIT: u32 = 8;

impl Registry {
    /// Notes how many packets of job `id` the cores have seen altogether.
    pub fn note_packets(&mut self, now: Duration, id: u16, packets: u64) {
        let running = self.jobs.values_mut().filter_map(|j| j.current.as_mut());
        for current in running.filter(|c| c.plan.id == id && c.packets != packets) {
            (current.packets, current.active) = (packets, now);
        }
    }

    /// The core of `shard` has handed back its table of job `id`.
    pub fn removed(&mut self, now: Duration, id: u16, shard: u16, sources: &mut dyn Sources) {
        let Some((name, awaited)) = self.jobs.iter_mut().find_map(|(name, job)| {
            let current = job.current.as_mut().filter(|c| c.plan.id == id)?;
            Some((name.clone(), current.removing.as_mut()?))
        }) else {
            return;
        };
        awaited.remove(&shard);
        if awaited.is_empty() {
            self.gone(now, &name, sources);
        }
    }

    /// Job `id` could not be put on any core: it ends. Its members join anew.
    pub fn not_added(&mut self, now: Duration, id: u16, sources: &mut dyn Sources) {
        let is = |c: &Running| c.plan.id == id;
        let found = self.jobs.iter().find(|(_, j)| j.current.as_ref().is_some_and(is));
        if let Some(name) = found.map(|(name, _)| name.clone()) {
            self.remove(&name, "the cores cannot serve it", sources);
            self.actions.retain(|a| *a != Action::Remove { job: id });
            self.gone(now, &name, sources);
        }
    }

    /// The running generation of `name` is on no core any more.
    fn gone(&mut self, now: Duration, name: &str, sources: &mut dyn Sources) {
        if let Some(job) = self.jobs.get_mut(name) {
            if let Some(current) = job.current.take() {
                info!(job = name, generation = current.generation, "removed, frames free");
            }
            self.advance(now, name, sources);
        }
    }

    /// Tells the cores to remove the running generation of `name`, once.
    pub(super) fn remove(&mut self, name: &str, why: &str, sources: &mut dyn Sources) {
        let cores = self.settings.capacity.len() as u16;
        let Some(current) = self.jobs.get_mut(name).and_then(|j| j.current.as_mut()) else {
            return;
        };
        if current.removing.is_some() {
            return;
        }
        info!(job = name, generation = current.generation, why, "removing");
        current.removing = Some((0..cores).collect());
        for seat in &current.seats {
            revoke(sources, seat.address);
        }
        self.actions.push(Action::Remove { job: current.plan.id });
        self.recredit();
    }

    /// Does what can be done for `name`: drops an empty generation or job, makes room for a
    /// complete generation, puts it on the cores.
    pub(super) fn advance(&mut self, now: Duration, name: &str, sources: &mut dyn Sources) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        if job.next.as_ref().is_some_and(Forming::deserted) {
            job.next = None;
        }
        match (job.next.take_if(|n| n.complete()), &job.current) {
            (Some(complete), None) => {
                let free = |id: &u16| {
                    self.jobs.values().all(|j| j.current.as_ref().is_none_or(|c| c.plan.id != *id))
                };
                let (first, jobs) = (self.next_id, MAX_JOBS as u16);
                // There are at most MAX_JOBS jobs, this one without an id: one is free.
                let id = (first..jobs).chain(0..first).find(free).unwrap_or(first);
                self.next_id = (id + 1) % jobs;
                self.install(now, name, complete, id);
            }
            (Some(complete), Some(_)) => {
                job.next = Some(complete);
                self.remove(name, "the next generation is complete", sources);
            }
            (None, None) if job.next.is_none() => {
                self.jobs.remove(name);
            }
            (None, _) => {}
        }
    }

    fn install(&mut self, now: Duration, name: &str, complete: Forming, id: u16) {
        let group = self.group_of(&complete, id);
        let Some(job) = self.jobs.get_mut(name) else { return };
        job.generations += 1;
        let current = Running::of(complete, (id, group), job.generations, now);
        let plan = current.plan.clone();
        info!(
            job = name,
            id,
            generation = job.generations,
            world = plan.members.len(),
            dtype = plan.dtype.name(),
            op = plan.op.name(),
            reply = current.spec.reply.name(),
            chunks = plan.layout.chunks(),
            "all ranks have joined"
        );
        job.current = Some(current);
        let credit = self.recredit();
        self.actions.retain(|a| !matches!(a, Action::Credit { job, .. } if *job == id));
        self.actions.push(Action::Add { plan, credit });
    }

    /// The group of a generation that wants one, under the id `id`.
    fn group_of(&self, complete: &Forming, id: u16) -> Option<SocketAddr> {
        let s = &self.settings;
        let first = complete.members.iter().flatten().next()?;
        // Ranks of another family, and families without groups, were refused.
        let ip = s.groups.of(id, first.address.is_ipv4())?;
        let port = s.port_base.checked_add(s.capacity.len() as u16)?;
        (complete.spec.reply == Reply::Multicast).then(|| SocketAddr::new(ip, port))
    }

    /// Deals the receive budget anew to all running jobs, and returns one rank's share.
    fn recredit(&mut self) -> u16 {
        let running = || {
            let all = self.jobs.values().filter_map(|j| j.current.as_ref());
            all.filter(|c| c.removing.is_none())
        };
        let ranks: u32 = running().map(|c| u32::from(c.spec.world)).sum();
        let share = (self.settings.rx_budget / ranks.max(1)).max(LEAST_CREDIT);
        let credit = u16::try_from(share).unwrap_or(u16::MAX);
        for current in self.jobs.values_mut().filter_map(|j| j.current.as_mut()) {
            if current.removing.is_none() && current.credit != credit {
                current.credit = credit;
                self.actions.push(Action::Credit { job: current.plan.id, credit });
            }
        }
        credit
    }
}
