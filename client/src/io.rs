//! The I/O thread: owns socket and engine, takes commands, sleeps only with a bound.

use crate::engine::{Completed, Diagnosis, Engine, Transmit};
use crate::error::Error;
use crate::handle::{IDLE, UNFINISHED};
use crate::stats::{Report, Stats};
use crate::sys;
use crate::tensor::Tensor;
use crate::transport::{Flushed, Transport};
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest sleep: a bound on what a lost wake-up could cost.
const NAP: Duration = Duration::from_millis(100);
/// Results after which a group that nothing came to is worth a word.
const DEAF: u64 = 64;
/// Batches taken from the socket before something is sent again.
const BATCHES: usize = 8;

/// What ends a sleep early, besides a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// A packet has come.
    Readable,
    /// A packet has come, or one can be sent.
    Writable,
    /// Nothing.
    Woken,
}

/// Tensors by index in the job's table.
pub(crate) type Tensors = Vec<(u16, Tensor)>;

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Report, Error>,
    pub(crate) tensors: Tensors,
}

/// Where the I/O thread leaves the outcome of a call.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    outcome: Mutex<Option<Outcome>>,
    ready: Condvar,
}

/// A thread that panicked with the lock has left the value whole: every critical section is one
/// assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    fn put(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
        self.ready.notify_all();
    }

    pub(crate) fn is_ready(&self) -> bool {
        lock(&self.outcome).is_some()
    }

    /// Takes the outcome when it is there, at most after `timeout`.
    pub(crate) fn take(&self, timeout: Duration) -> Option<Outcome> {
        let guard = lock(&self.outcome);
        let waited = self.ready.wait_timeout_while(guard, timeout, |o| o.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// What a worker asks of its I/O thread.
pub(crate) enum Command {
    /// Begin a call.
    Submit { call: u64, tensors: Tensors, slot: Arc<Slot> },
    /// Give a call up.
    Cancel { call: u64 },
    /// Say why a call has not finished.
    Diagnose { call: u64, reply: SyncSender<Option<Diagnosis>> },
    /// End.
    Stop,
}

/// The I/O thread's belongings.
pub(crate) struct Io {
    pub(crate) engine: Engine,
    pub(crate) transport: Transport,
    pub(crate) commands: Receiver<Command>,
    /// A byte here wakes the thread.
    pub(crate) wake: UnixStream,
    pub(crate) stats: Arc<Mutex<Stats>>,
    /// By tensor: where it is.
    pub(crate) states: Arc<[AtomicU8]>,
    pub(crate) slots: HashMap<u64, Arc<Slot>>,
    /// What a call gets when the box refuses this worker.
    pub(crate) rejection: Box<dyn Fn(gradbox_protocol::ErrorCode) -> Error + Send>,
    /// Set once: no call can succeed any more.
    pub(crate) broken: Option<Error>,
    /// The job's group, until something came to it or its silence was told.
    pub(crate) silent_group: Option<SocketAddr>,
}

impl Io {
    /// Runs until it is told to stop; then every call that has not ended is given up.
    pub(crate) fn run(mut self) {
        let mut queue = VecDeque::new();
        while self.take_commands() {
            if let Err(error) = self.turn(&mut queue) {
                self.broken.get_or_insert(error);
            }
            if let Some(code) = self.engine.rejected()
                && self.broken.is_none()
            {
                self.broken = Some((self.rejection)(code));
            }
            self.hand_back();
        }
        self.broken.get_or_insert(Error::Stopped("the worker was dropped"));
        self.hand_back();
    }

    /// Returns whether to go on.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Submit { call, tensors, slot }) => self.submit(call, tensors, slot),
                Ok(Command::Cancel { call }) => {
                    let error = Error::Stopped("it was cancelled");
                    self.give_up(call, &error);
                }
                Ok(Command::Diagnose { call, reply }) => {
                    let now = sys::monotonic_ns();
                    // Nobody listens any more: nothing to tell.
                    let _ = reply.try_send(self.engine.diagnose(now, call));
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn submit(&mut self, call: u64, tensors: Tensors, slot: Arc<Slot>) {
        if let Some(error) = &self.broken {
            self.put(&slot, Outcome { result: Err(error.clone()), tensors });
            return;
        }
        match self.engine.submit(sys::monotonic_ns(), call, tensors) {
            Ok(()) => {
                self.slots.insert(call, slot);
            }
            Err(error) => self.put(&slot, Outcome { result: Err(error), tensors: Vec::new() }),
        }
    }

    /// Leaves an outcome, and frees the tensors for the next call where they were reduced.
    fn put(&self, slot: &Slot, outcome: Outcome) {
        let state = if outcome.result.is_ok() { IDLE } else { UNFINISHED };
        for (index, _) in &outcome.tensors {
            self.states[usize::from(*index)].store(state, Ordering::Release);
        }
        slot.put(outcome);
    }

    fn give_up(&mut self, call: u64, error: &Error) {
        if let Some(tensors) = self.engine.cancel(call)
            && let Some(slot) = self.slots.remove(&call)
        {
            self.put(&slot, Outcome { result: Err(error.clone()), tensors });
        }
    }

    /// Receives, acts on timers, sends, and sleeps where there was nothing to do.
    fn turn(&mut self, queue: &mut VecDeque<Transmit>) -> Result<(), Error> {
        if self.broken.is_some() {
            return self.sleep(Until::Readable, NAP);
        }
        let (mut drained, mut received) = (false, false);
        for _ in 0..BATCHES {
            let (engine, now) = (&mut self.engine, sys::monotonic_ns());
            drained = self.transport.receive(|bytes, marked| {
                received = true;
                engine.receive(now, bytes, marked);
            })?;
            if drained {
                break;
            }
        }
        let now = sys::monotonic_ns();
        // Only an empty socket tells that something is late.
        if drained {
            self.engine.tick(now);
        }
        let mut fresh = Vec::new();
        if queue.is_empty() {
            self.engine.transmit(now, &mut fresh);
            queue.extend(&fresh);
        }
        let flushed = self.transport.flush(&self.engine, queue)?;
        if !drained {
            return Ok(());
        }
        self.hand_back();
        let due = || {
            let due = self.engine.next_tick().map(|at| at.saturating_sub(sys::monotonic_ns()));
            due.map_or(NAP, Duration::from_nanos).min(NAP)
        };
        match (flushed, self.engine.gathering().filter(|_| received)) {
            (Flushed::Full, _) => self.sleep(Until::Writable, Duration::from_millis(1)),
            (Flushed::All, Some(time)) => {
                self.sleep(Until::Woken, due().min(Duration::from_nanos(time)))
            }
            (Flushed::All, None) if !fresh.is_empty() => Ok(()),
            (Flushed::All, None) => self.sleep(Until::Readable, due()),
        }
    }

    fn sleep(&mut self, until: Until, time: Duration) -> Result<(), Error> {
        // A broken socket stays readable: it would end every sleep.
        let deaf = until == Until::Woken || self.broken.is_some();
        let sockets = if deaf { [None; 2] } else { self.transport.fds() };
        let write = until == Until::Writable;
        let ready = sys::wait(sockets, write, Some(self.wake.as_fd()), time);
        let ready = ready.map_err(|e| Error::Socket {
            doing: "waiting for packets".into(),
            reason: e.to_string(),
        })?;
        if ready.woken {
            // The socket does not block; however many wake-ups there are, one look is enough.
            let _ = self.wake.read(&mut [0; 64]);
        }
        Ok(())
    }

    /// Says once that results come by repetition alone: right, but slow.
    fn tell_silence(&mut self, stats: &Stats) {
        if stats.multicast > 0 {
            self.silent_group = None;
        } else if stats.results >= DEAF
            && let Some(group) = self.silent_group.take()
        {
            tracing::warn!(
                %group,
                results = stats.results,
                "nothing comes to the multicast group, every result is asked for again: does a \
                 switch filter it (IGMP or MLD snooping without a querier), or a firewall?"
            );
        }
    }

    /// Hands ended calls back, and all of them once nothing can succeed.
    fn hand_back(&mut self) {
        let stats = self.engine.stats();
        *lock(&self.stats) = stats;
        self.tell_silence(&stats);
        while let Some(Completed { call, tensors, report }) = self.engine.completed() {
            if let Some(slot) = self.slots.remove(&call) {
                self.put(&slot, Outcome { result: Ok(report), tensors });
            }
        }
        if let Some(error) = self.broken.clone() {
            let calls: Vec<u64> = self.engine.running().collect();
            for call in calls {
                self.give_up(call, &error);
            }
        }
    }
}
