//! `gradbox bench wire`.

use super::{Found, core_and_load};
use crate::bench::wire::{self, MAX_MTU, Place, Port, Settings};
use crate::config::Transmit;
use anyhow::bail;
use gradbox_protocol::{DType, Reply};
use std::time::Duration;

/// The box on an interface. By default on a veth pair in namespaces of its own, for which it needs
/// root.
#[derive(clap::Args, Default)]
pub(super) struct RunWire {
    /// Ports: xdp, udp.
    #[arg(long, value_delimiter = ',')]
    port: Vec<Port>,
    /// What sends the answers of the port xdp: auto, ring, socket.
    #[arg(long, value_delimiter = ',')]
    transmit: Vec<Transmit>,
    /// Numbers of workers, 1 to 32.
    #[arg(long, value_delimiter = ',')]
    workers: Vec<u8>,
    /// MTUs, up to 3434.
    #[arg(long, value_delimiter = ',')]
    mtu: Vec<u16>,
    /// Replies: unicast, multicast.
    #[arg(long, value_delimiter = ',', value_parser = |s: &str| s.parse::<Reply>())]
    reply: Vec<Reply>,
    /// Element types.
    #[arg(long, value_delimiter = ',', value_parser = |s: &str| s.parse::<DType>())]
    dtype: Vec<DType>,
    /// Packets in flight at most.
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// Seconds that each line is measured.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Interface for the box, instead of a veth pair. Must be ready: one queue, MTU, link up.
    #[arg(long, requires = "load", value_name = "IF")]
    interface: Option<String>,
    /// Interface that the load is sent from, with a cable to the other one.
    #[arg(long, requires = "interface", value_name = "IF")]
    load: Option<String>,
}

impl RunWire {
    pub(super) fn run(&self, found: &mut Found) -> anyhow::Result<()> {
        for settings in self.lines()? {
            let Settings { port, workers, mtu, reply, dtype, .. } = settings;
            found.working_on(format!(
                "wire: {port}, {workers} workers, mtu {mtu}, {reply}, {dtype}"
            ));
            let settings = if found.tiny { settings.tiny() } else { settings };
            let place = match (&self.interface, &self.load) {
                (Some(interface), Some(load)) => Place::given(interface, load)?,
                _ => Place::own(port, workers, mtu)?,
            };
            let outcome = wire::measure(&settings, &place)?;
            if port == Port::Xdp {
                let interface = self.interface.as_deref().unwrap_or("veth pair");
                found.nic = Some(format!("{interface}, AF_XDP in {} mode", outcome.mode));
            }
            found.add(wire::figure(&settings, &outcome));
        }
        Ok(())
    }

    /// Every combination of what was asked for; the usual, where nothing was.
    fn lines(&self) -> anyhow::Result<Vec<Settings>> {
        let or = |asked: &[u8], usual: &[u8]| {
            if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
        };
        let (box_cpu, load_cpu) = core_and_load();
        let mut lines = Vec::new();
        let ports =
            if self.port.is_empty() { vec![Port::Xdp, Port::Udp] } else { self.port.clone() };
        let replies = if self.reply.is_empty() { Reply::ALL.to_vec() } else { self.reply.clone() };
        let mtus = if self.mtu.is_empty() { vec![1500, MAX_MTU] } else { self.mtu.clone() };
        let dtypes = if self.dtype.is_empty() { vec![DType::F32] } else { self.dtype.clone() };
        for &port in &ports {
            // The udp port has no choice.
            let transmits = match &self.transmit[..] {
                asked @ [_, ..] if port == Port::Xdp => asked,
                _ => &[Transmit::Auto],
            };
            for &reply in &replies {
                for workers in or(&self.workers, if port == Port::Xdp { &[4, 16] } else { &[4] }) {
                    for &mtu in &mtus {
                        for (&dtype, &transmit) in
                            dtypes.iter().flat_map(|d| transmits.iter().map(move |t| (d, t)))
                        {
                            let mut line = Settings::new(port, workers, mtu, reply);
                            (line.dtype, line.box_cpu, line.load_cpu) = (dtype, box_cpu, load_cpu);
                            line.transmit = transmit;
                            line.window = self.window.unwrap_or(line.window);
                            if let Some(seconds) = self.seconds {
                                if !(0.1..=3600.0).contains(&seconds) {
                                    bail!("--seconds {seconds}: needs 0.1 to 3600");
                                }
                                line.sample =
                                    Duration::from_secs_f64(seconds / line.samples as f64);
                            }
                            if !(1..=32).contains(&workers) {
                                bail!("--workers {workers}: needs 1 to 32");
                            }
                            if line.window == 0 {
                                bail!("--window 0: needs at least 1");
                            }
                            lines.push(line);
                        }
                    }
                }
            }
        }
        Ok(lines)
    }
}
