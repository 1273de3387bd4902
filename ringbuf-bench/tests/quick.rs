//! The report runs from end to end; every figure checks its own results.

use std::process::Command;

#[test]
fn a_quick_report() {
    let out = Command::new(env!("CARGO_BIN_EXE_ringbuf-bench"))
        .arg("--quick")
        .output()
        .expect("the report runs");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    for part in ["inline", "xsk-rs", "crossbeam ArrayQueue", "ring (one to one)", "PUSH", "STATUS"]
    {
        assert!(text.contains(part), "no line of {part:?} in\n{text}");
    }
}
