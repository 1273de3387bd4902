//! Programs that end with the test, and never hang it.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for anything that a test waits for. Generous: it only ends tests that have failed.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// A program that was started. Dropping it kills it, and what it has started.
pub struct Process {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Process {
    /// Starts `command`; what it prints goes to files in `dir`.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn start(name: &str, command: &mut Command, dir: &Path) -> Self {
        let (out, err) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.err")));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("a file for its output"))
            .stderr(File::create(&err).expect("a file for its errors"))
            // With what it starts, so that nothing of it stays where a test fails.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self { name: name.to_owned(), child, out, err }
    }

    /// What it has printed so far.
    #[must_use]
    pub fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// What it has complained of so far.
    #[must_use]
    pub fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// Where the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).unwrap_or_else(|e| panic!("{} cannot be signalled: {e}", self.name));
    }

    /// Kills its child.
    ///
    /// # Panics
    /// Where it has none.
    pub fn kill_child(&self) {
        let own = format!("PPid:\t{}", self.child.id());
        let is_it = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|l| l == own)
        };
        let all = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
        let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
        let pid = pids.find(is_it).unwrap_or_else(|| panic!("{} has no child", self.name));
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a signal");
    }

    /// Whether it still runs.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until its output has `text`.
    ///
    /// # Panics
    /// Where it ends before, or does not say it in time.
    pub fn wait_for(&mut self, text: &str) {
        let said = until(|| self.out().contains(text) || !self.runs());
        assert!(
            said && self.out().contains(text),
            "{} never said {text:?}\n{}\n{}",
            self.name,
            self.out(),
            self.err()
        );
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// Where it does not end in time.
    #[must_use]
    pub fn end(mut self) -> Ended {
        let ended = until(|| !self.runs());
        let (out, err) = (self.out(), self.err());
        assert!(ended, "{} does not end\n{out}\n{err}", self.name);
        let status = self.child.wait().expect("an exit status");
        Ended { status, out, err }
    }

    /// Waits for its end, which must be a success.
    ///
    /// # Panics
    /// Where it fails or does not end in time.
    #[must_use]
    pub fn succeed(self) -> Ended {
        let name = self.name.clone();
        let ended = self.end();
        assert!(ended.status.success(), "{name}: {ended:#?}");
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.runs() {
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// Asks again and again; returns whether the answer became yes in time.
#[must_use]
pub fn until(mut question: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !question() {
        if start.elapsed() > DEADLINE {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}
