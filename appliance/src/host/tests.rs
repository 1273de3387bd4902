//! Checks, changes and their undoing, with cards that are not there.

mod apply;
mod check;

use super::fake::{Fake, machine};
use super::{Applied, Applying, Finding, HostError, Machine, Needs, Severity, Store};
use crate::config::Config;
use std::path::Path;
use std::time::Duration;

/// A configuration for the interface of the fakes.
fn needs(more: &str) -> Needs {
    let text = format!("[data]\nport = \"xdp\"\ninterface = \"eth1\"\n{more}");
    Needs::from(&Config::parse(&text, Path::new("box.toml")).expect("a configuration"))
}

/// What `check` finds on a good machine.
fn found(needs: &Needs, nic: &Fake) -> Vec<Finding> {
    super::check(needs, Some(nic), &machine("7.0.1").0, &[]).expect("findings")
}

/// The finding of that thing.
fn about<'a>(findings: &'a [Finding], thing: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.thing == thing);
    found.unwrap_or_else(|| panic!("nothing of {thing:?} in {findings:#?}"))
}

/// Applies, and returns what was said too.
fn apply(
    needs: &Needs,
    nic: &Fake,
    machine: &Machine,
    store: Option<&Store>,
) -> (Result<Applied, HostError>, Vec<(Severity, String)>) {
    let mut said = Vec::new();
    let applying = Applying {
        needs,
        nic: Some(nic),
        machine,
        missing: &[],
        store,
        carrier_wait: Duration::ZERO,
    };
    let done = super::apply(applying, &mut |severity, words| {
        said.push((severity, words.to_owned()));
    });
    (done, said)
}
