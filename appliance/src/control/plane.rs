//! The registry joined to the world: cores, allow-list, clock and random numbers.

use super::capture::Captures;
use super::cookies::Cookies;
use super::refused::Refused;
use super::registry::{Action, Answer, Registry, Secrets, Settings};
use super::sources::{OpenSources, Sources};
use crate::dataplane::handle::{Command, CoreHandle, Event, Report};
use crate::dataplane::job::JobTable;
use crate::dataplane::plan::{JobPlan, Progress};
use crate::sum::SumError;
use gradbox_protocol::control::{BoxInfo, CoreStatus, JoinRequest, LeaveRequest, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{error, info};

/// Time between two questions for a core's report.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// One core, as the control plane sees it.
pub(super) struct CoreSide {
    pub(super) handle: CoreHandle,
    /// The last report that came back.
    pub(super) report: Option<Box<Report>>,
    /// The one before, to be sent out again.
    spare: Option<Box<Report>>,
    /// A report is out.
    asked: bool,
    /// When to ask for the next one.
    next_ask: Duration,
    /// A command found its queue full and was lost.
    stuck: bool,
}

/// The control plane, but for HTTP.
pub(super) struct Plane {
    pub(super) info: BoxInfo,
    pub(super) registry: Registry,
    pub(super) cores: Vec<CoreSide>,
    pub(super) sources: Box<dyn Sources + Send>,
    pub(super) captures: Captures,
    progress: HashMap<u16, Vec<Arc<Progress>>>,
    cookies: Cookies,
    started: Instant,
}

impl Plane {
    /// A plane for cores that are in the order of their shards.
    pub(super) fn new(
        settings: Settings,
        info: BoxInfo,
        cores: Vec<CoreHandle>,
        sources: Box<dyn Sources + Send>,
        cookies: Cookies,
    ) -> Self {
        let side = |handle| CoreSide {
            handle,
            report: None,
            spare: None,
            asked: false,
            next_ask: Duration::ZERO,
            stuck: false,
        };
        Self {
            info,
            registry: Registry::new(settings),
            cores: cores.into_iter().map(side).collect(),
            sources,
            captures: Captures::default(),
            progress: HashMap::new(),
            cookies,
            started: Instant::now(),
        }
    }

    /// Time since the box became ready.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether all cores take commands.
    pub(super) fn healthy(&self) -> Result<(), Refused> {
        match self.cores.iter().find(|c| c.stuck) {
            None => Ok(()),
            Some(core) => {
                let shard = core.handle.shard;
                let reason = format!(
                    "the core of shard {shard} took no commands and lost one: restart the box"
                );
                Err(Refused::NotServed { reason })
            }
        }
    }

    pub(super) fn join(&mut self, name: &str, request: &JoinRequest) -> Result<Answer, Refused> {
        self.healthy()?;
        self.poll();
        let mut draw = || self.cookies.draw().map_err(Refused::Random);
        let secrets = Secrets { rank: draw()?, group: draw()? };
        let now = self.now();
        let answer = self.registry.join(now, name, request, secrets, &mut *self.sources);
        let applied = self.apply();
        if let Err(refused) = &answer {
            let (error, rank) = (refused.word(), request.rank);
            info!(job = name, rank, error, "join refused: {refused}");
        }
        let answer = answer?;
        match (&answer, applied) {
            (Answer::Joined(_), Err(error)) => {
                Err(Refused::NotServed { reason: error.to_string() })
            }
            _ => Ok(answer),
        }
    }

    /// Whether all cores know all that they were told.
    pub(super) fn cores_know(&self) -> bool {
        self.cores.iter().all(|core| core.handle.has_taken_all())
    }

    pub(super) fn leave(&mut self, name: &str, request: &LeaveRequest) -> Result<(), Refused> {
        self.poll();
        let now = self.now();
        let left = self.registry.leave(now, name, request, &mut *self.sources);
        self.settle();
        left
    }

    /// What is to be done from time to time.
    pub(super) fn tick(&mut self) {
        self.poll();
        let now = self.now();
        for (id, progress) in &self.progress {
            let packets = progress.iter().map(|p| p.packets()).sum();
            self.registry.note_packets(now, *id, packets);
        }
        self.registry.tick(now, &mut *self.sources);
        self.settle();
        for core in &mut self.cores {
            core.ask(now);
        }
    }

    /// Takes what the cores say.
    fn poll(&mut self) {
        let now = self.now();
        for core in &mut self.cores {
            while let Some(event) = core.handle.event() {
                match event {
                    Event::Removed(table) => {
                        let id = table.plan().id;
                        self.registry.removed(now, id, core.handle.shard, &mut *self.sources);
                    }
                    Event::Report(report) => {
                        core.spare = core.report.replace(report);
                        core.asked = false;
                    }
                    Event::Untapped(tap) => drop(tap),
                }
            }
        }
        self.settle();
    }

    /// Does what the registry asks for; what fails has been logged, and joins will show it.
    fn settle(&mut self) {
        // A job that failed leaves the registry as if it had ended: its ranks join anew, and the
        // join that completes it is refused with the reason.
        let _ = self.apply();
    }

    /// Does what the registry asks for.
    fn apply(&mut self) -> Result<(), SumError> {
        let mut result = Ok(());
        loop {
            let actions = self.registry.take_actions();
            if actions.is_empty() {
                self.captures.follow(&self.registry);
                return result;
            }
            for action in actions {
                match action {
                    Action::Add { plan, credit } => {
                        if let Err(error) = self.add(&plan, credit) {
                            error!(id = plan.id, %error, "a job cannot be put on the cores");
                            let now = self.now();
                            self.registry.not_added(now, plan.id, &mut *self.sources);
                            result = Err(error);
                        }
                    }
                    Action::Remove { job } => {
                        self.progress.remove(&job);
                        self.command(|| Command::Remove(job));
                    }
                    Action::Credit { job, credit } => {
                        self.command(|| Command::Credit { job, credit });
                    }
                }
            }
        }
    }

    /// Puts a job on all cores, or on none.
    fn add(&mut self, plan: &Arc<JobPlan>, credit: u16) -> Result<(), SumError> {
        let make = |core: &CoreSide| JobTable::new(plan.clone(), core.handle.shard, credit);
        let made = self.cores.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let (tables, progress): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        for (core, table) in self.cores.iter_mut().zip(tables) {
            core.send(Command::Add(table));
        }
        self.progress.insert(plan.id, progress);
        Ok(())
    }

    fn command(&mut self, command: impl Fn() -> Command) {
        for core in &mut self.cores {
            core.send(command());
        }
    }

    /// The answer to `GET /v1/status`.
    pub(super) fn status(&mut self) -> Status {
        self.poll();
        let now = self.now();
        let core = |core: &CoreSide| {
            let reading = core.handle.shown.read();
            let named = |(name, n): (&'static str, u64)| (name.to_owned(), n);
            CoreStatus {
                shard: core.handle.shard,
                cpu: core.handle.cpu.and_then(|cpu| u32::try_from(cpu).ok()),
                busy_share: Duration::from_nanos(reading.busy_ns).as_secs_f64()
                    / now.as_secs_f64().max(f64::MIN_POSITIVE),
                counters: reading.counters.iter().map(|(c, n)| named((c.name(), n))).collect(),
                frames: reading.frames.states().into_iter().map(named).collect(),
                frames_total: reading.frames.total,
            }
        };
        Status {
            info: self.info.clone(),
            uptime_s: now.as_secs_f64(),
            cores: self.cores.iter().map(core).collect(),
            jobs: self.registry.jobs(now, |id, rank| self.progress_of(id, rank)),
        }
    }

    /// Chunks pushed by a rank, and chunks for which it was the last, over all cores.
    fn progress_of(&self, id: u16, rank: usize) -> (u64, u64) {
        let cores = self.progress.get(&id).into_iter().flatten();
        cores.fold((0, 0), |(pushed, last), p| (pushed + p.pushed(rank), last + p.last(rank)))
    }

    /// Gives the allow-list back, at the end.
    pub(super) fn take_sources(&mut self) -> Box<dyn Sources + Send> {
        std::mem::replace(&mut self.sources, Box::new(OpenSources))
    }
}

impl CoreSide {
    /// Gives the core a command; where its queue is full, the box is not healthy any more.
    pub(super) fn send(&mut self, command: Command) {
        if let Err(error) = self.handle.send(command)
            && !std::mem::replace(&mut self.stuck, true)
        {
            error!(shard = self.handle.shard, "{error}");
        }
    }

    /// Asks for a report, where none is out and the last question is old enough.
    fn ask(&mut self, now: Duration) {
        if !self.asked && self.next_ask <= now {
            let mut report = self.spare.take().unwrap_or_default();
            report.latency_us.reset();
            self.asked = true;
            self.next_ask = now + REPORT_EVERY;
            self.send(Command::Report(report));
        }
    }
}
