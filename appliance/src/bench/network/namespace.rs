//! Network namespaces without a name: nothing of them outlives the processes in them.

use super::NetworkError;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio, id};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Longest wait for a command. Those that set up a network take milliseconds.
const COMMAND_WAIT: Duration = Duration::from_secs(20);

/// A network namespace, empty but for `lo`.
///
/// Only this value, sockets and processes in it keep it alive. When they end, however they end, the
/// kernel removes it and the interfaces in it: there is nothing to clean up.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// A new namespace: `lo` is up and IPv6 off, so that no packet comes that nobody sent.
    ///
    /// # Errors
    /// No permission, or `ip` is missing.
    pub fn new() -> Result<Self, NetworkError> {
        let made = on_thread(|| {
            let what = "make a network namespace";
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| namespace_error(what, e.into()))?;
            let what = "open /proc/thread-self/ns/net";
            File::open("/proc/thread-self/ns/net").map_err(|e| namespace_error(what, e))
        })?;
        let namespace = Self { file: made? };
        namespace.run(without_ipv6)??;
        namespace.command("ip", &["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// A path that names it for as long as this value lives, as in `ip link set X netns PATH`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", id(), self.file.as_raw_fd())
    }

    /// Does `work` on a thread that is in the namespace, and gives back its value. Sockets made
    /// there stay there; processes and threads started there begin there.
    ///
    /// # Errors
    /// No thread, or no permission to enter.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetworkError> {
        on_thread(|| {
            let entered = setns(&self.file, CloneFlags::CLONE_NEWNET);
            entered.map_err(|e| namespace_error("enter a network namespace", e.into()))?;
            Ok(work())
        })?
    }

    /// As [`Namespace::run`], and `/sys` shows the interfaces of the namespace, to the thread and to
    /// those that it starts: what runs a box needs it.
    ///
    /// # Errors
    /// As [`Namespace::run`], and where `/sys` cannot be mounted.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run_with_sysfs<T: Send>(
        &self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, NetworkError> {
        self.run(|| {
            let failed = |e: nix::Error| namespace_error("mount /sys of a namespace", e.into());
            unshare(CloneFlags::CLONE_NEWNS).map_err(failed)?;
            // So that the new mount is seen by nobody else.
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).map_err(failed)?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).map_err(failed)?;
            Ok(work())
        })?
    }

    /// Starts `command` in the namespace. The child keeps the namespace alive, also when this
    /// process has ended.
    ///
    /// # Errors
    /// It does not start; see [`Namespace::run`] also.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, NetworkError> {
        let program = command.get_program().to_string_lossy().into_owned();
        self.run(|| command.spawn().map_err(|e| start_error(&program, &shown(command), e)))?
    }

    /// Runs a program in the namespace to its end, and gives back what it printed.
    ///
    /// # Errors
    /// It is missing, fails, or has not ended after 20 s; see [`Namespace::run`] also.
    pub fn command(&self, program: &str, args: &[&str]) -> Result<String, NetworkError> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        let text = shown(&command);
        let failed = |e: io::Error| start_error(program, &text, e);
        // Memory, not pipes: a pipe that is full, or held open by somebody else, would block.
        let (out, out_end) = capture().map_err(failed)?;
        let (err, err_end) = capture().map_err(failed)?;
        let mut child = self.spawn(command.stdout(out_end).stderr(err_end))?;
        let deadline = Instant::now() + COMMAND_WAIT;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                let seconds = COMMAND_WAIT.as_secs();
                return Err(NetworkError::Slow { command: text, seconds });
            }
            thread::sleep(Duration::from_micros(500));
        };
        if !status.success() {
            let stderr = printed(err).map_err(failed)?.trim().to_owned();
            return Err(NetworkError::Failed { command: text, status, stderr });
        }
        printed(out).map_err(failed)
    }
}

/// Does `work` on a thread of its own: one that has entered a namespace is good for nothing else.
fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NetworkError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| namespace_error("start a thread", e))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Turns IPv6 off for all interfaces to come of this thread's namespace.
fn without_ipv6() -> Result<(), NetworkError> {
    for which in ["all", "default"] {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1") {
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|e| namespace_error("turn IPv6 off", e))?,
        }
    }
    Ok(())
}

/// A file in memory, twice: to be read here, and to be a program's output.
pub(in crate::bench) fn capture() -> io::Result<(File, File)> {
    let file = File::from(memfd_create("output", MFdFlags::MFD_CLOEXEC)?);
    let end = file.try_clone()?;
    Ok((file, end))
}

/// What was written to a file of [`capture`].
pub(in crate::bench) fn printed(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn namespace_error(what: &'static str, source: io::Error) -> NetworkError {
    NetworkError::Namespace { what, source }
}

/// Why `program` did not run.
fn start_error(program: &str, command: &str, source: io::Error) -> NetworkError {
    if source.kind() != io::ErrorKind::NotFound {
        return NetworkError::Start { command: command.to_owned(), source };
    }
    let package = match program {
        "ip" | "tc" | "bridge" => "iproute2",
        "ping" => "iputils-ping",
        other => other,
    };
    NetworkError::Missing { program: program.to_owned(), package: package.to_owned() }
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
