//! What the registry shows of its jobs.

use super::Registry;
use super::job::{Job, Joiner};
use crate::control::refused::{Refused, check_token};
use gradbox_protocol::control::{JobStatus, RankStatus};
use std::time::Duration;

impl Registry {
    /// Id of the running generation of a job, where there is one.
    #[must_use]
    pub fn id_of(&self, name: &str) -> Option<u16> {
        self.jobs.get(name)?.current.as_ref().map(|current| current.plan.id)
    }

    /// Whether a request may see what is private to the workers: it must bring the box's token,
    /// where there is one.
    ///
    /// # Errors
    /// Where it brings none, or another one.
    pub fn check_token(&self, given: Option<&str>) -> Result<(), Refused> {
        check_token(given, self.settings.token.as_deref())
    }

    /// Its jobs, by name. `progress` tells, for a job id and a rank, the chunks pushed and the
    /// chunks for which that rank was the last.
    pub fn jobs(
        &self,
        now: Duration,
        progress: impl Fn(u16, usize) -> (u64, u64),
    ) -> Vec<JobStatus> {
        self.jobs.iter().filter_map(|(name, job)| self.job(now, name, job, &progress)).collect()
    }

    fn job(
        &self,
        now: Duration,
        name: &str,
        job: &Job,
        progress: impl Fn(u16, usize) -> (u64, u64),
    ) -> Option<JobStatus> {
        let (next, current) = (job.next.as_ref(), job.current.as_ref());
        let spec = current.map(|c| &c.spec).or(next.map(|n| &n.spec))?;
        let ranks: Vec<_> = match (current, next) {
            (Some(current), _) => {
                let seats = current.seats.iter().enumerate();
                seats
                    .map(|(rank, seat)| {
                        let (pushed, last) = progress(current.plan.id, rank);
                        let (address, left) = (seat.address, seat.left);
                        RankStatus { rank: rank as u8, address, pushed, last, left }
                    })
                    .collect()
            }
            (None, Some(next)) => {
                let waiting = |(rank, j): (usize, &Option<Joiner>)| {
                    let address = j.as_ref()?.address;
                    Some(RankStatus { rank: rank as u8, address, pushed: 0, last: 0, left: false })
                };
                next.members.iter().enumerate().filter_map(waiting).collect()
            }
            (None, None) => Vec::new(),
        };
        let frames: u64 = (0..self.settings.capacity.len()).map(|core| job.reserved(core)).sum();
        Some(JobStatus {
            name: name.to_owned(),
            job: current.map(|c| c.plan.id),
            generation: current.map_or(0, |c| c.generation),
            world: spec.world,
            dtype: spec.dtype,
            op: spec.op,
            reply: spec.reply,
            joining: next.map_or_else(Vec::new, |n| n.missing()),
            joining_s: next.map_or(0.0, |n| now.saturating_sub(n.since).as_secs_f64()),
            reserved_bytes: frames * self.settings.frame_bytes,
            waiting_for: straggler(&ranks),
            ranks,
        })
    }

    /// Frames of each core that jobs have reserved, by core.
    #[must_use]
    pub fn reserved(&self) -> Vec<u64> {
        let on = |core| self.jobs.values().map(|job| job.reserved(core)).sum();
        (0..self.settings.capacity.len()).map(on).collect()
    }
}

/// The rank that has pushed least, where another has pushed more. Who has left is not waited for.
fn straggler(ranks: &[RankStatus]) -> Option<u8> {
    let here = || ranks.iter().filter(|r| !r.left);
    let most = here().map(|r| r.pushed).max()?;
    here().min_by_key(|r| r.pushed).filter(|r| r.pushed < most).map(|r| r.rank)
}
