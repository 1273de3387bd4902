//! Lists of CPUs, as the kernel writes them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// No machine has more CPUs: longer ranges are not a list of CPUs.
const MOST: usize = 1 << 16;

/// A set of CPUs, written as in `0-3,7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<usize>);

impl CpuList {
    /// Whether `cpu` is in it.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

/// The text is no list of CPUs.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no list of CPUs")]
pub struct NotCpus(String);

impl FromStr for CpuList {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Self, NotCpus> {
        let wrong = || NotCpus(text.to_owned());
        let number =
            |s: &str| s.trim().parse::<usize>().ok().filter(|n| *n < MOST).ok_or_else(wrong);
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            cpus.extend(number(first)?..=number(last)?);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, written) in [("0-3,7\n", "0-3,7"), ("", ""), ("2,1,0", "0-2"), ("5", "5")] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), written);
        }
        for text in ["x", "1-", "-1", "0-99999999999", "0-4000000000"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
        assert_eq!("3-1".parse::<CpuList>().unwrap(), CpuList::default());
    }
}
