//! `gradbox host`: whether the box can run on this machine, setting it so, and putting it back.

mod show;

use crate::config::Config;
use crate::host::{
    self, Applied, Applying, Counts, HostError, Machine, Needs, Severity, Store, Undone,
};
use crate::nic::{KernelNic, Nic, NicError};
use crate::privileges;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Longest wait for the carrier: what reset the link takes some seconds.
const CARRIER: Duration = Duration::from_secs(10);

/// Exit status with warnings.
const WARNINGS: u8 = 3;
/// Exit status with faults.
const FAULTS: u8 = 4;

/// Whether the box can run on this machine, setting it so, and putting it back.
#[derive(Args)]
pub(super) struct Host {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Say what the box would find, and the command that sets it right. Exit status: 0 good, 3
    /// warnings, 4 faults, 1 could not tell.
    Check(Check),
    /// Set NIC, frequency governors and huge pages as the box needs them; write down how
    /// everything was.
    /// Exit status: 0 done, 4 refused (nothing was changed), 1 could not (`undo` puts it back).
    Apply(Apply),
    /// Put everything back as it was before `apply`, also after a crash.
    Undo(Undo),
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Configuration of the box (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An interface alone; the defaults of a configuration for everything else.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
}

#[derive(Args)]
struct Check {
    #[command(flatten)]
    what: What,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Apply {
    #[command(flatten)]
    what: What,
    /// Only say what would be changed.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    state: State,
}

#[derive(Args)]
struct Undo {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    state: State,
}

#[derive(Args)]
struct State {
    /// Directory of the records of what was before.
    #[arg(long, value_name = "DIR", default_value = "/run/gradbox")]
    state: PathBuf,
}

/// Checks, applies or undoes.
///
/// # Errors
/// Where machine, interface or record do not tell, or something needed cannot be set.
pub(super) fn run(args: &Host) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Check(args) => check(args),
        Action::Apply(args) => apply(args),
        Action::Undo(args) => undo(args),
    }
}

impl What {
    fn needs(&self) -> anyhow::Result<Needs> {
        let config = match (&self.config, &self.interface) {
            (Some(path), _) => Config::load(path)?,
            (None, interface) => {
                let name = toml::Value::from(interface.as_deref().unwrap_or_default());
                let text = format!("[data]\nport = \"xdp\"\ninterface = {name}\n");
                Config::parse(&text, Path::new("--interface"))?
            }
        };
        Ok(Needs::from(&config))
    }
}

fn open(needs: &Needs) -> Result<Option<KernelNic>, NicError> {
    needs.interface().map(KernelNic::open).transpose()
}

fn as_nic(nic: &Option<KernelNic>) -> Option<&dyn Nic> {
    nic.as_ref().map(|nic| nic as &dyn Nic)
}

fn check(args: &Check) -> anyhow::Result<ExitCode> {
    let needs = args.what.needs()?;
    let nic = open(&needs)?;
    let missing = privileges::missing()?;
    let findings = host::check(&needs, as_nic(&nic), &Machine::here(), &missing)?;
    let counts = Counts::of(&findings);
    if args.json {
        println!("{}", show::json(needs.interface(), &findings, counts)?);
    } else {
        print!("{}", show::text(&findings, counts));
    }
    Ok(match counts {
        Counts { faults: 1.., .. } => ExitCode::from(FAULTS),
        Counts { warnings: 1.., .. } => ExitCode::from(WARNINGS),
        _ => ExitCode::SUCCESS,
    })
}

fn apply(args: &Apply) -> anyhow::Result<ExitCode> {
    let needs = args.what.needs()?;
    let nic = open(&needs)?;
    let missing = privileges::missing()?;
    let machine = Machine::here();
    // Without a NIC there may be nothing to change, and then no record is begun.
    let nothing = nic.is_none()
        && host::check(&needs, None, &machine, &missing)?.iter().all(|f| f.change.is_none());
    let store = match args.dry_run || nothing {
        true => None,
        false => match Store::open(&args.state.state, needs.interface().unwrap_or_default()) {
            Err(e @ HostError::Busy { .. }) => {
                eprintln!("host: {e}; nothing was changed");
                return Ok(ExitCode::from(FAULTS));
            }
            other => Some(other?),
        },
    };
    if nic.is_none() {
        println!("host: ordinary UDP sockets: nothing to set on a NIC");
    }
    let applying = Applying {
        needs: &needs,
        nic: as_nic(&nic),
        machine: &machine,
        missing: &missing,
        store: store.as_ref(),
        carrier_wait: CARRIER,
    };
    let applied = host::apply(applying, &mut |severity, words| match severity {
        Severity::Ok | Severity::Note => println!("host: {words}"),
        _ => eprintln!("host: {words}"),
    });
    if applied.is_err() && store.as_ref().is_some_and(|store| store.path().exists()) {
        eprintln!("host: what was set until here is put back by `gradbox host undo`");
    }
    match applied? {
        Applied::Done => Ok(ExitCode::SUCCESS),
        Applied::Refused(faults) => {
            for fault in faults {
                eprintln!("host: {fault}");
            }
            eprintln!("host: nothing was changed");
            Ok(ExitCode::from(FAULTS))
        }
    }
}

fn undo(args: &Undo) -> anyhow::Result<ExitCode> {
    let needs = args.what.needs()?;
    let interface = needs.interface().unwrap_or_default();
    let nothing = || {
        println!("host: nothing to undo");
        Ok(ExitCode::SUCCESS)
    };
    if !args.state.state.exists() {
        return nothing();
    }
    let store = Store::open(&args.state.state, interface)?;
    if store.load()?.changes.is_empty() {
        return nothing();
    }
    let nic = match open(&needs) {
        Err(NicError::Missing { .. }) => None,
        other => other?,
    };
    let mut failed = 0;
    host::undo(as_nic(&nic), &Machine::here(), &store, &mut |undone| match undone {
        Undone::Restored(change) => {
            println!("host: {}: {} again", change.thing(interface), change.before());
        }
        Undone::Already(change) => {
            println!("host: {}: {} already", change.thing(interface), change.before());
        }
        Undone::Failed(change, e) => {
            failed += 1;
            eprintln!(
                "host: {}: {} could not be restored: {e}",
                change.thing(interface),
                change.before()
            );
        }
    })?;
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => anyhow::bail!(
            "{failed} thing(s) are not as they were: {} has them",
            store.path().display()
        ),
    }
}
