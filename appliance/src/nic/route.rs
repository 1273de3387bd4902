//! Default routes, over rtnetlink.

use netlink_bindings::rt_route::{Request, Rtmsg};

use super::netlink::{Complaint, each};

/// `RTN_UNICAST` (linux/rtnetlink.h): packets go somewhere, and are not dropped or refused.
const UNICAST: u8 = 1;

/// Bytes of `struct rtnexthop` (linux/rtnetlink.h): u16 length with its attributes, flags, hops,
/// and i32 index.
const NEXT_HOP: usize = 8;

/// Whether a default route of any table, over IPv4 or IPv6, goes by the interface of this index.
pub(super) fn is_default(index: u32) -> Result<bool, Complaint> {
    let mut found = false;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let header = Rtmsg { rtm_family: u8::try_from(family).unwrap_or(0), ..Rtmsg::default() };
        each(&Request::new().op_getroute_dump(&header), |(header, route)| {
            if header.rtm_dst_len == 0 && header.rtm_type == UNICAST {
                found |= route.get_oif() == Ok(index)
                    || route.get_multipath().is_ok_and(|hops| next_hops(hops).contains(&index));
            }
        })?;
    }
    Ok(found)
}

/// Indices of the interfaces of a route with several.
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut indices = Vec::new();
    while let Some(([a, b, _, _, index @ ..], _)) = bytes.split_first_chunk::<NEXT_HOP>() {
        indices.push(u32::from_ne_bytes(*index));
        let length = usize::from(u16::from_ne_bytes([*a, *b])).max(NEXT_HOP).next_multiple_of(4);
        bytes = bytes.get(length..).unwrap_or_default();
    }
    indices
}

#[cfg(test)]
mod tests {
    use super::next_hops;

    /// A next hop with `attributes`.
    fn hop(index: u32, attributes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(8 + attributes.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(index.to_ne_bytes());
        bytes.extend(attributes);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn every_next_hop_of_a_route_is_seen() {
        let route = [hop(3, &[]), hop(70_000, &[1; 6]), hop(5, &[2; 8])].concat();
        assert_eq!(next_hops(&route), [3, 70_000, 5]);
    }

    #[test]
    fn broken_next_hops_end() {
        assert!(next_hops(&[]).is_empty());
        assert!(next_hops(&[8, 0, 0, 0, 1]).is_empty());
        // Lengths of nothing and of more than there is.
        let mut route = [hop(3, &[]), hop(4, &[])].concat();
        route[..2].fill(0);
        assert_eq!(next_hops(&route), [3, 4]);
        route[..2].fill(0xff);
        assert_eq!(next_hops(&route), [3]);
    }
}
