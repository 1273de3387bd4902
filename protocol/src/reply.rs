//! How a job gets its results: each rank its own, or all ranks one.

use crate::number::UnknownName;
use core::fmt;
use core::str::FromStr;

/// How the RESULTs of a job are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(rename_all = "lowercase"))]
pub enum Reply {
    /// A RESULT to each rank, in the frame that its PUSH came in.
    #[default]
    Unicast,
    /// One RESULT for each chunk, to a multicast group that all ranks listen to.
    Multicast,
}

impl Reply {
    /// Every way, the default first.
    pub const ALL: [Self; 2] = [Self::Unicast, Self::Multicast];

    /// Name used in JSON, in flags and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Multicast => "multicast",
        }
    }
}

impl FromStr for Reply {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = "unicast, multicast";
        Self::ALL.into_iter().find(|r| r.name() == name).ok_or(UnknownName { known })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
