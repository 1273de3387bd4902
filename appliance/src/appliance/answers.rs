//! What sends the answers of the `xdp` port: its TX ring, or ordinary sockets.

use crate::config::{DataConfig, Transmit};
use crate::dataplane::udp::{Sender, UdpError};
use crate::xdp::socket::Mode;
use std::net::{IpAddr, SocketAddr};
use tracing::{info, warn};

/// The senders of all shards, where `transmit` and `mode` want sockets; `None` for the TX ring.
pub(super) fn senders(
    data: &DataConfig,
    interface: &str,
    addresses: &[IpAddr],
    mode: Mode,
    transmit: Transmit,
) -> Result<Option<Vec<Sender>>, UdpError> {
    if transmit == Transmit::Ring || (transmit == Transmit::Auto && mode == Mode::ZeroCopy) {
        info!(interface, transmit = "ring", "answers go by the TX ring");
        return Ok(None);
    }
    let sender = |shard| {
        let port = data.port_base + shard;
        let ends: Vec<_> = addresses.iter().map(|&ip| SocketAddr::new(ip, port)).collect();
        Sender::of_answers(&ends, interface)
    };
    match (0..data.queues).map(sender).collect() {
        Ok(senders) => {
            info!(interface, transmit = "socket", "answers go by ordinary sockets");
            Ok(Some(senders))
        }
        Err(error) if transmit == Transmit::Auto => {
            warn!(interface, %error, "no sockets for answers: they go by the TX ring, which is slower");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
