//! Networks that a benchmark makes for itself, and that vanish with its process.
//!
//! * [`Namespace`]: an empty network, without a name
//! * [`Pair`]: the box and all workers at the two ends of one link
//! * [`Star`]: the box and each worker at a link of their own, behind a bridge
//!
//! Nothing outside these namespaces is touched, and nothing of them is left, even after `kill -9`.

mod error;
mod namespace;
#[cfg(test)]
mod tests;

pub use error::NetworkError;
pub use namespace::Namespace;
pub(super) use namespace::{capture, printed};

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// Most workers of a network.
pub const MAX_WORKERS: u8 = 32;

/// Address of the box, in a network of 24 bits.
pub const BOX_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The box's interface.
pub const BOX_INTERFACE: &str = "box0";

/// The interface of all workers of a [`Pair`].
pub const WORKERS_INTERFACE: &str = "workers0";

/// The interface of each worker of a [`Star`].
pub const WORKER_INTERFACE: &str = "eth0";

/// Longest wait for a carrier.
const CARRIER_WAIT: Duration = Duration::from_secs(5);

/// Address of the worker `rank` (less than [`MAX_WORKERS`]).
#[must_use]
pub const fn worker_address(rank: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 10 + rank)
}

/// What links are like.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Bytes of the longest IP packet: 68 to 65535, and at most 3506 under an XDP program.
    pub mtu: u16,
    /// Queues, both ways, of the interfaces at the box's link: 1 or more.
    pub queues: u16,
}

/// The box and its workers at the two ends of one veth link.
///
/// All workers share one interface and have an address each. Neighbours are entered by hand, so no
/// packet passes but those that are sent.
#[derive(Debug)]
pub struct Pair {
    /// Where the box is: [`BOX_INTERFACE`] with [`BOX_ADDRESS`].
    pub boxes: Namespace,
    /// Where the workers are: [`WORKERS_INTERFACE`] with [`worker_address`] of every rank.
    pub workers: Namespace,
}

impl Pair {
    /// Makes the network for `workers` workers.
    ///
    /// # Errors
    /// More workers than there are addresses, no permission, a missing program, or a refused number.
    pub fn new(workers: u8, wire: Wire) -> Result<Self, NetworkError> {
        check(workers)?;
        let pair = Self { boxes: Namespace::new()?, workers: Namespace::new()? };
        let far = End { namespace: &pair.workers, interface: WORKERS_INTERFACE, last: 2 };
        let near = End { namespace: &pair.boxes, interface: BOX_INTERFACE, last: 1 };
        veth(&near, &far, wire)?;
        near.address(BOX_ADDRESS)?;
        far.neighbour(BOX_ADDRESS, &near)?;
        for address in (0..workers).map(worker_address) {
            far.address(address)?;
            near.neighbour(address, &far)?;
        }
        near.settle()?;
        far.settle()?;
        Ok(pair)
    }

    /// Turns the offloads of both ends on or off: segmentation (tso, gso), coalescing (gro) and
    /// checksums. On, TCP passes a veth link in pieces of 64 KB; off, in packets of the MTU with
    /// checksums computed, as a NIC without offloads would have it.
    ///
    /// # Errors
    /// `ethtool` is missing or refuses.
    pub fn offloads(&self, on: bool) -> Result<(), NetworkError> {
        let state = if on { "on" } else { "off" };
        for (namespace, interface) in
            [(&self.boxes, BOX_INTERFACE), (&self.workers, WORKERS_INTERFACE)]
        {
            let mut args = vec!["-K", interface];
            for feature in ["tx", "rx", "tso", "gso", "gro"] {
                args.extend([feature, state]);
            }
            namespace.command("ethtool", &args)?;
        }
        Ok(())
    }
}

/// The box and each worker in a namespace of their own, behind a bridge, as for the replay of a
/// training job.
///
/// ```text
/// worker 0 --- eth0 ---+
/// worker 1 --- eth0 ---+--- bridge --- box0 --- box
/// ...                  |
/// ```
///
/// A limited rate is that of each worker's link, full duplex: what a worker sends is limited on its
/// own interface, what is sent to it on its port of the bridge (AF_XDP bypasses the queueing of
/// the interface that it sends on, but not that of the port). The box's own link is not limited:
/// a box has the NIC for all its workers at once.
#[derive(Debug)]
pub struct Star {
    /// Where the bridge is; its ports are `box` and `w0`, `w1` and so on.
    pub switch: Namespace,
    /// Where the box is: [`BOX_INTERFACE`] with [`BOX_ADDRESS`].
    pub boxes: Namespace,
    /// Where each worker is, by rank: [`WORKER_INTERFACE`] with its [`worker_address`].
    pub workers: Vec<Namespace>,
}

impl Star {
    /// Makes the network for `workers` workers. `rate` limits each worker's link, in bits per second
    /// of Ethernet frames; TCP gets nine tenths of it and more.
    ///
    /// # Errors
    /// As for [`Pair::new`].
    pub fn new(workers: u8, wire: Wire, rate: Option<u64>) -> Result<Self, NetworkError> {
        check(workers)?;
        let ranks = (0..workers).map(|_| Namespace::new()).collect::<Result<_, _>>()?;
        let star = Self { switch: Namespace::new()?, boxes: Namespace::new()?, workers: ranks };
        let mtu = wire.mtu.to_string();
        let ip = |args: &[&str]| star.switch.command("ip", args);
        ip(&["link", "add", "br0", "mtu", &mtu, "type", "bridge", "mcast_snooping", "0"])?;
        ip(&["link", "set", "br0", "up"])?;
        star.switch.run(without_bridge_filters)??;
        let host = End { namespace: &star.boxes, interface: BOX_INTERFACE, last: 1 };
        star.connect("box", &host, BOX_ADDRESS, wire, None)?;
        for (rank, namespace) in (0..).zip(&star.workers) {
            let host = End { namespace, interface: WORKER_INTERFACE, last: 10 + rank };
            let wire = Wire { queues: 1, ..wire };
            star.connect(&format!("w{rank}"), &host, worker_address(rank), wire, rate)?;
        }
        Ok(star)
    }

    /// Connects `host` to the bridge's port `name`.
    fn connect(
        &self,
        name: &str,
        host: &End<'_>,
        address: Ipv4Addr,
        wire: Wire,
        rate: Option<u64>,
    ) -> Result<(), NetworkError> {
        let port = End { namespace: &self.switch, interface: name, last: 100 + host.last };
        veth(&port, host, wire)?;
        self.switch.command("ip", &["link", "set", name, "master", "br0"])?;
        host.address(address)?;
        if let Some(rate) = rate {
            port.limit(rate)?;
            host.limit(rate)?;
        }
        port.settle()?;
        host.settle()
    }
}

/// One end of a link.
struct End<'a> {
    namespace: &'a Namespace,
    interface: &'a str,
    /// Last byte of its MAC address.
    last: u8,
}

impl End<'_> {
    fn mac(&self) -> String {
        format!("02:67:62:00:00:{:02x}", self.last)
    }

    fn address(&self, address: Ipv4Addr) -> Result<(), NetworkError> {
        let args = ["address", "add", &format!("{address}/24"), "dev", self.interface];
        self.namespace.command("ip", &args).map(drop)
    }

    /// Enters `to` as the place of `address` for good: no ARP.
    fn neighbour(&self, address: Ipv4Addr, to: &End<'_>) -> Result<(), NetworkError> {
        let (address, mac) = (address.to_string(), to.mac());
        let args = ["neighbour", "replace", &address, "lladdr", &mac, "dev", self.interface];
        self.namespace.command("ip", &[&args[..], &["nud", "permanent"]].concat()).map(drop)
    }

    /// Limits what leaves here, in bits per second.
    fn limit(&self, rate: u64) -> Result<(), NetworkError> {
        let rate = format!("{rate}bit");
        let args = ["qdisc", "add", "dev", self.interface, "root", "tbf", "rate", &rate];
        let rest = ["burst", "128kb", "latency", "20ms"];
        self.namespace.command("tc", &[&args[..], &rest].concat()).map(drop)
    }

    /// Waits for the carrier: before, packets are lost.
    fn settle(&self) -> Result<(), NetworkError> {
        let deadline = Instant::now() + CARRIER_WAIT;
        let args = ["-oneline", "link", "show", "dev", self.interface];
        while !self.namespace.command("ip", &args)?.contains("state UP") {
            if Instant::now() > deadline {
                let (interface, seconds) = (self.interface.to_owned(), CARRIER_WAIT.as_secs());
                return Err(NetworkError::NoCarrier { interface, seconds });
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Links two namespaces.
fn veth(near: &End<'_>, far: &End<'_>, wire: Wire) -> Result<(), NetworkError> {
    let (mtu, queues) = (wire.mtu.to_string(), wire.queues.to_string());
    let shape = ["mtu", &mtu, "numtxqueues", &queues, "numrxqueues", &queues];
    let (near_mac, far_mac, path) = (near.mac(), far.mac(), far.namespace.path());
    let mut args = vec!["link", "add", near.interface, "address", &near_mac];
    args.extend(shape);
    args.extend(["type", "veth", "peer", "name", far.interface, "address", &far_mac]);
    args.extend(["netns", &path]);
    args.extend(shape);
    near.namespace.command("ip", &args)?;
    for end in [near, far] {
        end.namespace.command("ip", &["link", "set", end.interface, "up"])?;
    }
    Ok(())
}

/// Lets this thread's bridges pass packets by the firewall, as a switch does.
fn without_bridge_filters() -> Result<(), NetworkError> {
    for family in ["iptables", "ip6tables", "arptables"] {
        match fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), "0") {
            // Bridges have no such filters here.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => {
                let what = "turn the firewall of a bridge off";
                other.map_err(|source| NetworkError::Namespace { what, source })?;
            }
        }
    }
    Ok(())
}

fn check(workers: u8) -> Result<(), NetworkError> {
    if (1..=MAX_WORKERS).contains(&workers) {
        Ok(())
    } else {
        Err(NetworkError::Workers { found: workers })
    }
}
