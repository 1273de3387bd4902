//! A call that is under way.

use crate::convert;
use crate::error::{Cause, Error, Stall};
use crate::io::{Command, Outcome, Slot, Tensors};
use crate::stats::{Report, Stats};
use crate::sys;
use crate::tensor::Tensor;
use gradbox_protocol::DType;
use gradbox_protocol::control::TensorEntry;
use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the I/O thread, which never sleeps longer than a tenth of this, may take to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// Where a tensor is.
pub(crate) const IDLE: u8 = 0;
pub(crate) const IN_FLIGHT: u8 = 1;
/// A round of it was given up.
pub(crate) const UNFINISHED: u8 = 2;

/// Tensors with their places in the table.
type Indexed = Vec<(usize, Tensor)>;

/// A call that has ended well.
#[derive(Debug)]
pub struct Finished {
    /// Place in the table and data of each tensor, in the order of the call, with the sums in place
    /// of the inputs.
    pub tensors: Vec<(usize, Tensor)>,
    /// What the call did.
    pub report: Report,
}

/// A call that is under way. Dropping it does not end the call: the tensors are reduced all the same
/// (other ranks need this rank's part) and then freed.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    call: u64,
    slot: Arc<Slot>,
    /// By tensor of the call: its place in the table, and the f32 values where it travels as a
    /// narrower type. `None` once the tensors are handed back.
    originals: Option<Vec<(usize, Option<Vec<f32>>)>>,
    started_ns: u64,
    /// The call failed, and with these tensors.
    failure: Option<(Error, Tensors)>,
}

impl Handle {
    /// Whether [`Self::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.originals.is_none() || self.failure.is_some() || self.slot.is_ready()
    }

    /// Waits for the sums, at most `timeout`, by default the options'.
    ///
    /// # Errors
    /// [`Error::Timeout`] where time runs out: it says who is waited for, the call goes on and may be
    /// waited for again. Any other error is final; [`Self::cancel`] then returns the tensors.
    /// [`Error::Stopped`] where the tensors were handed back before.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Finished, Error> {
        if let Some((error, _)) = &self.failure {
            return Err(error.clone());
        }
        if self.originals.is_none() {
            return Err(Error::Stopped("its tensors were handed back already"));
        }
        let timeout = timeout.unwrap_or(self.shared.timeout);
        if let Some(outcome) = self.slot.take(timeout) {
            return self.end(outcome);
        }
        match self.shared.stall(self.call) {
            Some(stall) => Err(Error::Timeout(Box::new(stall))),
            // It ended while we asked, or the thread did.
            None => match self.slot.take(Duration::ZERO) {
                Some(outcome) => self.end(outcome),
                None => Err(Error::Stopped("the I/O thread has ended")),
            },
        }
    }

    fn end(&mut self, outcome: Outcome) -> Result<Finished, Error> {
        match outcome.result {
            Ok(mut report) => {
                let tensors = self.restore(outcome.tensors, true);
                // Conversion to and from the wire type belongs to the call.
                report.started_ns = self.started_ns;
                if self.shared.wire_is_narrow() {
                    report.finished_ns = sys::monotonic_ns();
                }
                Ok(Finished { tensors, report })
            }
            Err(error) => {
                self.failure = Some((error.clone(), outcome.tensors));
                Err(error)
            }
        }
    }

    /// Gives the call up, where it has not ended, and returns its tensors, their contents a mixture
    /// of inputs and sums. Ranks then no longer agree on the round of these tensors: to reduce them
    /// again, all ranks join again. Empty where the tensors were handed back before.
    #[must_use]
    pub fn cancel(mut self) -> Vec<(usize, Tensor)> {
        if let Some((_, tensors)) = self.failure.take() {
            return self.restore(tensors, false);
        }
        if self.originals.is_none() {
            return Vec::new();
        }
        // Where the thread has ended it has left an outcome.
        let _ = self.shared.command(Command::Cancel { call: self.call });
        match self.slot.take(ANSWER) {
            Some(Outcome { result: Ok(_), tensors }) => self.restore(tensors, true),
            Some(Outcome { tensors, .. }) => self.restore(tensors, false),
            None => Vec::new(),
        }
    }

    /// Turns tensors of the wire into those of the caller.
    fn restore(&mut self, tensors: Tensors, reduced: bool) -> Vec<(usize, Tensor)> {
        let originals = self.originals.take().unwrap_or_default();
        let restored = originals.into_iter().zip(tensors).map(|((index, kept), (_, wire))| {
            let tensor = match kept {
                Some(mut values) => {
                    if reduced {
                        convert::widen(&wire, &mut values);
                    }
                    Tensor::F32(values)
                }
                None => wire,
            };
            (index, tensor)
        });
        restored.collect()
    }
}

/// What a worker and its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) job: String,
    pub(crate) wire: DType,
    pub(crate) timeout: Duration,
    pub(crate) table: Vec<TensorEntry>,
    /// By tensor: [`IDLE`], [`IN_FLIGHT`] or [`UNFINISHED`].
    pub(crate) states: Arc<[AtomicU8]>,
    pub(crate) commands: Sender<Command>,
    pub(crate) wake: UnixStream,
    pub(crate) next_call: AtomicU64,
    pub(crate) stats: Arc<Mutex<Stats>>,
    pub(crate) data: SocketAddr,
}

impl Shared {
    /// Gives the I/O thread something to do; where it has ended, the command comes back.
    pub(crate) fn command(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|e| e.0)?;
        // A full pipe wakes just as well.
        let _ = (&self.wake).write(&[1]);
        Ok(())
    }

    /// Whether f32 tensors are converted.
    const fn wire_is_narrow(&self) -> bool {
        matches!(self.wire, DType::F16 | DType::Bf16)
    }

    fn name(&self, tensor: usize) -> String {
        self.table.get(tensor).map_or_else(|| tensor.to_string(), |t| t.name.clone())
    }

    /// Why `call` has not finished; `None` where it has.
    fn stall(&self, call: u64) -> Option<Stall> {
        let (reply, answer) = sync_channel(1);
        self.command(Command::Diagnose { call, reply }).ok()?;
        let d = answer.recv_timeout(ANSWER).ok().flatten()?;
        let cause = match (d.silent, d.waiting) {
            (Some(silent), _) => {
                Cause::Silent { address: self.data, silent: Duration::from_nanos(silent) }
            }
            (None, Some(waiting)) => Cause::Ranks(waiting.ranks()),
            (None, None) => Cause::Moving { delivered: d.delivered, total: d.chunks },
        };
        Some(Stall {
            job: self.job.clone(),
            waited: Duration::from_nanos(d.waited),
            tensor: self.name(usize::from(d.tensor)),
            done: d.done,
            total: d.total,
            cause,
        })
    }

    /// Whether `tensors` are as in the table and at rest.
    pub(crate) fn check<'a>(
        &self,
        tensors: impl Iterator<Item = (usize, &'a Tensor)>,
    ) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for (index, tensor) in tensors {
            let Some(entry) = self.table.get(index) else {
                return Err(Error::UnknownTensor { found: index, tensors: self.table.len() });
            };
            let name = || entry.name.clone();
            let found = tensor.len() as u64;
            if found != entry.elements {
                return Err(Error::TensorLength { tensor: name(), found, needs: entry.elements });
            }
            if !convert::allowed(tensor.dtype(), self.wire) {
                let (found, wire) = (tensor.dtype(), self.wire);
                return Err(Error::TensorType { tensor: name(), found, wire });
            }
            let state = self.states[index].load(Ordering::Acquire);
            if state == UNFINISHED {
                return Err(Error::Unfinished { tensor: name() });
            }
            if state == IN_FLIGHT || !seen.insert(index) {
                return Err(Error::InFlight { tensor: name() });
            }
        }
        Ok(())
    }

    /// Hands `tensors`, which were checked, to the I/O thread. On error they come back.
    pub(crate) fn start(
        self: &Arc<Self>,
        tensors: Vec<(usize, Tensor)>,
    ) -> Result<Handle, Box<(Error, Indexed)>> {
        // Another thread may have been faster since the check.
        for (i, (index, _)) in tensors.iter().enumerate() {
            let (relaxed, state) = (Ordering::Relaxed, &self.states[*index]);
            if state.compare_exchange(IDLE, IN_FLIGHT, Ordering::AcqRel, relaxed).is_err() {
                for (index, _) in &tensors[..i] {
                    self.states[*index].store(IDLE, Ordering::Release);
                }
                return Err(Box::new((Error::InFlight { tensor: self.name(*index) }, tensors)));
            }
        }
        let started_ns = sys::monotonic_ns();
        let mut originals = Vec::with_capacity(tensors.len());
        let mut wire = Vec::with_capacity(tensors.len());
        for (index, tensor) in tensors {
            let (sent, kept) = match tensor {
                Tensor::F32(values) => match convert::narrow(&values, self.wire) {
                    Some(narrow) => (narrow, Some(values)),
                    None => (Tensor::F32(values), None),
                },
                other => (other, None),
            };
            wire.push((index as u16, sent));
            originals.push((index, kept));
        }
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Slot::default());
        let command = Command::Submit { call, tensors: wire, slot: Arc::clone(&slot) };
        let shared = Arc::clone(self);
        let mut handle =
            Handle { shared, call, slot, originals: Some(originals), started_ns, failure: None };
        let tensors = match self.command(command) {
            Ok(()) => return Ok(handle),
            Err(Command::Submit { tensors, .. }) => handle.restore(tensors, false),
            Err(_) => Vec::new(),
        };
        Err(Box::new((Error::Stopped("the I/O thread has ended"), tensors)))
    }
}
