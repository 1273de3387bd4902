//! Numbers of requests of the family `ethtool`.

/// Requests by the kernel's numbers: `ETHTOOL_MSG_*` of linux/ethtool_netlink.h, those that user
/// space sends.
///
/// They have to be put into every request: netlink-bindings 0.3.5 counts the kernel's notifications
/// in the same row, so that its numbers are those of other requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// `ETHTOOL_MSG_STRSET_GET`.
    NamesGet = 1,
    /// `ETHTOOL_MSG_LINKMODES_GET`.
    LinkModesGet = 4,
    /// `ETHTOOL_MSG_FEATURES_GET`.
    FeaturesGet = 11,
    /// `ETHTOOL_MSG_FEATURES_SET`.
    FeaturesSet = 12,
    /// `ETHTOOL_MSG_RINGS_GET`.
    RingsGet = 15,
    /// `ETHTOOL_MSG_RINGS_SET`.
    RingsSet = 16,
    /// `ETHTOOL_MSG_CHANNELS_GET`.
    ChannelsGet = 17,
    /// `ETHTOOL_MSG_CHANNELS_SET`.
    ChannelsSet = 18,
}
