//! Asking the kernel over netlink.
//!
//! Every request has a socket of its own, so it is the network namespace of the calling thread that
//! answers. The kernel handles a request within the system call that sends it: what is received
//! afterwards lies there already (or the loss of it, as ENOBUFS), so nothing waits for longer than
//! the driver works.

use std::io;

use netlink_bindings::traits::NetlinkRequest;
use netlink_socket2::{NetlinkSocket, ReplyError};

/// `ENOTSUPP` (linux/errno.h): the kernel's own number, that some drivers let out.
const ENOTSUPP: i32 = 524;

/// What the kernel says against a request.
#[derive(Debug)]
pub(super) struct Complaint {
    /// The error's number.
    pub(super) source: io::Error,
    /// The kernel's words for it (extended acknowledgement).
    pub(super) explanation: Option<String>,
}

impl Complaint {
    /// Whether it is this error of `errno.h`.
    pub(super) fn is(&self, number: i32) -> bool {
        self.source.raw_os_error() == Some(number)
    }

    /// Whether there is nothing of the kind.
    pub(super) fn is_unsupported(&self) -> bool {
        self.is(libc::EOPNOTSUPP) || self.is(ENOTSUPP)
    }
}

impl From<io::Error> for Complaint {
    fn from(source: io::Error) -> Self {
        Self { source, explanation: None }
    }
}

impl From<ReplyError> for Complaint {
    fn from(error: ReplyError) -> Self {
        let words = error.ext_ack().and_then(|ack| ack.get_msg().ok().map(|m| m.to_owned()));
        let explanation = words.map(|m| m.to_string_lossy().into_owned()).filter(|m| !m.is_empty());
        Self { source: error.into(), explanation }
    }
}

/// Sends a request that has one message for an answer, and reads that.
pub(super) fn one<R: NetlinkRequest, T>(
    request: &R,
    read: impl FnOnce(R::ReplyType<'_>) -> io::Result<T>,
) -> Result<T, Complaint> {
    let mut socket = NetlinkSocket::new();
    let mut reply = socket.request(request)?;
    Ok(read(reply.recv_one()?)?)
}

/// Sends a request that has a list for an answer, and reads every message of it.
pub(super) fn each<R: NetlinkRequest>(
    request: &R,
    mut read: impl FnMut(R::ReplyType<'_>),
) -> Result<(), Complaint> {
    let mut socket = NetlinkSocket::new();
    let mut reply = socket.request(request)?;
    while let Some(message) = reply.recv() {
        read(message?);
    }
    Ok(())
}

/// Sends a request that is only acknowledged.
pub(super) fn order<R: NetlinkRequest>(request: &R) -> Result<(), Complaint> {
    let mut socket = NetlinkSocket::new();
    Ok(socket.request(request)?.recv_ack()?)
}
