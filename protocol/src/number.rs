//! Data types and operations: the codes on the wire, the names in JSON and on the command line.

use core::fmt;
use core::str::FromStr;

/// Element type of a tensor on the wire; little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// bfloat16: the upper half of a binary32.
    Bf16 = 2,
    /// Two's complement, 32 bits.
    I32 = 3,
}

impl DType {
    /// Every data type, in order of its code.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::I32];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Name used in JSON, in flags and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
        }
    }
}

/// What is done with the elements of all ranks, in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum Op {
    /// Sum.
    Sum = 0,
    /// Sum divided by the number of ranks.
    Avg = 1,
    /// Smallest.
    Min = 2,
    /// Largest.
    Max = 3,
}

impl Op {
    /// Every operation, in order of its code.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Avg, Self::Min, Self::Max];

    /// Name used in JSON, in flags and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

/// A name that is none of the known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What was being named, and the names that exist.
    pub known: &'static str,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown name, use one of: {}", self.known)
    }
}

impl core::error::Error for UnknownName {}

impl FromStr for DType {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = "f32, f16, bf16, i32";
        Self::ALL.into_iter().find(|d| d.name() == name).ok_or(UnknownName { known })
    }
}

impl FromStr for Op {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = "sum, avg, min, max";
        Self::ALL.into_iter().find(|o| o.name() == name).ok_or(UnknownName { known })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
