//! Everything that can go wrong, in words that say what to do.

use gradbox_protocol::control::Refusal;
use gradbox_protocol::layout::LayoutError;
use gradbox_protocol::{DType, ErrorCode};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of range.
    #[error("option {option}: found {found}, needs {needs}")]
    Option {
        /// Name of the field.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        needs: &'static str,
    },
    /// The control plane cannot be reached, or does not speak as it should.
    #[error(
        "control plane at {control}: {reason}; is the box running, and is this its control address?"
    )]
    Control {
        /// HOST:PORT.
        control: String,
        /// What happened.
        reason: String,
    },
    /// The box speaks another version of the wire format.
    #[error(
        "the box at {control} speaks version {found} of the wire format, this worker {needs}: update the older one"
    )]
    Version {
        /// HOST:PORT of the control plane.
        control: String,
        /// The box's version.
        found: u8,
        /// This library's version.
        needs: u8,
    },
    /// The box refused the join; the numbers are in the refusal.
    #[error("the box refused rank {rank} of job {job} (HTTP {status}, {}): {}{}", refusal.error, refusal.message, Numbers(refusal))]
    Refused {
        /// Name of the job.
        job: String,
        /// Rank of this worker.
        rank: u8,
        /// HTTP status.
        status: u16,
        /// The box's answer.
        refusal: Refusal,
    },
    /// Other ranks did not join in time.
    #[error("waiting for {} of job {job}, {}: start them, or check that they use the same job name and box", Ranks(missing), Seconds(*waited))]
    JoinTimeout {
        /// Name of the job.
        job: String,
        /// Ranks that have not joined, ascending.
        missing: Vec<u8>,
        /// How long this worker waited.
        waited: Duration,
    },
    /// HTTP works and UDP does not.
    #[error("control plane at {control} answers, data plane at {data} does not: {reason}")]
    DataPath {
        /// HOST:PORT of the control plane.
        control: String,
        /// Address of the shard that is silent.
        data: SocketAddr,
        /// What was tried, and what to check.
        reason: String,
    },
    /// The tensor table has no layout.
    #[error("tensor table: {0}")]
    Layout(#[from] LayoutError),
    /// A call names a tensor that the table does not have.
    #[error("tensor {found} does not exist: the job's table has {tensors}")]
    UnknownTensor {
        /// Place that was named.
        found: usize,
        /// Length of the table.
        tensors: usize,
    },
    /// A call hands over fewer or more tensors than the table has.
    #[error(
        "found {found} tensors, needs {needs}: one for each entry of the job's table, in order (all_reduce_async takes any)"
    )]
    TensorCount {
        /// Tensors handed over.
        found: usize,
        /// Length of the table.
        needs: usize,
    },
    /// A tensor has another length than in the table.
    #[error("tensor {tensor}: found {found} elements, needs {needs} as in the job's table")]
    TensorLength {
        /// Its name.
        tensor: String,
        /// Elements handed over.
        found: u64,
        /// Elements in the table.
        needs: u64,
    },
    /// A tensor's type cannot travel as the job's.
    #[error("tensor {tensor}: found {found}, needs {wire}{}: the job's wire type is {wire}", if matches!(wire, DType::F16 | DType::Bf16) { " or f32" } else { "" })]
    TensorType {
        /// Its name.
        tensor: String,
        /// Type handed over.
        found: DType,
        /// Wire type of the job.
        wire: DType,
    },
    /// A tensor is being reduced already.
    #[error("tensor {tensor} is in flight: wait for the call that has it")]
    InFlight {
        /// Its name.
        tensor: String,
    },
    /// An earlier round of a tensor was given up, so that ranks no longer agree on its round.
    #[error(
        "tensor {tensor}: an earlier all-reduce of it was given up; drop this worker and join again"
    )]
    Unfinished {
        /// Its name.
        tensor: String,
    },
    /// A call did not finish in time.
    #[error("{0}")]
    Timeout(Box<Stall>),
    /// The box understood a packet and refused it; this worker is out of the job.
    #[error("the box refuses the packets of rank {rank} of job {job}: {}", Code(*code))]
    Rejected {
        /// Name of the job.
        job: String,
        /// Rank of this worker.
        rank: u8,
        /// Why.
        code: ErrorCode,
    },
    /// The kernel refused something for good.
    #[error("{doing}: {reason}")]
    Socket {
        /// What was being done.
        doing: String,
        /// The kernel's words, and what to check.
        reason: String,
    },
    /// The call was given up, or the I/O thread has ended.
    #[error("the call was given up: {0}")]
    Stopped(&'static str),
}

/// Why a call has not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Name of the job.
    pub job: String,
    /// How long the call has waited.
    pub waited: Duration,
    /// Name of its first unfinished tensor.
    pub tensor: String,
    /// Chunks of that tensor whose result is there.
    pub done: u64,
    /// Chunks of that tensor.
    pub total: u64,
    /// What it waits for.
    pub cause: Cause,
}

/// What a stalled call waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Other ranks have not pushed their part yet.
    Ranks(Vec<u8>),
    /// The box does not answer.
    Silent {
        /// Its data plane.
        address: SocketAddr,
        /// For how long.
        silent: Duration,
    },
    /// Box and ranks answer; the data is still on its way.
    Moving {
        /// Chunks of the whole call that the box is known to have.
        delivered: u64,
        /// Chunks of the whole call.
        total: u64,
    },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, waited, tensor, done, total, cause } = self;
        let waited = Seconds(*waited);
        match cause {
            Cause::Ranks(ranks) => write!(f, "waiting for {} of job {job}, {waited}", Ranks(ranks)),
            Cause::Silent { address, silent } => {
                write!(f, "no answer from the box at {address} for {}", Seconds(*silent))
            }
            Cause::Moving { delivered, total } => write!(
                f,
                "job {job} is not done after {waited}, the box has {delivered} of {total} chunks of this rank: allow more time"
            ),
        }?;
        write!(f, " (tensor {tensor}, {done} of {total} chunks done)")
    }
}

/// "rank 3" or "ranks 1, 3".
struct Ranks<'a>(&'a [u8]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            [] => "the box to start the job",
            [_] => "rank ",
            _ => "ranks ",
        })?;
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// "12 s", and below ten with a decimal where there is one: "0.4 s".
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0.as_secs_f64();
        let tenths = (s * 10.0).round() as u64;
        if tenths < 100 && !tenths.is_multiple_of(10) {
            write!(f, "{s:.1} s")
        } else {
            write!(f, "{s:.0} s")
        }
    }
}

/// The numbers of a refusal, where it has any that its message does not tell.
struct Numbers<'a>(&'a Refusal);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.needed_bytes, self.0.available_bytes) {
            (Some(needed), Some(available)) if !self.0.message.contains(&needed.to_string()) => {
                write!(f, " (needed {needed} bytes, available {available} bytes)")
            }
            _ => Ok(()),
        }
    }
}

/// What an error code means to the user.
struct Code(ErrorCode);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ErrorCode::UnknownJob => "the job has ended or the box was restarted; join again",
            ErrorCode::WrongCookie => {
                "a newer generation of the job has replaced this worker; join again"
            }
            ErrorCode::WrongRank => "the rank is not below the job's world",
            ErrorCode::WrongChunk => "the tensor table is not the job's (no such chunk)",
            ErrorCode::WrongLength => "the tensor table is not the job's (length of a chunk)",
            ErrorCode::WrongRound => {
                "the round of a tensor is not the job's; all ranks must reduce a tensor equally often"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(cause: Cause) -> String {
        let stall = Stall {
            job: "X".into(),
            waited: Duration::from_millis(12_040),
            tensor: "conv1.weight".into(),
            done: 17,
            total: 74,
            cause,
        };
        Error::Timeout(Box::new(stall)).to_string()
    }

    #[test]
    fn a_timeout_names_who_is_missing() {
        assert_eq!(
            stall(Cause::Ranks(vec![3])),
            "waiting for rank 3 of job X, 12 s (tensor conv1.weight, 17 of 74 chunks done)"
        );
        let silent = Duration::from_secs(5);
        let address = ([10, 0, 0, 1], 9100).into();
        assert_eq!(
            stall(Cause::Silent { address, silent }),
            "no answer from the box at 10.0.0.1:9100 for 5 s (tensor conv1.weight, 17 of 74 chunks done)"
        );
        let error = Error::JoinTimeout { job: "X".into(), missing: vec![1, 3], waited: silent };
        assert!(error.to_string().starts_with("waiting for ranks 1, 3 of job X, 5 s"));
    }
}
