//! What a configuration needs of the machine.

use crate::config::{Attach, Config, PortConfig, XdpMode};

/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;

/// What a configuration needs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// What it needs of an interface; `None` with ordinary sockets.
    pub xdp: Option<Xdp>,
    /// Queues, which are also cores and shards.
    pub queues: u32,
    /// CPUs of the cores: none, or as many as queues.
    pub cpus: Vec<usize>,
    /// UDP port of the first shard.
    pub port_base: u16,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Bytes of a frame.
    pub frame_bytes: u32,
    /// Entries of the fill ring.
    pub fill_ring: u32,
    /// Entries of the RX ring.
    pub rx_ring: u32,
    /// Entries of the TX ring.
    pub tx_ring: u32,
    /// Bytes of all cores' frames.
    pub memory_bytes: u64,
    /// Pages of 2 MiB for all cores' frames; 0 where ordinary ones will do.
    pub huge_pages: u64,
}

/// What the box needs of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// Its name.
    pub interface: String,
    /// Zero-copy, copy, or the better one.
    pub mode: XdpMode,
    /// Where the XDP program runs.
    pub attach: Attach,
}

impl From<&Config> for Needs {
    fn from(config: &Config) -> Self {
        let data = &config.data;
        let core_bytes = config.frames_per_core() * u64::from(config.frame_bytes());
        let queues = u64::from(data.queues);
        // Each core's memory is a mapping of its own, in whole pages.
        let pages = if data.huge_pages { core_bytes.div_ceil(HUGE_PAGE) } else { 0 };
        Self {
            xdp: match &data.port {
                PortConfig::Xdp { interface, mode, attach, .. } => {
                    Some(Xdp { interface: interface.clone(), mode: *mode, attach: *attach })
                }
                PortConfig::Udp => None,
            },
            queues: data.queues.into(),
            cpus: data.cpus.clone(),
            port_base: data.port_base,
            mtu: data.mtu.into(),
            frame_bytes: config.frame_bytes(),
            fill_ring: data.rings.fill,
            rx_ring: data.rings.rx,
            tx_ring: data.rings.tx,
            memory_bytes: core_bytes * queues,
            huge_pages: pages * queues,
        }
    }
}

impl Needs {
    /// Name of the interface; `None` with ordinary sockets.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.xdp.as_ref().map(|xdp| xdp.interface.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_configuration_says_what_it_needs() {
        let text = "[data]\nport = \"xdp\"\ninterface = \"eth1\"\nqueues = 2\ncpus = [2, 3]\n\
                    mtu = 3498\nmemory_mib = 130\nhuge_pages = true\n";
        let needs = Needs::from(&Config::parse(text, Path::new("box.toml")).unwrap());
        assert_eq!(needs.interface(), Some("eth1"));
        assert_eq!((needs.memory_bytes, needs.huge_pages), (260 << 20, 130));
        assert_eq!((needs.cpus, needs.mtu, needs.frame_bytes), (vec![2, 3], 3498, 4096));
        let udp = Config::parse("[data]\nport = \"udp\"\n", Path::new("box.toml")).unwrap();
        assert_eq!(Needs::from(&udp).interface(), None);
    }
}
