//! What was changed, on disk: what a crash leaves behind is enough to undo everything.

use super::{Change, HostError};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The changes that are in effect, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the interface; empty where the machine alone was changed.
    pub interface: String,
    /// Each thing once, with what was before the first change.
    pub changes: Vec<Change>,
}

impl Record {
    /// Takes in a change that is about to be made, and returns its place. Something that was
    /// changed before keeps what was before that.
    pub(super) fn add(&mut self, change: &Change) -> usize {
        let known = self.changes.iter().position(|known| known.same_thing(change));
        let Some(place) = known else {
            self.changes.push(change.clone());
            return self.changes.len() - 1;
        };
        if let (Change::HugePages { to: all, .. }, Change::HugePages { was, to }) =
            (&mut self.changes[place], change)
        {
            // All of them are to be taken back.
            *all += to - was;
        }
        place
    }
}

/// The record's file. While it is open, no other process changes anything under its directory.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    interface: String,
    directory: File,
}

impl Store {
    /// The record of `interface` (empty for the machine alone) in `directory`, which is made where
    /// it is missing.
    ///
    /// # Errors
    /// [`HostError::Busy`] where another process has it open, and where the directory cannot be
    /// made.
    pub fn open(directory: &Path, interface: &str) -> Result<Self, HostError> {
        fs::create_dir_all(directory).map_err(|source| HostError::Write {
            path: directory.to_owned(),
            value: "a directory".to_owned(),
            source,
        })?;
        let read = |source| HostError::Read { path: directory.to_owned(), source };
        let file = File::open(directory).map_err(read)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(HostError::Busy { directory: directory.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(read(source)),
        }
        let name = match interface {
            "" => "host.json".to_owned(),
            _ => format!("host-{interface}.json"),
        };
        Ok(Self { path: directory.join(name), interface: interface.to_owned(), directory: file })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record; one without changes where there is none.
    ///
    /// # Errors
    /// Where the file cannot be read, or is no record.
    pub fn load(&self) -> Result<Record, HostError> {
        let path = self.path.clone();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Ok(Record { interface: self.interface.clone(), changes: Vec::new() });
            }
            Err(source) => return Err(HostError::Read { path, source }),
        };
        serde_json::from_str(&text).map_err(|e| HostError::Strange {
            path,
            found: e.to_string(),
            needed: "a record of `gradbox host apply`",
        })
    }

    /// Puts `record` in place of the old one, at once and for good; removes it where nothing is
    /// left to undo.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn save(&self, record: &Record) -> Result<(), HostError> {
        let failed = |source| HostError::Write {
            path: self.path.clone(),
            value: "the record".to_owned(),
            source,
        };
        if record.changes.is_empty() {
            match fs::remove_file(&self.path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
                _ => return self.directory.sync_all().map_err(failed),
            }
        }
        let new = self.path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(record).map_err(|e| failed(e.into()))?;
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&new, &self.path).map_err(failed)?;
        self.directory.sync_all().map_err(failed)
    }
}
