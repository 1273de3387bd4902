//! tshark with the dissector, and what its columns have to say of a packet.

use gradbox_protocol::header::Header;
use gradbox_tests::lab::repository;
use std::path::Path;
use std::process::Command;

/// The header's fields, in the order of [`shown`].
pub(super) const FIELDS: [&str; 12] = [
    "gradbox.magic",
    "gradbox.version",
    "gradbox.kind",
    "gradbox.job",
    "gradbox.rank",
    "gradbox.flags",
    "gradbox.cookie",
    "gradbox.round",
    "gradbox.chunk",
    "gradbox.tensor",
    "gradbox.length",
    "gradbox.stamp",
];

/// What tshark shows of a header in [`FIELDS`].
pub(super) fn shown(header: &Header) -> Vec<String> {
    let h = header;
    vec![
        "GB".to_owned(),
        h.version.to_string(),
        h.kind.to_string(),
        h.job.to_string(),
        h.rank.to_string(),
        format!("{:#04x}", h.flags),
        format!("{:#010x}", h.cookie.get()),
        h.round.to_string(),
        h.chunk.to_string(),
        h.tensor.to_string(),
        h.length.to_string(),
        format!("{:#018x}", h.stamp.get()),
    ]
}

/// What tshark prints of `file`.
pub(super) fn tshark(file: &Path, args: &[&str]) -> String {
    let script = repository("scripts/wireshark/gradbox.lua");
    let done = Command::new("tshark")
        // Nobody's own preferences.
        .env("WIRESHARK_CONFIG_DIR", file.parent().expect("a file of the lab"))
        .arg("-r")
        .arg(file)
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .args(args)
        .output()
        .unwrap_or_else(|e| {
            panic!(
                "tshark: {e}; this test needs it: as root, \
                 apt-get install -y --no-install-recommends tshark"
            )
        });
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{err}");
    assert!(!out.contains("Lua Error") && !err.contains("Lua:"), "{out}\n{err}");
    out.into_owned()
}

/// The `fields` of every packet.
pub(super) fn columns(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut args = vec!["-T", "fields"];
    args.extend(fields.iter().flat_map(|field| ["-e", field]));
    let out = tshark(file, &args);
    out.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
