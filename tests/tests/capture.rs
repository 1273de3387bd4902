//! `gradbox capture` and the dissector for Wireshark: what a box's files say is what it did, and
//! what tshark shows of a packet is what its bytes say. Needs tshark; fails without it.

#[path = "capture/dissector.rs"]
mod dissector;
#[path = "capture/files.rs"]
mod files;
#[path = "capture/requests.rs"]
mod requests;
#[path = "capture/tshark.rs"]
mod tshark;

use gradbox_tests::lab::appliance::TheBox;
use gradbox_tests::lab::process::{Process, until};
use gradbox_tests::lab::{Lab, gradbox};
use std::path::Path;

/// A `gradbox capture` on the box's host that has begun.
fn capture(lab: &Lab, the_box: &TheBox<'_>, out: &Path, args: &[&str]) -> Process {
    capture_from("box", lab, the_box, out, args)
}

/// The same on any host.
fn capture_from(host: &str, lab: &Lab, the_box: &TheBox<'_>, out: &Path, args: &[&str]) -> Process {
    let mut command = lab.command(host, &gradbox());
    command.args(["capture", "--box", &the_box.control, "--out"]).arg(out).args(args);
    let dir = out.parent().expect("a file of the lab");
    let name = out.file_name().expect("a file's name").to_string_lossy().into_owned();
    let mut process = Process::start(&name, &mut command, dir);
    let begun = until(|| process.err().contains("capturing") || !process.runs());
    assert!(begun && process.runs(), "{}", process.err());
    process
}
