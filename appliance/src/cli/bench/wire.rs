//! `gradbox bench wire`.

use super::{Found, core_and_load, each};
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
        let (box_cpu, load_cpu) = core_and_load();
        let mut usual = Settings::new(Port::Xdp, 4, 1500, Reply::Unicast);
        (usual.box_cpu, usual.load_cpu) = (box_cpu, load_cpu);
        usual.window = self.window.unwrap_or(usual.window);
        if usual.window == 0 {
            bail!("--window 0: needs at least 1");
        }
        if let Some(seconds) = self.seconds {
            if !(0.1..=3600.0).contains(&seconds) {
                bail!("--seconds {seconds}: needs 0.1 to 3600");
            }
            usual.sample = Duration::from_secs_f64(seconds / usual.samples as f64);
        }
        if let Some(workers) = self.workers.iter().find(|w| !(1..=32).contains(*w)) {
            bail!("--workers {workers}: needs 1 to 32");
        }
        let mut lines = vec![usual];
        if self.is_empty() {
            each(&mut lines, &Reply::ALL, |l, v| l.reply = v);
            let udp = lines.iter().map(|line| Settings { port: Port::Udp, ..*line });
            let udp: Vec<_> = udp.collect();
            each(&mut lines, &[4, 16], |l, v| l.workers = v);
            each(&mut lines, &[1500, MAX_MTU], |l, v| l.mtu = v);
            lines.extend(udp);
            return Ok(lines);
        }
        each(&mut lines, &self.port, |l, v| l.port = v);
        each(&mut lines, &self.transmit, |l, v| l.transmit = v);
        each(&mut lines, &self.reply, |l, v| l.reply = v);
        each(&mut lines, &self.workers, |l, v| l.workers = v);
        each(&mut lines, &self.mtu, |l, v| l.mtu = v);
        each(&mut lines, &self.dtype, |l, v| l.dtype = v);
        Ok(lines)
    }

    const fn is_empty(&self) -> bool {
        self.port.is_empty()
            && self.transmit.is_empty()
            && self.reply.is_empty()
            && self.workers.is_empty()
            && self.mtu.is_empty()
            && self.dtype.is_empty()
    }
}
