//! The multicast groups that jobs may have: one block of addresses for each family.

use super::error::{ConfigError, Source};
use super::file::Field;
use crate::dataplane::plan::MAX_JOBS;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use toml::Spanned;

/// Name of the field.
const KEY: &str = "data.multicast";

/// Bits of an address that number the jobs.
const JOB_BITS: u32 = MAX_JOBS.trailing_zeros();

const _: () = assert!(MAX_JOBS.is_power_of_two());

/// The groups of a box: one for each job id, in each family that it offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Address of job 0, where there are groups over IPv4.
    v4: Option<Ipv4Addr>,
    /// Address of job 0, where there are groups over IPv6.
    v6: Option<Ipv6Addr>,
}

impl Default for Groups {
    /// In scopes that a site may use as it likes: IPv4 local scope (RFC 2365, 6.1), IPv6 site-local
    /// scope with a group id of the dynamic range (RFC 4291, 2.7 and RFC 3307, 4.3).
    fn default() -> Self {
        Self {
            v4: Some(Ipv4Addr::new(239, 255, 71, 0)),
            v6: Some(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x8047, 0x4200)),
        }
    }
}

impl Groups {
    /// No groups: every job gets its results by unicast.
    pub const NONE: Self = Self { v4: None, v6: None };

    /// The group of job `id` for ranks over IPv4, or else IPv6, where the box has groups there.
    #[must_use]
    pub fn of(&self, id: u16, v4: bool) -> Option<IpAddr> {
        if v4 {
            self.v4.map(|base| Ipv4Addr::from_bits(base.to_bits() + u32::from(id)).into())
        } else {
            self.v6.map(|base| Ipv6Addr::from_bits(base.to_bits() + u128::from(id)).into())
        }
    }
}

/// Checks the blocks that the field lists.
pub(super) fn groups(
    source: &Source<'_>,
    field: Field<Vec<Spanned<String>>>,
) -> Result<Groups, ConfigError> {
    let Some(field) = field else { return Ok(Groups::default()) };
    let mut groups = Groups::NONE;
    for block in field.into_inner() {
        let refuse = |reason: String| Err(source.refuse(block.span(), KEY, &reason));
        let text = block.get_ref();
        let parts = text.split_once('/');
        let Some((base, prefix)) = parts.and_then(|(base, prefix)| {
            Some((base.parse::<IpAddr>().ok()?, prefix.parse::<u32>().ok()?))
        }) else {
            return refuse(format!(
                "{text:?} is no block of addresses: write it as \"239.255.71.0/24\""
            ));
        };
        let most = if base.is_ipv4() { 32 } else { 128 };
        if prefix > most - JOB_BITS {
            return refuse(format!(
                "{text} has too few addresses, one for each of {MAX_JOBS} jobs: use /{} or less",
                most - JOB_BITS
            ));
        }
        if !base.is_multicast() {
            return refuse(format!("{base} is no multicast address: use 239.0.0.0/8 or ff15::/16"));
        }
        let (inside, twice) = match base {
            IpAddr::V4(base) => {
                if base.octets()[..3] == [224, 0, 0] {
                    return refuse(format!("{base} is for routing protocols: use 239.0.0.0/8"));
                }
                let inside = base.to_bits().unbounded_shl(prefix);
                (u128::from(inside), groups.v4.replace(base).is_some())
            }
            IpAddr::V6(base) => {
                (base.to_bits().unbounded_shl(prefix), groups.v6.replace(base).is_some())
            }
        };
        if inside != 0 {
            return refuse(format!("{text}: the bits behind the first {prefix} must be 0"));
        }
        if twice {
            return refuse(format!("{text} is the second block of its family: give one of each"));
        }
    }
    Ok(groups)
}
