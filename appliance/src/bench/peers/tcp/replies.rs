//! Handing a sum back, to one worker or to all.

use super::aggregator::failed;
use super::{STALL, Settings, Side, TcpError};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::sendfile::sendfile64;
use nix::sys::socket::{MsgFlags, send};
use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// sendfile(2) takes whole pages.
const PAGE: u64 = 4096;

/// Where sums lie while they are sent.
pub(super) enum Replies {
    /// Every connection gets a copy of its own.
    Copied,
    /// One copy, in the page cache, is sent to all.
    Shared {
        /// A file in memory: a slot per block in flight. Block `b` may overwrite that of
        /// `b - window`: a worker that has pushed `b` has read the sum of that one.
        file: File,
        /// Bytes of a slot.
        stride: u64,
        /// Slots.
        window: u64,
    },
}

impl Replies {
    /// As the settings say.
    pub(super) fn new(settings: &Settings) -> Result<Self, TcpError> {
        if !settings.zero_copy {
            return Ok(Self::Copied);
        }
        let failed = TcpError::system(Side::Aggregator, "make a file in memory");
        let file = memfd_create("sums", MFdFlags::MFD_CLOEXEC).map_err(|e| failed(e.into()))?;
        let (file, window) = (File::from(file), settings.window as u64);
        let stride = (settings.block_bytes as u64).next_multiple_of(PAGE);
        file.set_len(stride * window).map_err(failed)?;
        Ok(Self::Shared { file, stride, window })
    }

    /// Sends `sum`, that of block number `block`, to `receivers`, which are by rank.
    pub(super) fn send(
        &self,
        receivers: &[TcpStream],
        block: u64,
        sum: &[u8],
    ) -> Result<(), TcpError> {
        let start = match self {
            Self::Copied => 0,
            Self::Shared { file, stride, window } => {
                let start = block % window * stride;
                let written = file.write_all_at(sum, start);
                written.map_err(TcpError::system(Side::Aggregator, "write a sum to memory"))?;
                start
            }
        };
        for (rank, connection) in receivers.iter().enumerate() {
            let sent = whole(sum.len(), |done| match self {
                Self::Copied => send(connection.as_raw_fd(), &sum[done..], MsgFlags::MSG_NOSIGNAL),
                Self::Shared { file, .. } => {
                    let mut at = start as i64 + done as i64;
                    sendfile64(connection, file, Some(&mut at), sum.len() - done)
                }
            });
            sent.map_err(|e| failed(rank, block, e))?;
        }
        Ok(())
    }
}

/// Calls `send` with the number of bytes sent so far until all `len` are.
fn whole(len: usize, mut send: impl FnMut(usize) -> nix::Result<usize>) -> nix::Result<()> {
    let deadline = Instant::now() + STALL;
    let mut done = 0;
    while done < len {
        match send(done) {
            Ok(n) => done += n,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        // The socket's own time limit begins anew with every call.
        if done < len && Instant::now() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
    }
    Ok(())
}
