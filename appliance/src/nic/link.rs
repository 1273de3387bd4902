//! The link itself, over rtnetlink.

use std::path::PathBuf;
use std::{fs, io};

use netlink_bindings::rt_link::{Ifinfomsg, IterableXdpAttrs, Request};

use super::XdpAttached;
use super::netlink::{Complaint, one, order};

/// No counters in the answer: `RTEXT_FILTER_SKIP_STATS` (linux/rtnetlink.h).
const WITHOUT_COUNTERS: u32 = 1 << 3;

/// `IFF_UP` (linux/if.h).
const UP: u32 = 1;

/// `XDP_ATTACHED_DRV`, `XDP_ATTACHED_SKB`, `XDP_ATTACHED_HW`, `XDP_ATTACHED_MULTI`
/// (linux/if_link.h).
const ATTACHED_DRIVER: u8 = 1;
const ATTACHED_STACK: u8 = 2;
const ATTACHED_CARD: u8 = 3;
const ATTACHED_SEVERAL: u8 = 4;

/// What rtnetlink tells of a link.
pub(super) struct Facts {
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) mtu_min: Option<u32>,
    pub(super) mtu_max: Option<u32>,
    pub(super) up: bool,
    pub(super) carrier: bool,
    /// Queues that there is room for, in use or not.
    pub(super) rx_queues: u32,
    /// The same for sending.
    pub(super) tx_queues: u32,
    pub(super) xdp: Option<XdpAttached>,
    /// MAC address.
    address: Vec<u8>,
}

/// Asks for a link by its name.
pub(super) fn facts(name: &str) -> Result<Facts, Complaint> {
    let mut request = Request::new().op_getlink_do(&Ifinfomsg::default());
    request.encode().push_ifname_bytes(name.as_bytes()).push_ext_mask(WITHOUT_COUNTERS);
    one(&request, |(header, link)| {
        let limit = |bytes: u32| Some(bytes).filter(|bytes| *bytes != 0);
        Ok(Facts {
            index: u32::try_from(header.ifi_index).map_err(io::Error::other)?,
            mtu: link.get_mtu()?,
            mtu_min: link.get_min_mtu().ok().and_then(limit),
            mtu_max: link.get_max_mtu().ok().and_then(limit),
            up: header.ifi_flags & UP != 0,
            carrier: link.get_carrier()? != 0,
            rx_queues: link.get_num_rx_queues()?,
            tx_queues: link.get_num_tx_queues()?,
            xdp: link.get_xdp().ok().and_then(|xdp| attached(&xdp)),
            address: link.get_address().unwrap_or_default().to_vec(),
        })
    })
}

/// The program that decides first, where there are several.
fn attached(xdp: &IterableXdpAttrs<'_>) -> Option<XdpAttached> {
    let driver = |program| XdpAttached { program, generic: false };
    let stack = |program| XdpAttached { program, generic: true };
    match xdp.get_attached().ok()? {
        ATTACHED_DRIVER | ATTACHED_CARD => xdp.get_prog_id().ok().map(driver),
        ATTACHED_STACK => xdp.get_prog_id().ok().map(stack),
        ATTACHED_SEVERAL => {
            let first = xdp.get_hw_prog_id().or_else(|_| xdp.get_drv_prog_id());
            first.ok().map(driver).or_else(|| xdp.get_skb_prog_id().ok().map(stack))
        }
        _ => None,
    }
}

/// Sets the MTU, in bytes.
pub(super) fn set_mtu(name: &str, mtu: u32) -> Result<(), Complaint> {
    let mut request = Request::new().op_setlink_do(&Ifinfomsg::default());
    request.encode().push_ifname_bytes(name.as_bytes()).push_mtu(mtu);
    order(&request)
}

/// Sets the link up or down.
pub(super) fn set_up(name: &str, up: bool) -> Result<(), Complaint> {
    let flags = if up { UP } else { 0 };
    let header = Ifinfomsg { ifi_flags: flags, ifi_change: UP, ..Ifinfomsg::default() };
    let mut request = Request::new().op_setlink_do(&header);
    request.encode().push_ifname_bytes(name.as_bytes());
    order(&request)
}

/// RX and TX queues in use, as sysfs has them. `None` where sysfs does not show this interface: it
/// shows those of the namespace that it was mounted in, and may know another of the same name.
pub(super) fn queues_in_use(name: &str, facts: &Facts) -> Option<(u32, u32)> {
    let directory = PathBuf::from("/sys/class/net").join(name);
    let says = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let address: Vec<_> = facts.address.iter().map(|byte| format!("{byte:02x}")).collect();
    if says("ifindex")?.trim() != facts.index.to_string()
        || says("address")?.trim() != address.join(":")
    {
        return None;
    }
    let (mut rx, mut tx) = (0, 0);
    for queue in fs::read_dir(directory.join("queues")).ok()? {
        let name = queue.ok()?.file_name();
        match name.as_encoded_bytes() {
            [b'r', b'x', b'-', ..] => rx += 1,
            [b't', b'x', b'-', ..] => tx += 1,
            _ => {}
        }
    }
    Some((rx, tx))
}
