//! Facts of the machine, from `/proc` and `/sys`.

use super::change::{HUGE_PAGES, governor_file};
use super::{CpuList, HostError};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The machine, as the files below a directory tell of it.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

/// The kernel that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// As `uname -r` says it.
    pub release: String,
    /// The first two numbers of it.
    pub version: (u32, u32),
}

/// Reserved pages of 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// All of them.
    pub total: u64,
    /// Those that are neither in use nor promised.
    pub free: u64,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here() -> Self {
        Self::at("/")
    }

    /// One whose files are below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The kernel.
    ///
    /// # Errors
    /// Where its file cannot be read or is not as known.
    pub fn kernel(&self) -> Result<Kernel, HostError> {
        let path = "proc/sys/kernel/osrelease";
        let release = self.read(path)?.trim().to_owned();
        let mut parts = release.split(['.', '-', '+', '_']).map(|part| part.parse().ok());
        let version = parts.next().flatten().zip(parts.next().flatten());
        match version {
            Some(version) => Ok(Kernel { version, release }),
            None => Err(self.strange(path, &release, "a kernel's release, as in 6.12.0")),
        }
    }

    /// Bytes of memory that programs can have without swapping.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn memory_available(&self) -> Result<u64, HostError> {
        let path = "proc/meminfo";
        let text = self.read(path)?;
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map(|kib| kib.saturating_mul(1024))
            .ok_or_else(|| self.strange(path, line.unwrap_or(""), "MemAvailable: N kB"))
    }

    /// Bytes that this process may lock in memory; `None` without a limit.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn locked_memory(&self) -> Result<Option<u64>, HostError> {
        let path = "proc/self/limits";
        let text = self.read(path)?;
        let line = text.lines().find_map(|l| l.strip_prefix("Max locked memory"));
        match line.and_then(|l| l.split_whitespace().next()) {
            Some("unlimited") => Ok(None),
            Some(bytes) if bytes.parse::<u64>().is_ok() => Ok(bytes.parse().ok()),
            found => Err(self.strange(path, found.unwrap_or(""), "Max locked memory N")),
        }
    }

    /// Reserved pages of 2 MiB; none where the kernel has no such.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn huge_pages(&self) -> Result<HugePages, HostError> {
        let number = |name: &str| {
            let path = format!("{HUGE_PAGES}/{name}_hugepages");
            let Some(text) = self.read_if_there(&path)? else { return Ok(0) };
            text.trim().parse().map_err(|_| self.strange(&path, text.trim(), "a number"))
        };
        let promised = number("resv")?;
        let free = number("free")?;
        Ok(HugePages { total: number("nr")?, free: u64::saturating_sub(free, promised) })
    }

    /// Asks for so many pages of 2 MiB in all. The kernel reserves as many of them as it finds.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn set_huge_pages(&self, total: u64) -> Result<(), HostError> {
        self.write(format!("{HUGE_PAGES}/nr_hugepages"), total.to_string())
    }

    /// CPUs that run.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn cpus_online(&self) -> Result<CpuList, HostError> {
        let path = "sys/devices/system/cpu/online";
        let text = self.read(path)?;
        text.parse().map_err(|_| self.strange(path, text.trim(), "a list of CPUs"))
    }

    /// CPUs that the scheduler leaves alone (`isolcpus`).
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn cpus_isolated(&self) -> Result<CpuList, HostError> {
        self.cpus("sys/devices/system/cpu/isolated")
    }

    /// CPUs of a NUMA node; none where the kernel knows no such node.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn node_cpus(&self, node: u32) -> Result<CpuList, HostError> {
        self.cpus(&format!("sys/devices/system/node/node{node}/cpulist"))
    }

    /// Governor of a CPU's frequency, where it has one.
    ///
    /// # Errors
    /// As for [`kernel`](Self::kernel).
    pub fn governor(&self, cpu: usize) -> Result<Option<String>, HostError> {
        Ok(self.read_if_there(&governor_file(cpu))?.map(|text| text.trim().to_owned()))
    }

    /// Lets `governor` choose a CPU's frequency.
    ///
    /// # Errors
    /// Where the file cannot be written: the CPU has no such governor, or none at all.
    pub fn set_governor(&self, cpu: usize, governor: &str) -> Result<(), HostError> {
        self.write(governor_file(cpu), governor.to_owned())
    }

    /// Process of that name, where one runs.
    ///
    /// # Errors
    /// Where the list of processes cannot be read.
    pub fn process(&self, name: &str) -> Result<Option<u32>, HostError> {
        let path = self.root.join("proc");
        let read = |source| HostError::Read { path: path.clone(), source };
        for entry in fs::read_dir(&path).map_err(read)? {
            let entry = entry.map_err(read)?;
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            // A process that has ended meanwhile is none.
            if fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name) {
                return Ok(Some(pid));
            }
        }
        Ok(None)
    }

    fn cpus(&self, path: &str) -> Result<CpuList, HostError> {
        let Some(text) = self.read_if_there(path)? else { return Ok(CpuList::default()) };
        text.parse().map_err(|_| self.strange(path, text.trim(), "a list of CPUs"))
    }

    fn write(&self, path: String, value: String) -> Result<(), HostError> {
        let path = self.root.join(path);
        // The kernel makes the files: one that is not there is not to be made.
        let opened = fs::OpenOptions::new().write(true).truncate(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(|source| HostError::Write { path, value, source })
    }

    fn read(&self, path: &str) -> Result<String, HostError> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(|source| HostError::Read { path, source })
    }

    fn read_if_there(&self, path: &str) -> Result<Option<String>, HostError> {
        match self.read(path) {
            Ok(text) => Ok(Some(text)),
            Err(HostError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn strange(&self, path: impl AsRef<Path>, found: &str, needed: &'static str) -> HostError {
        HostError::Strange { path: self.root.join(path), found: found.to_owned(), needed }
    }
}
