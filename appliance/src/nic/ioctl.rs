//! What only the ioctl `SIOCETHTOOL` tells: who drives an interface, which rules steer packets,
//! and what is hashed.
//!
//! The structures are those of the kernel's `include/uapi/linux/ethtool.h`, under the same names
//! of fields; the commands too.
#![expect(unsafe_code, reason = "a system call that takes a pointer in a structure")]

use std::ffi::c_char;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// `SIOCETHTOOL` (linux/sockios.h).
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `ETHTOOL_GDRVINFO`.
const DRIVER: u32 = 0x03;

/// `ETHTOOL_GRXCLSRLALL`.
const RULE_LOCATIONS: u32 = 0x30;

/// Most rules that are asked for; tables of cards have some thousands.
const MOST_RULES: u32 = 1 << 16;

/// `struct ethtool_drvinfo`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DriverInfo {
    cmd: u32,
    pub(super) driver: [u8; 32],
    version: [u8; 32],
    pub(super) fw_version: [u8; 32],
    pub(super) bus_info: [u8; 32],
    erom_version: [u8; 32],
    reserved2: [u8; 12],
    n_priv_flags: u32,
    n_stats: u32,
    testinfo_len: u32,
    eedump_len: u32,
    regdump_len: u32,
}

/// `struct ethtool_rx_flow_spec`. The unions of headers, `struct ethtool_tcpip4_spec` and others,
/// are bytes here, as they are in packets.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct FlowSpec {
    pub(super) flow_type: u32,
    pub(super) h_u: [u8; 52],
    pub(super) h_ext: [u8; 20],
    pub(super) m_u: [u8; 52],
    pub(super) m_ext: [u8; 20],
    pad: [u8; 4],
    pub(super) ring_cookie: u64,
    pub(super) location: u32,
    pad_end: [u8; 4],
}

/// `struct ethtool_rxnfc` with one of its `rule_locs`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RxFlow {
    cmd: u32,
    pub(super) flow_type: u32,
    pub(super) data: u64,
    pub(super) fs: FlowSpec,
    pub(super) rule_cnt: u32,
    rule_locs: u32,
}

impl RxFlow {
    /// Nothing asked yet.
    pub(super) fn new() -> Self {
        Self::new_zeroed()
    }
}

/// Commands that fill one [`RxFlow`], by the kernel's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// `ETHTOOL_GRXFH`: `flow_type` in, `data` out.
    HashFields = 0x29,
    /// `ETHTOOL_SRXFH`: `flow_type` and `data` in.
    SetHashFields = 0x2a,
    /// `ETHTOOL_GRXCLSRLCNT`: `rule_cnt`, and flags in `data`, out.
    CountRules = 0x2e,
    /// `ETHTOOL_GRXCLSRULE`: `fs.location` in, `fs` out.
    Rule = 0x2f,
    /// `ETHTOOL_SRXCLSRLDEL`: `fs.location` in.
    RemoveRule = 0x31,
    /// `ETHTOOL_SRXCLSRLINS`: `fs` in, `fs.location` out.
    AddRule = 0x32,
}

/// Who drives the interface.
pub(super) fn driver(interface: &str) -> io::Result<DriverInfo> {
    let mut words = [0; size_of::<DriverInfo>().div_ceil(8)];
    call(interface, DRIVER, &mut words)?;
    Ok(structure(&words))
}

/// Has the kernel fill in, or do, what `flow` says.
pub(super) fn rx_flow(interface: &str, command: Command, flow: &mut RxFlow) -> io::Result<()> {
    let mut words = [0; size_of::<RxFlow>() / 8];
    words.as_mut_bytes().copy_from_slice(flow.as_bytes());
    call(interface, command as u32, &mut words)?;
    *flow = structure(&words);
    Ok(())
}

/// Size of the card's table of rules, and the numbers of those in it, `count` of them or some more.
pub(super) fn rule_locations(interface: &str, count: u32) -> io::Result<(u64, Vec<u32>)> {
    // Room for rules that came since they were counted.
    let room = count.saturating_add(16).min(MOST_RULES);
    let mut flow = RxFlow::new();
    flow.rule_cnt = room;
    let bytes = size_of::<RxFlow>() + room as usize * 4;
    let mut words = vec![0; bytes.div_ceil(8)];
    words.as_mut_bytes()[..size_of::<RxFlow>()].copy_from_slice(flow.as_bytes());
    call(interface, RULE_LOCATIONS, &mut words)?;
    let answer: RxFlow = structure(&words);
    let all = words.as_bytes()[std::mem::offset_of!(RxFlow, rule_locs)..].as_chunks().0;
    let found = answer.rule_cnt.min(room) as usize;
    Ok((answer.data, all.iter().take(found).map(|bytes| u32::from_ne_bytes(*bytes)).collect()))
}

/// The structure at the start of `words`, which are not shorter.
fn structure<T: FromBytes>(words: &[u64]) -> T {
    let (value, _) = T::read_from_prefix(words.as_bytes()).expect("a buffer made for it");
    value
}

/// Calls the kernel with `command` and the rest of its structure in `words`. The callers here make
/// `words` as long as the structure of that command.
fn call(interface: &str, command: u32, words: &mut [u64]) -> io::Result<()> {
    words.as_mut_bytes()[..4].copy_from_slice(command.as_bytes());
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: words.as_mut_ptr().cast() },
    };
    // The last byte stays 0.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(interface.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    // Any socket does: what counts is the network namespace that it is made in.
    let socket = UnixDatagram::unbound()?;
    // SAFETY: `request` is the structure that SIOCETHTOOL takes, and lives until the call is over;
    // so does `words`, which it points to, and which is as long as the structure that the kernel
    // reads and writes for `command` (with as many `rule_locs` as `rule_cnt` says there is room).
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::{DriverInfo, FlowSpec, RxFlow};
    use std::mem::offset_of;

    /// What a C compiler says of linux/ethtool.h on 64-bit machines.
    #[test]
    fn structures_are_laid_out_as_the_kernels() {
        assert_eq!(size_of::<DriverInfo>(), 196);
        assert_eq!(offset_of!(DriverInfo, driver), 4);
        assert_eq!(offset_of!(DriverInfo, fw_version), 68);
        assert_eq!(offset_of!(DriverInfo, bus_info), 100);
        assert_eq!(offset_of!(DriverInfo, n_priv_flags), 176);

        assert_eq!(size_of::<FlowSpec>(), 168);
        assert_eq!(offset_of!(FlowSpec, h_u), 4);
        assert_eq!(offset_of!(FlowSpec, h_ext), 56);
        assert_eq!(offset_of!(FlowSpec, m_u), 76);
        assert_eq!(offset_of!(FlowSpec, m_ext), 128);
        assert_eq!(offset_of!(FlowSpec, ring_cookie), 152);
        assert_eq!(offset_of!(FlowSpec, location), 160);

        assert_eq!(size_of::<RxFlow>(), 192);
        assert_eq!(offset_of!(RxFlow, flow_type), 4);
        assert_eq!(offset_of!(RxFlow, data), 8);
        assert_eq!(offset_of!(RxFlow, fs), 16);
        assert_eq!(offset_of!(RxFlow, rule_cnt), 184);
        assert_eq!(offset_of!(RxFlow, rule_locs), 188);
    }
}
