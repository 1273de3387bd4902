//! What is particular to drivers: the one table of it.

use crate::dataplane::frame::ORIGIN;

/// An Ethernet header and one VLAN tag.
pub const LINK_BYTES: u32 = 18;

/// Bytes of the largest frame that AF_XDP has.
const LARGEST_FRAME: u32 = 4096;

/// What to know of a driver. Bytes are those of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Name, as `ethtool -i` says it; empty for a driver that is not in the table.
    pub name: &'static str,
    /// Largest MTU under an XDP program of one buffer, where the driver has such a limit of its own.
    pub xdp_mtu: Option<u32>,
    /// Whether its rules steer packets to AF_XDP sockets.
    pub steers: bool,
    /// Whether attaching a program takes the link down for a while.
    pub resets_link: bool,
    /// Share of its queues that can be used with XDP: one in so many.
    pub queues_for_xdp: u32,
    /// First kernel whose zero-copy mode is good here, where the oldest that the box takes is not.
    pub zero_copy_since: Option<(u32, u32)>,
    /// What goes wrong with zero-copy before that.
    pub zero_copy_before: &'static str,
    /// Zero-copy fills whole multiples of so many bytes of a frame: what SRRCTL.BSIZEPKT counts in
    /// (igb and igc; ixgbe limits the length of packets otherwise).
    pub buffer_unit: u32,
    /// What lets queues be changed that are busy.
    pub when_busy: Option<&'static str>,
    /// What a person should know.
    pub hint: &'static str,
}

/// A driver without anything particular.
const PLAIN: Driver = Driver {
    name: "",
    xdp_mtu: None,
    steers: true,
    resets_link: false,
    queues_for_xdp: 1,
    zero_copy_since: None,
    zero_copy_before: "",
    buffer_unit: 1,
    when_busy: None,
    hint: "not known here; look for \"XDP\" in its documentation",
};

const DRIVERS: [Driver; 10] = [
    Driver {
        name: "mlx5_core",
        xdp_mtu: Some(3498),
        hint: "zero-copy; MTU at most 3498 with XDP",
        ..PLAIN
    },
    Driver {
        name: "ice",
        resets_link: true,
        when_busy: Some("modprobe -r irdma"),
        hint: "zero-copy; if the queues cannot be changed (busy), irdma holds them: \
               modprobe -r irdma",
        ..PLAIN
    },
    Driver {
        name: "i40e",
        steers: false,
        hint: "zero-copy; its rules do not steer to AF_XDP sockets, so that the box has all queues",
        ..PLAIN
    },
    Driver {
        name: "ixgbe",
        resets_link: true,
        hint: "zero-copy; attaching resets the link: the box waits for the carrier",
        ..PLAIN
    },
    Driver {
        name: "igb",
        resets_link: true,
        zero_copy_since: Some((7, 0)),
        zero_copy_before: "zero-copy binds from Linux 6.14 on, and reception stops for good once \
                           the fill ring ran empty",
        buffer_unit: 1024,
        hint: "zero-copy from Linux 7.0 on; attaching resets the link: the box waits for the carrier",
        ..PLAIN
    },
    Driver {
        name: "igc",
        resets_link: true,
        buffer_unit: 1024,
        hint: "zero-copy; attaching resets the link: the box waits for the carrier",
        ..PLAIN
    },
    Driver {
        name: "ena",
        xdp_mtu: Some(3498),
        queues_for_xdp: 2,
        hint: "at most half of its queues with XDP; MTU at most 3498",
        ..PLAIN
    },
    Driver {
        name: "virtio_net",
        zero_copy_since: Some((6, 11)),
        zero_copy_before: "it has no zero-copy before Linux 6.11",
        hint: "zero-copy from Linux 6.11 on; needs queues of its own for XDP: as many again",
        ..PLAIN
    },
    Driver {
        name: "veth",
        xdp_mtu: Some(3506),
        hint: "for tests: no zero-copy, no rules, and its peer may have no more TX queues than it \
               has RX",
        ..PLAIN
    },
    Driver {
        name: "bnxt_en",
        hint: "XDP in the driver; look at what it says of zero-copy",
        ..PLAIN
    },
];

impl Driver {
    /// Bytes of a packet, with its Ethernet header, that fit one frame of `frame_bytes` in
    /// zero-copy mode. Longer ones come in pieces, which nobody puts together.
    #[must_use]
    pub const fn zero_copy_room(&self, frame_bytes: u32) -> u32 {
        let room = frame_bytes.saturating_sub(ORIGIN as u32);
        room / self.buffer_unit * self.buffer_unit
    }

    /// What to write into the section `[data]` so that packets fit in zero-copy mode.
    #[must_use]
    pub fn zero_copy_setting(&self, mtu: u32) -> String {
        let room = self.zero_copy_room(LARGEST_FRAME);
        if mtu + LINK_BYTES <= room {
            return format!("frame_bytes = {LARGEST_FRAME}");
        }
        format!("mtu = {}", room - LINK_BYTES)
    }
}

/// What to know of the driver of that name; nothing particular where it is not in the table.
#[must_use]
pub fn driver(name: &str) -> Driver {
    DRIVERS.into_iter().find(|driver| driver.name == name).unwrap_or(PLAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn igb_fills_whole_kib_of_a_frame() {
        assert_eq!(driver("igb").zero_copy_room(2048), 1024);
        assert_eq!(driver("igb").zero_copy_room(4096), 3072);
        assert_eq!(driver("igb").zero_copy_setting(1500), "frame_bytes = 4096");
        assert_eq!(driver("igc").zero_copy_setting(3498), "mtu = 3054");
        assert_eq!(driver("ice").zero_copy_room(2048), 2048 - 310);
    }
}
