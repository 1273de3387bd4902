//! Workers: `gradbox all-reduce` processes.

use super::appliance::TheBox;
use super::process::{Ended, Process};
use super::{Lab, gradbox, repository};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Workers so far: each has files of its own.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// What the workers of a job do.
#[derive(Clone, Debug)]
pub struct Job {
    name: String,
    world: u8,
    input: Input,
    args: Vec<String>,
}

#[derive(Clone, Debug)]
enum Input {
    /// The gradients of a real training step.
    Real { step: &'static str },
    /// Made-up tensors of these lengths.
    Made { lengths: Vec<usize>, dtype: String },
}

/// A job that runs.
pub struct Running {
    workers: Vec<Process>,
    outputs: Vec<PathBuf>,
}

impl Job {
    /// Sums real gradients (f32), which every worker compares with the reference.
    #[must_use]
    pub fn real(name: &str, world: u8) -> Self {
        let (name, step) = (name.to_owned(), if world > 3 { "step60" } else { "step00" });
        Self { name, world, input: Input::Real { step }, args: Vec::new() }
    }

    /// Sums made-up tensors of a type, which every worker compares with the reference.
    #[must_use]
    pub fn made(name: &str, world: u8, dtype: &str, lengths: &[usize]) -> Self {
        let input = Input::Made { lengths: lengths.to_vec(), dtype: dtype.to_owned() };
        Self { name: name.to_owned(), world, input, args: Vec::new() }
    }

    /// Adds arguments for all workers.
    #[must_use]
    pub fn with(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&a| a.to_owned()));
        self
    }

    /// Starts the worker of `rank`.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn worker(&self, lab: &Lab, control: &str, rank: u8, own: &[&str]) -> Process {
        let mut command = lab.command(&lab.worker(rank), &gradbox());
        command.args(["all-reduce", "--box", control, "--job", &self.name]);
        command.args(["--rank", &rank.to_string(), "--world", &self.world.to_string()]);
        command.arg("--output").arg(self.output(lab, rank));
        match &self.input {
            Input::Real { step } => {
                // There are four ranks; more workers bring them again.
                let file = |rank: u8| {
                    repository(&format!("tests/data/gradients/{step}/rank{}.safetensors", rank % 4))
                };
                command.arg(file(rank)).arg("--verify-with").args((0..self.world).map(file));
            }
            Input::Made { lengths, dtype } => {
                let table = lab.file(&format!("{}.csv", self.name));
                let line = |(i, n): (usize, &usize)| format!("{i},t{i},{n}\n");
                let lines: String = lengths.iter().enumerate().map(line).collect();
                // Renamed into place: other ranks may be reading it.
                let written = lab.file(&format!("{}.{rank}.csv", self.name));
                fs::write(&written, format!("index,name,numel\n{lines}")).expect("a table");
                fs::rename(written, &table).expect("a table");
                command.arg("--model").arg(table).args(["--seed", "5", "--dtype", dtype]);
                command.arg("--verify");
            }
        }
        command.args(&self.args).args(own);
        // A rank may be started again while its first process runs.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        Process::start(&format!("{}.{rank}.{number}", self.name), &mut command, &lab.dir)
    }

    /// Starts all workers.
    ///
    /// # Panics
    /// Where one cannot be started.
    #[must_use]
    pub fn start(&self, lab: &Lab, the_box: &TheBox<'_>) -> Running {
        let start = |rank| self.worker(lab, &the_box.control, rank, &[]);
        Running {
            workers: (0..self.world).map(start).collect(),
            outputs: (0..self.world).map(|rank| self.output(lab, rank)).collect(),
        }
    }

    /// Where a rank's results go.
    #[must_use]
    pub fn output(&self, lab: &Lab, rank: u8) -> PathBuf {
        lab.file(&format!("{}.{rank}.safetensors", self.name))
    }
}

impl Running {
    /// Whether a worker still runs.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        self.workers.iter_mut().any(Process::runs)
    }

    /// Waits for all workers, which must succeed with the same result; returns the bytes of their
    /// files.
    ///
    /// # Panics
    /// Where one fails, or two differ.
    #[must_use]
    pub fn exact(self) -> Vec<u8> {
        let ended: Vec<_> = self.workers.into_iter().map(Process::end).collect();
        assert!(ended.iter().all(|e| e.status.success()), "{ended:#?}");
        let files = self.outputs.iter().map(|path| fs::read(path).expect("a result"));
        let mut files: Vec<_> = files.collect();
        for (rank, file) in files.iter().enumerate() {
            assert!(*file == files[0], "ranks 0 and {rank} have other results");
        }
        files.swap_remove(0)
    }

    /// Waits for all workers, whatever comes of them.
    #[must_use]
    pub fn end(self) -> Vec<Ended> {
        self.workers.into_iter().map(Process::end).collect()
    }
}
