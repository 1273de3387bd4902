//! What the XDP program may decide about a packet, with the names of its counters: `pass_` went on
//! to the kernel, `drop_` ended here.

use crate::counted::counted;

counted! {
    /// One outcome of the XDP program; its number is the index of its counter.
    Verdict {
        /// Handed to the AF_XDP socket of its queue.
        Redirected = "redirected",
        /// Neither IPv4 nor IPv6 (ARP, for one).
        PassNotIp = "pass_not_ip",
        /// More than one VLAN tag.
        PassVlanStack = "pass_vlan_stack",
        /// Ends before its UDP ports, so it cannot be known whose it is.
        PassTruncated = "pass_truncated",
        /// A fragment, the first one included.
        PassFragment = "pass_fragment",
        /// IPv4 options or an IPv6 extension header stand between IP and UDP.
        PassIpOptions = "pass_ip_options",
        /// Another protocol than UDP.
        PassNotUdp = "pass_not_udp",
        /// UDP to a port that no shard owns.
        PassOtherPort = "pass_other_port",
        /// A good packet on a queue that no socket is bound to.
        PassNoSocket = "pass_no_socket",
        /// To a shard, but shorter than a Gradbox header, or its UDP length says so.
        DropTruncated = "drop_truncated",
        /// To a shard, but not a Gradbox packet.
        DropBadMagic = "drop_bad_magic",
        /// A Gradbox packet of another version.
        DropBadVersion = "drop_bad_version",
        /// A Gradbox packet from an address that no job has allowed.
        DropStranger = "drop_stranger",
    }
}
