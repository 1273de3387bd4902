//! Offloads, over the family `ethtool` of generic netlink.

use std::io;

use netlink_bindings::ethtool::{HeaderFlags, IterableBitset, Request, Stringset};

use super::Feature;
use super::ethtool::Message;
use super::netlink::{Complaint, one, order};

/// The list of the offloads' names: `ETH_SS_FEATURES` (linux/ethtool.h).
const NAMES: u32 = 4;

/// Most offloads: netdev_features_t in the kernel has 64 bits, and may become longer.
const MOST: u32 = 1024;

/// All offloads, in the kernel's order.
///
/// Names and states come apart: with the names in it, an answer is longer than what the socket
/// reads at once.
pub(super) fn list(name: &str) -> Result<Vec<Feature>, Complaint> {
    let names = names()?;
    let mut request = Request::new().op_features_get_do();
    request.header_mut().cmd = Message::FeaturesGet as u8;
    let header = request.encode().nested_header().push_dev_name_bytes(name.as_bytes());
    header.push_flags(HeaderFlags::CompactBitsets as u32);
    one(&request, |features| {
        let active = bits(&features.get_active()?)?;
        let can = bits(&features.get_hw()?)?;
        let cannot = bits(&features.get_nochange()?)?;
        let all = names.into_iter().enumerate().filter(|(_, name)| !name.is_empty());
        let feature = |(at, name)| Feature {
            name,
            on: has(active, at),
            changeable: has(can, at) && !has(cannot, at),
        };
        Ok(all.map(feature).collect())
    })
}

/// Switches one. That the kernel takes the request does not say that it could fulfil it.
pub(super) fn set(name: &str, feature: &str, on: bool) -> Result<(), Complaint> {
    let mut request = Request::new().op_features_set_do();
    request.header_mut().cmd = Message::FeaturesSet as u8;
    let header = request.encode().nested_header().push_dev_name_bytes(name.as_bytes());
    let fields = header.push_flags(HeaderFlags::OmitReply as u32).end_nested();
    let bit = fields.nested_wanted().nested_bits().nested_bit();
    let bit = bit.push_name_bytes(feature.as_bytes());
    if on {
        bit.push_value(()).end_nested();
    } else {
        bit.end_nested();
    }
    order(&request)
}

/// Names by bit; empty where a bit has none.
fn names() -> Result<Vec<String>, Complaint> {
    let mut request = Request::new().op_strset_get_do();
    request.header_mut().cmd = Message::NamesGet as u8;
    request
        .encode()
        .nested_header()
        .end_nested()
        .nested_stringsets()
        .nested_stringset()
        .push_id(NAMES);
    one(&request, |sets| {
        let mut names = Vec::new();
        for set in sets.get_stringsets()?.get_stringset() {
            // Not `get_strings()`: it ends at the first field that is something else.
            let strings = set.filter_map(|field| match field {
                Ok(Stringset::Strings(strings)) => Some(strings),
                _ => None,
            });
            for string in strings.flat_map(|strings| strings.get_string()) {
                let at = string.get_index()?;
                if at >= MOST {
                    return Err(io::Error::other(format!("offload {at}: at most {MOST} expected")));
                }
                let at = at as usize;
                if names.len() <= at {
                    names.resize(at + 1, String::new());
                }
                names[at] = string.get_value()?.to_string_lossy().into_owned();
            }
        }
        Ok(names)
    })
}

/// Words of a compact set of bits.
fn bits<'a>(set: &IterableBitset<'a>) -> io::Result<&'a [u8]> {
    Ok(set.get_value()?)
}

/// Whether the bit is in `words`: u32, the first one the lowest, in this machine's byte order.
fn has(words: &[u8], bit: usize) -> bool {
    let word = words.as_chunks().0.get(bit / 32);
    word.is_some_and(|word| u32::from_ne_bytes(*word) >> (bit % 32) & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::has;

    #[test]
    fn bits_lie_in_words() {
        let words: Vec<u8> = [1_u32 << 31, 1, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let set: Vec<_> = (0..200).filter(|bit| has(&words, *bit)).collect();
        assert_eq!(set, [31, 32]);
    }
}
