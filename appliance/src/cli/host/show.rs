//! Findings, as a person and as a program read them.

use crate::host::{Counts, Finding};
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::json;
use std::fmt::Write;

/// A table of everything, then what to know and to do.
pub(super) fn text(findings: &[Finding], counts: Counts) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["", "thing", "found", "needed"]);
    for finding in findings {
        let Finding { severity, thing, found, needed, .. } = finding;
        table.add_row([&severity.to_string(), thing, found, needed]);
    }
    // Writing to a string cannot fail.
    let mut out = format!("{table}\n");
    for finding in findings.iter().filter(|finding| !finding.why.is_empty()) {
        let _ = write!(out, "\n{finding}\n");
    }
    let Counts { ok, notes, warnings, faults } = counts;
    let verdict = match (faults, warnings) {
        (0, 0) => "the box can run",
        (0, _) => "the box can run, with less than it could do",
        _ => "the box cannot run as configured",
    };
    let _ = writeln!(
        out,
        "\n{verdict}: {ok} ok, {notes} note(s), {warnings} warning(s), {faults} fault(s)"
    );
    if findings.iter().any(|finding| finding.change.is_some()) {
        out += "`gradbox host apply` does what ip, ethtool and echo do above, and `gradbox host \
                undo` puts it back\n";
    }
    out
}

/// One object.
///
/// # Errors
/// None: everything in it can be written as JSON.
pub(super) fn json(
    interface: Option<&str>,
    findings: &[Finding],
    counts: Counts,
) -> serde_json::Result<String> {
    serde_json::to_string(&json!({
        "interface": interface,
        "findings": findings,
        "summary": counts,
    }))
}
