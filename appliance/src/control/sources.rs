//! Whose packets are let in: the seam to the XDP program's allow-list.

use std::error::Error;
use std::net::IpAddr;

/// Why an address could not be allowed or revoked, or counters not be read.
pub type SourcesError = Box<dyn Error + Send + Sync>;

/// The addresses that may send to the data plane.
pub trait Sources {
    /// Lets packets from `ip` in. Calls add up: it takes as many [`revoke`](Self::revoke)s to
    /// shut it out again.
    ///
    /// # Errors
    /// Where there is no room for it, or the kernel refuses; the call then does not count.
    fn allow(&mut self, ip: IpAddr) -> Result<(), SourcesError>;

    /// Takes back one [`allow`](Self::allow).
    ///
    /// # Errors
    /// Where the kernel refuses.
    fn revoke(&mut self, ip: IpAddr) -> Result<(), SourcesError>;

    /// What the filter decided, by name, in packets; empty where it counts nothing.
    ///
    /// # Errors
    /// Where the kernel refuses to tell.
    fn counters(&self) -> Result<Vec<(&'static str, u64)>, SourcesError>;
}

/// No filter: for the `udp` port, where the cores alone check who sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenSources;

impl Sources for OpenSources {
    fn allow(&mut self, _: IpAddr) -> Result<(), SourcesError> {
        Ok(())
    }

    fn revoke(&mut self, _: IpAddr) -> Result<(), SourcesError> {
        Ok(())
    }

    fn counters(&self) -> Result<Vec<(&'static str, u64)>, SourcesError> {
        Ok(Vec::new())
    }
}
