//! From what the file says to what the box does: defaults, ranges, and fields that contradict.

use super::error::{ConfigError, Source};
use super::file::{Control, Data, Faults as FaultsSection, Field, File, Port};
use super::groups::groups;
use super::{Config, ControlConfig, DataConfig, Faults, MAX_QUEUES, PortConfig, Rings};
use gradbox_protocol::chunk_bytes;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;
use toml::Spanned;

/// Ethernet header and one VLAN tag.
const LINK_BYTES: usize = 18;

/// What AF_XDP leaves of a frame for a packet: the frame less the kernel's 256 bytes and at
/// most 54 of headroom, which aligns the payload.
const ROOM: [(usize, u32); 2] = [(1738, 2048), (3786, 4096)];

/// Bytes of a reserved huge page.
const HUGE_PAGE: u64 = 2 << 20;

/// Most frames of a core: slots have 32 bits for one.
const MAX_FRAMES: u64 = u32::MAX as u64;

type Checked<T> = Result<T, ConfigError>;

/// Checks a whole file.
pub(super) fn config(text: &str, path: &Path) -> Checked<Config> {
    let source = Source { text, path };
    let file: File = toml::from_str(text).map_err(|error| source.unparsable(&error))?;
    Ok(Config {
        control: control(&source, file.control)?,
        data: data(&source, file.data)?,
        faults: file.faults.map(|faults| self::faults(&source, faults)).transpose()?,
        level: file.log.level.map(Spanned::into_inner).unwrap_or_default(),
    })
}

fn control(source: &Source<'_>, c: Control) -> Checked<ControlConfig> {
    let token = c.token.map(|token| {
        if token.get_ref().is_empty() {
            let reason = "empty: give one, or remove the field for a box without a token";
            return Err(source.refuse(token.span(), "control.token", reason));
        }
        Ok(token.into_inner())
    });
    let seconds = |field, key, default, range| {
        within(source, field, key, default, range).map(Duration::from_secs)
    };
    Ok(ControlConfig {
        listen: plain(c.listen, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9099))),
        token: token.transpose()?,
        idle_timeout: seconds(c.idle_timeout_s, "control.idle_timeout_s", 900, 1..=31_536_000)?,
        join_timeout: seconds(c.join_timeout_s, "control.join_timeout_s", 10, 1..=3600)?,
    })
}

fn data(source: &Source<'_>, data: Spanned<Data>) -> Checked<DataConfig> {
    let section = data.span();
    let mut d = data.into_inner();
    let port = port(source, section.clone(), &mut d)?;
    let queues = within(source, d.queues.clone(), "data.queues", 1, 1..=MAX_QUEUES)?;
    let (mtu, chunk_bytes, least) = mtu(source, d.mtu.clone())?;
    let frame_bytes = frame_bytes(source, d.frame_bytes.clone(), mtu, least)?;
    let rings = rings(source, &d)?;
    let huge_pages = plain(d.huge_pages.clone(), false);
    let frames = frames(source, section, &d, frame_bytes, &rings, huge_pages)?;
    Ok(DataConfig {
        addresses: addresses(source, d.addresses, port == PortConfig::Udp)?,
        port,
        groups: groups(source, d.multicast)?,
        port_base: port_base(source, d.port_base, queues)?,
        queues,
        cpus: cpus(source, d.cpus, queues)?,
        mtu,
        chunk_bytes,
        frame_bytes,
        frames,
        rings,
        huge_pages,
        idle: d.idle.map(Spanned::into_inner).unwrap_or_default(),
        udp_checksum: d.udp_checksum.map(Spanned::into_inner).unwrap_or_default(),
    })
}

fn port(source: &Source<'_>, section: Range<usize>, d: &mut Data) -> Checked<PortConfig> {
    let Some(port) = d.port.take() else {
        let reason = "missing: say \"xdp\" (AF_XDP on an interface) or \"udp\" (ordinary sockets)";
        return Err(source.refuse(section, "data.port", reason));
    };
    let (interface, mode, attach) = (d.interface.take(), d.mode.take(), d.attach.take());
    let transmit = d.transmit.take();
    if *port.get_ref() == Port::Udp {
        let xdp_only = [
            (interface.map(|f| f.span()), "data.interface"),
            (mode.map(|f| f.span()), "data.mode"),
            (attach.map(|f| f.span()), "data.attach"),
            (transmit.map(|f| f.span()), "data.transmit"),
            (d.udp_checksum.as_ref().map(Spanned::span), "data.udp_checksum"),
        ];
        for (span, key) in xdp_only {
            if let Some(span) = span {
                let reason = "is for port = \"xdp\" alone, and port is \"udp\": remove one of them";
                return Err(source.refuse(span, key, reason));
            }
        }
        return Ok(PortConfig::Udp);
    }
    let Some(interface) = interface else {
        let reason = "missing: port = \"xdp\" needs the name of an interface (`ip -br link`)";
        return Err(source.refuse(port.span(), "data.interface", reason));
    };
    let name = interface.get_ref();
    // The kernel's IFNAMSIZ is 16 with the zero at the end.
    let valid = (1..16).contains(&name.len())
        && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
    if !valid {
        let reason = format!("{name:?} is no interface's name: 1 to 15 bytes, no space, no slash");
        return Err(source.refuse(interface.span(), "data.interface", &reason));
    }
    Ok(PortConfig::Xdp {
        interface: interface.into_inner(),
        mode: mode.map(Spanned::into_inner).unwrap_or_default(),
        attach: attach.map(Spanned::into_inner).unwrap_or_default(),
        transmit: transmit.map(Spanned::into_inner).unwrap_or_default(),
    })
}

fn addresses(
    source: &Source<'_>,
    field: Field<Vec<Spanned<IpAddr>>>,
    udp: bool,
) -> Checked<Vec<IpAddr>> {
    const KEY: &str = "data.addresses";
    let Some(field) = field else {
        return Ok(if udp { vec![Ipv4Addr::LOCALHOST.into()] } else { Vec::new() });
    };
    if field.get_ref().is_empty() {
        let reason = "empty: give one address, or one of each family, or remove the field";
        return Err(source.refuse(field.span(), KEY, reason));
    }
    let mut taken = Vec::<IpAddr>::new();
    for address in field.into_inner() {
        let ip = address.get_ref().to_canonical();
        let reason = if ip.is_unspecified() || ip.is_multicast() {
            format!("{ip} is not an address that workers can send to")
        } else if let Some(other) = taken.iter().find(|t| t.is_ipv4() == ip.is_ipv4()) {
            format!("{ip} and {other} are of one family: give at most one of each")
        } else {
            taken.push(ip);
            continue;
        };
        return Err(source.refuse(address.span(), KEY, &reason));
    }
    Ok(taken)
}

fn port_base(source: &Source<'_>, field: Field<u16>, queues: u16) -> Checked<u16> {
    // The last shard's port must exist, and the one behind it, which is the groups'.
    within(source, field, "data.port_base", 9100, 1..=u16::MAX - queues)
}

fn cpus(
    source: &Source<'_>,
    field: Field<Vec<Spanned<usize>>>,
    queues: u16,
) -> Checked<Vec<usize>> {
    const KEY: &str = "data.cpus";
    let Some(field) = field else { return Ok(Vec::new()) };
    let found = field.get_ref().len();
    if found != usize::from(queues) {
        let reason = format!("{found} CPUs for {queues} queues: give one for each queue");
        return Err(source.refuse(field.span(), KEY, &reason));
    }
    let mut taken = Vec::new();
    for cpu in field.into_inner() {
        if taken.contains(cpu.get_ref()) {
            let reason = format!("CPU {} twice: each core needs its own", cpu.get_ref());
            return Err(source.refuse(cpu.span(), KEY, &reason));
        }
        taken.push(cpu.into_inner());
    }
    Ok(taken)
}

/// Bytes of a frame: the least that hold the MTU, or more where the file says so.
fn frame_bytes(source: &Source<'_>, field: Field<u32>, mtu: u16, least: u32) -> Checked<u32> {
    let Some(field) = field else { return Ok(least) };
    let bytes = *field.get_ref();
    if ROOM.iter().any(|&(_, frame)| frame == bytes) && bytes >= least {
        return Ok(bytes);
    }
    let reason = format!("{bytes}: use {least} or more for mtu = {mtu}; there are 2048 and 4096");
    Err(source.refuse(field.span(), "data.frame_bytes", &reason))
}

/// MTU, payload bytes of a full chunk, and bytes of the smallest frame for them.
fn mtu(source: &Source<'_>, field: Field<u16>) -> Checked<(u16, u16, u32)> {
    const KEY: &str = "data.mtu";
    let span = field.as_ref().map_or(0..0, Spanned::span);
    let mtu = plain(field, 1500);
    let packet = usize::from(mtu) + LINK_BYTES;
    let Some((_, frame_bytes)) = ROOM.into_iter().find(|(room, _)| packet <= *room) else {
        let reason = format!("{mtu} needs frames larger than 4096 bytes: use 3498 or less");
        return Err(source.refuse(span, KEY, &reason));
    };
    let Some(chunk) = chunk_bytes(usize::from(mtu)) else {
        let reason = format!("{mtu} has no room for a chunk of 64 bytes: use 144 or more");
        return Err(source.refuse(span, KEY, &reason));
    };
    Ok((mtu, chunk, frame_bytes))
}

fn rings(source: &Source<'_>, d: &Data) -> Checked<Rings> {
    let ring = |field: &Field<u32>, key: &str, default| {
        let entries = within(source, field.clone(), key, default, 64..=65536)?;
        match field {
            Some(field) if !entries.is_power_of_two() => {
                let (below, above) = (entries.next_power_of_two() / 2, entries.next_power_of_two());
                let reason = format!("{entries} is no power of two: use {below} or {above}");
                Err(source.refuse(field.span(), key, &reason))
            }
            _ => Ok(entries),
        }
    };
    let rings = Rings {
        fill: ring(&d.fill_ring, "data.fill_ring", 4096)?,
        rx: ring(&d.rx_ring, "data.rx_ring", 2048)?,
        tx: ring(&d.tx_ring, "data.tx_ring", 2048)?,
        completion: ring(&d.completion_ring, "data.completion_ring", 4096)?,
    };
    let at_least =
        |(large, larger): (u32, &Field<u32>), (small, smaller): (u32, &Field<u32>), key| {
            if large >= small {
                return Ok(());
            }
            let span = larger.as_ref().or(smaller.as_ref()).map_or(0..0, Spanned::span);
            let other = if key == "data.fill_ring" { "rx_ring" } else { "tx_ring" };
            let reason = format!("{large} is less than {other} = {small}: use {small} or more");
            Err(source.refuse(span, key, &reason))
        };
    at_least((rings.fill, &d.fill_ring), (rings.rx, &d.rx_ring), "data.fill_ring")?;
    at_least(
        (rings.completion, &d.completion_ring),
        (rings.tx, &d.tx_ring),
        "data.completion_ring",
    )?;
    Ok(rings)
}

/// Frames of each core, from `frames` or `memory_mib`.
fn frames(
    source: &Source<'_>,
    section: Range<usize>,
    d: &Data,
    frame_bytes: u32,
    rings: &Rings,
    huge_pages: bool,
) -> Checked<u64> {
    let per_mib = (1 << 20) / u64::from(frame_bytes);
    let (span, key, frames) = match (&d.frames, &d.memory_mib) {
        (Some(frames), Some(_)) => {
            let reason = "give either frames or memory_mib, not both";
            return Err(source.refuse(frames.span(), "data.frames", reason));
        }
        (Some(frames), None) => (frames.span(), "data.frames", *frames.get_ref()),
        (None, Some(mib)) => (mib.span(), "data.memory_mib", mib.get_ref().saturating_mul(per_mib)),
        (None, None) => (section, "data.memory_mib", 256 * per_mib),
    };
    let refuse = |reason: &str| Err(source.refuse(span.clone(), key, reason));
    let reserve = rings.reserve();
    if frames <= reserve {
        let mib = (reserve + 1).div_ceil(per_mib);
        return refuse(&format!(
            "{frames} frames of {frame_bytes} bytes, but the rings alone need {reserve} \
             (fill_ring {} + tx_ring {} + {} between them): use more than {reserve} frames \
             (memory_mib = {mib} or more), or smaller rings",
            rings.fill,
            rings.tx,
            super::BATCH_FRAMES,
        ));
    }
    if frames > MAX_FRAMES {
        return refuse(&format!(
            "{frames} frames of {frame_bytes} bytes: a core has at most {MAX_FRAMES} (memory_mib \
             = {}); use more queues",
            MAX_FRAMES / per_mib
        ));
    }
    if huge_pages && !(frames * u64::from(frame_bytes)).is_multiple_of(HUGE_PAGE) {
        let step = HUGE_PAGE / u64::from(frame_bytes);
        return refuse(&format!(
            "{frames} frames of {frame_bytes} bytes do not fill 2 MiB pages, which huge_pages = \
             true needs: use {} frames, a multiple of {step}",
            frames.next_multiple_of(step)
        ));
    }
    Ok(frames)
}

fn faults(source: &Source<'_>, f: FaultsSection) -> Checked<Faults> {
    let probability = |field, key| within(source, field, key, 0.0, 0.0..=1.0);
    Ok(Faults {
        loss: probability(f.loss, "faults.loss")?,
        duplicate: probability(f.duplicate, "faults.duplicate")?,
        reorder: probability(f.reorder, "faults.reorder")?,
        seed: plain(f.seed, 1),
    })
}

fn plain<T>(field: Field<T>, default: T) -> T {
    field.map_or(default, Spanned::into_inner)
}

/// The field's value where it lies in `range`, else the default. NaN lies in no range.
fn within<T: PartialOrd + Display>(
    source: &Source<'_>,
    field: Field<T>,
    key: &str,
    default: T,
    range: RangeInclusive<T>,
) -> Checked<T> {
    let span = field.as_ref().map_or(0..0, Spanned::span);
    let value = plain(field, default);
    if range.contains(&value) {
        return Ok(value);
    }
    let reason = format!("{value} is out of range: use {} to {}", range.start(), range.end());
    Err(source.refuse(span, key, &reason))
}
