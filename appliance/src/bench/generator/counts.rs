//! What generator and sink have counted, read from any thread.

use aya::{
    Ebpf,
    maps::{Array, MapData, PerCpuArray},
};
use gradbox_protocol::bench::{Seen, State};

use crate::bench::bpf::{self, Error};

/// Counters since the generator was loaded; packets, where not said otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Sent.
    pub sent: u64,
    /// Turns that sent nothing, because the window was full.
    pub polls: u64,
    /// Sent again, in `sent` too.
    pub resent: u64,
    /// No longer waited for: sent again, or unanswered in a stall.
    pub written_off: u64,
    /// Stalls, in which all that was in flight was written off.
    pub stalls: u64,
    /// RESULTs.
    pub results: u64,
    /// Bytes of the RESULTs, from their Ethernet headers on.
    pub result_bytes: u64,
    /// Rounds of chunks that were seen to be complete.
    pub advanced: u64,
    /// STATUS packets.
    pub statuses: u64,
    /// ERROR packets.
    pub errors: u64,
    /// Gradbox packets of other kinds, jobs or chunks.
    pub other: u64,
    /// RESULTs that should have been handed out, but were too long or found no room.
    pub unsampled: u64,
}

/// Sees what a generator does, and stops it.
pub struct Watch {
    state: Array<MapData, [u64; State::COUNT]>,
    seen: PerCpuArray<MapData, u64>,
    stop: Array<MapData, u32>,
}

impl Watch {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        Ok(Self {
            state: bpf::take(ebpf, "STATE")?,
            seen: bpf::take(ebpf, "COUNTERS")?,
            stop: bpf::take(ebpf, "STOP")?,
        })
    }

    /// The counters. They go on while they are read: not all are of one moment.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn counts(&self) -> Result<Counts, Error> {
        let reading = "reading the counters of the load generator";
        let state = self.state.get(&0, 0).map_err(bpf::map(reading))?;
        let own = |field: State| state[field as usize];
        let seen = |seen: Seen| -> Result<u64, Error> {
            let of_cpus = self.seen.get(&(seen as u32), 0).map_err(bpf::map(reading))?;
            Ok(of_cpus.iter().sum())
        };
        Ok(Counts {
            sent: own(State::Sent),
            polls: own(State::Polls),
            resent: own(State::Resent),
            written_off: own(State::WrittenOff),
            stalls: own(State::Epoch),
            results: seen(Seen::Results)?,
            result_bytes: seen(Seen::ResultBytes)?,
            advanced: seen(Seen::Advanced)?,
            statuses: seen(Seen::Statuses)?,
            errors: seen(Seen::Errors)?,
            other: seen(Seen::Other)?,
            unsampled: seen(Seen::Unsampled)?,
        })
    }

    /// Has the generator send nothing more, in a run or in a later one.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn stop(&mut self) -> Result<(), Error> {
        self.stop.set(0, 1, 0).map_err(bpf::map("stopping the load generator"))
    }

    /// Lets it send again.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn resume(&mut self) -> Result<(), Error> {
        self.stop.set(0, 0, 0).map_err(bpf::map("resuming the load generator"))
    }
}
