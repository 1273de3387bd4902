//! What a check found.

use super::Change;
use serde::Serialize;
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// The box runs, but slower, or not for every packet.
    Warning,
    /// The box does not run, or hears nothing.
    Fault,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        })
    }
}

/// What a finding is about, in the order in which changes are made: what resets the link comes
/// first, rules that need the queues come after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// Kernel, capabilities, memory.
    Machine,
    /// Driver and what it can do.
    Driver,
    /// Largest packet.
    Mtu,
    /// Set up or down.
    Up,
    /// What alters packets before the box sees them.
    Offloads,
    /// The card's own rings.
    Rings,
    /// Numbers of queues.
    Queues,
    /// Which packet goes to which queue.
    Steering,
    /// Interrupts.
    Interrupts,
    /// CPUs of the cores.
    Cpus,
    /// How the frequency of the cores' CPUs is chosen.
    Governor,
    /// Reserved pages.
    HugePages,
    /// The other end.
    Carrier,
}

impl Area {
    /// Those in which a card has something to set, in order.
    pub(super) const OF_CARD: [Self; 7] = [
        Self::Mtu,
        Self::Up,
        Self::Offloads,
        Self::Rings,
        Self::Queues,
        Self::Steering,
        Self::Interrupts,
    ];
}

/// One thing, as it is and as it is needed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub area: Area,
    /// Name of the thing, with the interface or CPU that it belongs to.
    pub thing: String,
    /// What was found.
    pub found: String,
    /// What is needed.
    pub needed: String,
    /// What happens otherwise.
    pub why: String,
    /// What a person may do: a command, or a line of the configuration. Every fault has it.
    pub command: Option<String>,
    /// What `gradbox host apply` does, where it can do something.
    #[serde(skip)]
    pub change: Option<Change>,
}

impl Finding {
    pub(super) fn new(
        (severity, area): (Severity, Area),
        thing: impl Into<String>,
        found: impl fmt::Display,
        needed: impl fmt::Display,
        why: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            area,
            thing: thing.into(),
            found: found.to_string(),
            needed: needed.to_string(),
            why: why.into(),
            command: None,
            change: None,
        }
    }

    /// Something that is as it should be.
    pub(super) fn good(
        area: Area,
        thing: impl Into<String>,
        found: impl fmt::Display,
        needed: impl fmt::Display,
    ) -> Self {
        Self::new((Severity::Ok, area), thing, found, needed, "")
    }

    /// With what a person may do.
    pub(super) fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// With what `apply` does, and the same as a command. `interface` is empty for changes of the
    /// machine.
    pub(super) fn change(mut self, interface: &str, change: Change) -> Self {
        self.command = Some(change.command(interface));
        self.change = Some(change);
        self
    }

    /// Whether nothing but a person can do away with this fault before the box runs. A missing
    /// carrier is waited for.
    #[must_use]
    pub fn forbids(&self) -> bool {
        self.severity == Severity::Fault && self.change.is_none() && self.area != Area::Carrier
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, thing, found, needed, why, command, .. } = self;
        write!(f, "{severity}: {thing}: {found} (needed: {needed})")?;
        if !why.is_empty() {
            write!(f, "; {why}")?;
        }
        match command {
            Some(command) => write!(f, "\n  {command}"),
            None => Ok(()),
        }
    }
}

/// How many findings there are of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// As they should be.
    pub ok: usize,
    /// Worth knowing.
    pub notes: usize,
    /// Slower.
    pub warnings: usize,
    /// Does not run.
    pub faults: usize,
}

impl Counts {
    /// Of these findings.
    #[must_use]
    pub fn of(findings: &[Finding]) -> Self {
        let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
        Self {
            ok: count(Severity::Ok),
            notes: count(Severity::Note),
            warnings: count(Severity::Warning),
            faults: count(Severity::Fault),
        }
    }
}
