//! Rings, queues and speed, over the family `ethtool` of generic netlink.

use netlink_bindings::ethtool::{HeaderFlags, Request};

use super::ethtool::Message;
use super::netlink::{Complaint, one, order};
use super::{Channels, Rings};

/// `SPEED_UNKNOWN` (linux/ethtool.h).
const UNKNOWN: u32 = u32::MAX;

/// Sizes of rings. What a driver does not have is missing from the answer.
pub(super) fn rings(name: &str) -> Result<Rings, Complaint> {
    let mut request = Request::new().op_rings_get_do();
    request.header_mut().cmd = Message::RingsGet as u8;
    request.encode().nested_header().push_dev_name_bytes(name.as_bytes());
    one(&request, |rings| {
        Ok(Rings {
            rx: rings.get_rx().unwrap_or(0),
            rx_max: rings.get_rx_max().unwrap_or(0),
            tx: rings.get_tx().unwrap_or(0),
            tx_max: rings.get_tx_max().unwrap_or(0),
        })
    })
}

/// Sets those that are given.
pub(super) fn set_rings(name: &str, rx: Option<u32>, tx: Option<u32>) -> Result<(), Complaint> {
    let mut request = Request::new().op_rings_set_do();
    request.header_mut().cmd = Message::RingsSet as u8;
    let mut fields =
        request.encode().nested_header().push_dev_name_bytes(name.as_bytes()).end_nested();
    if let Some(rx) = rx {
        fields = fields.push_rx(rx);
    }
    if let Some(tx) = tx {
        fields = fields.push_tx(tx);
    }
    fields.end_nested();
    order(&request)
}

/// Numbers of queues. What a driver does not have is missing from the answer.
pub(super) fn channels(name: &str) -> Result<Channels, Complaint> {
    let mut request = Request::new().op_channels_get_do();
    request.header_mut().cmd = Message::ChannelsGet as u8;
    request.encode().nested_header().push_dev_name_bytes(name.as_bytes());
    one(&request, |channels| {
        Ok(Channels {
            combined: channels.get_combined_count().unwrap_or(0),
            combined_max: channels.get_combined_max().unwrap_or(0),
            rx: channels.get_rx_count().unwrap_or(0),
            rx_max: channels.get_rx_max().unwrap_or(0),
            tx: channels.get_tx_count().unwrap_or(0),
            tx_max: channels.get_tx_max().unwrap_or(0),
        })
    })
}

/// Sets those that are given.
pub(super) fn set_channels(
    name: &str,
    combined: Option<u32>,
    rx: Option<u32>,
    tx: Option<u32>,
) -> Result<(), Complaint> {
    let mut request = Request::new().op_channels_set_do();
    request.header_mut().cmd = Message::ChannelsSet as u8;
    let mut fields =
        request.encode().nested_header().push_dev_name_bytes(name.as_bytes()).end_nested();
    if let Some(combined) = combined {
        fields = fields.push_combined_count(combined);
    }
    if let Some(rx) = rx {
        fields = fields.push_rx_count(rx);
    }
    if let Some(tx) = tx {
        fields = fields.push_tx_count(tx);
    }
    fields.end_nested();
    order(&request)
}

/// Megabits per second, where known.
pub(super) fn speed(name: &str) -> Result<Option<u32>, Complaint> {
    let mut request = Request::new().op_linkmodes_get_do();
    request.header_mut().cmd = Message::LinkModesGet as u8;
    let header = request.encode().nested_header().push_dev_name_bytes(name.as_bytes());
    header.push_flags(HeaderFlags::CompactBitsets as u32);
    one(&request, |modes| Ok(modes.get_speed().ok().filter(|mbps| ![0, UNKNOWN].contains(mbps))))
}
