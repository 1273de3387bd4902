//! The machine that figures come from.

use super::figure::WorkingSet;
use crate::sum::Isa;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Sizes where the kernel does not say: those of a small server CPU.
const L1: u64 = 32 << 10;
const L2: u64 = 512 << 10;
const L3: u64 = 16 << 20;

/// A description for people, and for those who compare figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: u32,
    /// Widest vector unit that the sums use.
    pub isa: String,
    /// Bytes of the first-level data cache.
    pub l1_bytes: u64,
    /// Bytes of the second-level cache.
    pub l2_bytes: u64,
    /// Bytes of the last-level cache, as the kernel has it; others may use it too.
    pub l3_bytes: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Scaling governor of the first CPU; none in most virtual machines.
    pub governor: Option<String>,
    /// Transparent huge pages.
    pub huge_pages: Option<String>,
    /// Hypervisor, where the CPU tells of one.
    pub virtual_machine: bool,
    /// Interface of `bench wire` with its driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Version of Gradbox.
    pub version: String,
    /// Day that the figures were taken, in UTC, as `2026-01-31`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn describe() -> Self {
        let info = text("/proc/cpuinfo").unwrap_or_default();
        let line = |name: &str| {
            let found = info.lines().find(|l| l.starts_with(name))?;
            found.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let caches = Caches::read();
        Self {
            cpu: line("model name").or_else(|| line("CPU implementer")).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            isa: Isa::detect().name().to_owned(),
            l1_bytes: caches.l1,
            l2_bytes: caches.l2,
            l3_bytes: caches.l3,
            memory_bytes: memory(),
            kernel: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled").as_deref().map(chosen),
            virtual_machine: line("flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            nic: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: Some(jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()),
        }
    }
}

/// Sizes of the caches in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First level, data.
    pub l1: u64,
    /// Second level.
    pub l2: u64,
    /// Last level.
    pub l3: u64,
}

impl Caches {
    /// Those of the first CPU.
    #[must_use]
    pub fn read() -> Self {
        let mut caches = Self { l1: L1, l2: L2, l3: L3 };
        let dir = Path::new("/sys/devices/system/cpu/cpu0/cache");
        for index in 0..8 {
            let read = |name: &str| text(dir.join(format!("index{index}/{name}")));
            let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
            else {
                break;
            };
            let Some(bytes) = bytes(&size) else { continue };
            match (level.as_str(), kind.as_str()) {
                ("1", "Data" | "Unified") => caches.l1 = bytes,
                ("2", _) => caches.l2 = bytes,
                ("3", _) => caches.l3 = bytes,
                _ => {}
            }
        }
        caches
    }

    /// Bytes to work on so that they have room there, and nowhere closer. A virtual machine
    /// seldom has the whole last-level cache to itself, so only a little of it is asked for.
    #[must_use]
    pub fn bytes(self, working_set: WorkingSet) -> u64 {
        match working_set {
            WorkingSet::L1 => self.l1 / 2,
            WorkingSet::L2 => self.l2 / 2,
            WorkingSet::L3 => (4 * self.l2).min(self.l3 / 2).max(self.l2),
            WorkingSet::Dram => (2 * self.l3).max(512 << 20).min(memory() / 4),
        }
    }
}

/// Bytes of memory.
fn memory() -> u64 {
    let info = text("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kib = total.and_then(|t| t.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// What a file says, without the end of its line. `None` where there is none.
fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim_end().to_owned())
}

/// `"48K"` as bytes.
fn bytes(size: &str) -> Option<u64> {
    let unit = size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len());
    let number: u64 = size[..unit].parse().ok()?;
    match &size[unit..] {
        "" => Some(number),
        "K" => Some(number << 10),
        "M" => Some(number << 20),
        "G" => Some(number << 30),
        _ => None,
    }
}

/// The word in brackets of `"always [madvise] never"`.
fn chosen(words: &str) -> String {
    let word = words.split(' ').find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    word.unwrap_or(words).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_words() {
        assert_eq!(bytes("48K"), Some(48 << 10));
        assert_eq!(bytes("32M"), Some(32 << 20));
        assert_eq!(bytes("7"), Some(7));
        assert_eq!(bytes("K"), None);
        assert_eq!(chosen("always [madvise] never"), "madvise");
    }

    #[test]
    fn every_working_set_is_larger_than_the_one_before() {
        for caches in [
            Caches::read(),
            Caches { l1: L1, l2: L2, l3: L3 },
            Caches { l1: 48 << 10, l2: 2 << 20, l3: 260 << 20 },
            Caches { l1: 48 << 10, l2: 2 << 20, l3: 2 << 20 },
        ] {
            let bytes = WorkingSet::ALL.map(|w| caches.bytes(w));
            assert!(bytes.is_sorted(), "{caches:?}: {bytes:?}");
        }
    }
}
