//! What the driver can do with XDP, over the family `netdev` of generic netlink.

use netlink_bindings::netdev::{Request, XdpAct};

use super::XdpFeatures;
use super::netlink::{Complaint, one};

/// Asks for the interface of this index.
pub(super) fn features(index: u32) -> Result<XdpFeatures, Complaint> {
    let mut request = Request::new().op_dev_get_do();
    request.encode().push_ifindex(index);
    one(&request, |device| {
        let flags = device.get_xdp_features()?;
        let has = |flag: XdpAct| flags & flag as u64 != 0;
        Ok(XdpFeatures {
            basic: has(XdpAct::Basic),
            redirect: has(XdpAct::Redirect),
            zero_copy: has(XdpAct::XskZerocopy),
            rx_sg: has(XdpAct::RxSg),
            zero_copy_max_segments: device.get_xdp_zc_max_segs().ok(),
        })
    })
}
