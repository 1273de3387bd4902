//! What the XDP program may decide about a packet, with the names of its counters.
//!
//! The program and its loader both use this list, so a counter can have no other name, and no
//! other place in the counter map, than the program meant.

macro_rules! verdicts {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One outcome of the XDP program; its number is the index of its counter.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u32)]
        pub enum Verdict {
            $($(#[$doc])* $variant,)*
        }

        impl Verdict {
            /// Every verdict, in the order of the counters.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name of the counter: `pass_` went on to the kernel, `drop_` ended here.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

verdicts! {
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

impl Verdict {
    /// Number of verdicts, which is the size of the counter map.
    pub const COUNT: usize = Self::ALL.len();
}

#[cfg(test)]
mod tests {
    use super::Verdict;

    #[test]
    fn numbers_are_places_and_names_differ() {
        for (place, verdict) in Verdict::ALL.iter().enumerate() {
            assert_eq!(*verdict as usize, place);
            assert!(Verdict::ALL[..place].iter().all(|other| other.name() != verdict.name()));
        }
    }
}
