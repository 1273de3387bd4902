//! How the rest of the box speaks to a core: commands in, events and numbers out. The core never
//! waits for any of it.

use super::counters::Shown;
use super::job::JobTable;
use super::tap::Tap;
use crossbeam_queue::ArrayQueue;
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Commands and events that may wait at once.
const QUEUE: usize = 1024;

/// Longest completion latency that is told apart, in microseconds (one minute).
const LONGEST_US: u64 = 60_000_000;

/// From the control plane to a core.
#[derive(Debug)]
pub enum Command {
    /// Serve this job. Its id is free.
    Add(Box<JobTable>),
    /// Stop serving this job, free its frames and hand the table back.
    Remove(u16),
    /// From now on grant this job's ranks so many packets in flight.
    Credit {
        /// Job id.
        job: u16,
        /// Packets per rank and shard.
        credit: u16,
    },
    /// Fill in the report and hand it back.
    Report(Box<Report>),
    /// Copy packets from now on.
    Tap(Box<Tap>),
    /// Copy no more, and hand the tap back.
    Untap,
}

/// From a core to the control plane.
#[derive(Debug)]
pub enum Event {
    /// The table of a removed job, to be dropped where time does not matter.
    Removed(Box<JobTable>),
    /// The report that was asked for.
    Report(Box<Report>),
    /// A tap that copies no more, to be dropped where time does not matter.
    Untapped(Box<Tap>),
}

/// What is too large to be shown after every step.
#[derive(Clone, Debug)]
pub struct Report {
    /// Microseconds from a slot's first part to its completion.
    pub latency_us: Histogram<u64>,
}

impl Report {
    /// An empty one.
    ///
    /// # Panics
    /// Never: the bounds are constants that hdrhistogram takes.
    #[must_use]
    pub fn new() -> Self {
        let latency_us = Histogram::new_with_bounds(1, LONGEST_US, 2).expect("constant bounds");
        Self { latency_us }
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// The queue to a core is full: it has not looked at it for a long time.
#[derive(Debug, thiserror::Error)]
#[error("core of shard {shard} takes no commands ({QUEUE} are waiting): is it stopped or stuck?")]
pub struct CoreStuck {
    /// Shard of that core.
    pub shard: u16,
}

/// The control plane's side of a core. Clones speak to the same core.
#[derive(Clone, Debug)]
pub struct CoreHandle {
    /// Shard that the core owns.
    pub shard: u16,
    /// CPU that it is pinned to, where it is.
    pub cpu: Option<usize>,
    /// Frames that jobs may reserve: all but the port's reserve.
    pub capacity: u64,
    /// Bytes of one frame.
    pub frame_bytes: u64,
    /// What the core shows.
    pub shown: Arc<Shown>,
    commands: Arc<ArrayQueue<Command>>,
    events: Arc<ArrayQueue<Event>>,
    stop: Arc<AtomicBool>,
}

/// The core's side.
#[derive(Debug)]
pub struct CoreLink {
    /// Where the core shows its numbers.
    pub(super) shown: Arc<Shown>,
    pub(super) commands: Arc<ArrayQueue<Command>>,
    pub(super) events: Arc<ArrayQueue<Event>>,
    pub(super) stop: Arc<AtomicBool>,
}

impl CoreHandle {
    /// Both sides of a new core.
    #[must_use]
    pub fn new(
        shard: u16,
        cpu: Option<usize>,
        capacity: u64,
        frame_bytes: u64,
    ) -> (Self, CoreLink) {
        let handle = Self {
            shard,
            cpu,
            capacity,
            frame_bytes,
            shown: Arc::default(),
            commands: Arc::new(ArrayQueue::new(QUEUE)),
            events: Arc::new(ArrayQueue::new(QUEUE)),
            stop: Arc::default(),
        };
        let link = CoreLink {
            shown: handle.shown.clone(),
            commands: handle.commands.clone(),
            events: handle.events.clone(),
            stop: handle.stop.clone(),
        };
        (handle, link)
    }

    /// Gives the core a command.
    ///
    /// # Errors
    /// Where its queue is full.
    pub fn send(&self, command: Command) -> Result<(), CoreStuck> {
        self.commands.push(command).map_err(|_| CoreStuck { shard: self.shard })
    }

    /// Whether the core has taken all commands: it acts on each before it looks at further packets.
    #[must_use]
    pub fn has_taken_all(&self) -> bool {
        self.commands.is_empty()
    }

    /// The core's next event, if there is one. Never waits.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        self.events.pop()
    }

    /// Tells the core to return from its loop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
