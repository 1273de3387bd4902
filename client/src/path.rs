//! Does UDP reach the box? Asked once, right after join: a control plane that answers says nothing
//! about the data plane.

use crate::error::Error;
use crate::sys;
use crate::transport::Transport;
use gradbox_protocol::{Header, Kind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A box in health answers within a millisecond; a busy one gets this long.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(200);

/// Sends PING (`header` with job, rank and cookie set) to every shard at `data` until all have
/// answered. `control` is for the message.
pub(crate) fn check(
    transport: &mut Transport,
    header: Header,
    shards: u16,
    data: SocketAddr,
    control: &str,
) -> Result<(), Error> {
    let start = Instant::now();
    let mut silent: Vec<u16> = (0..shards).collect();
    let mut tries = 0u64;
    loop {
        for &shard in &silent {
            let mut ping = header;
            ping.kind = Kind::Ping as u8;
            ping.chunk = u32::from(shard).into();
            ping.stamp = (tries << 16 | u64::from(shard)).into();
            transport.send_header(shard, &ping)?;
        }
        tries += 1;
        let next = Instant::now() + AGAIN;
        while !silent.is_empty() {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            sys::wait(transport.fds(), false, None, left).map_err(|e| Error::Socket {
                doing: "waiting for PONG".into(),
                reason: e.to_string(),
            })?;
            transport.receive(|datagram, _| {
                if let Some((pong, _)) = Header::parse(datagram)
                    && pong.kind() == Some(Kind::Pong)
                {
                    let shard = (pong.stamp.get() & 0xffff) as u16;
                    silent.retain(|s| *s != shard);
                }
            })?;
        }
        let Some(first) = silent.first() else { return Ok(()) };
        if start.elapsed() >= PATIENCE {
            let data = SocketAddr::new(data.ip(), data.port() + first);
            let reason = format!(
                "no answer to {tries} PING in {:.0} s from {} of {shards} shards; check that no firewall drops UDP to that port and back, that the route to {} is the box's data interface, and `gradbox status` on the box for drop counters",
                start.elapsed().as_secs_f64(),
                silent.len(),
                data.ip(),
            );
            return Err(Error::DataPath { control: control.into(), data, reason });
        }
    }
}
