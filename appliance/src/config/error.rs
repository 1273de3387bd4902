//! Why a configuration is refused, and where in the file.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The file is not TOML, or asks for something unknown or impossible.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The field, what is wrong with it, and what to change.
        reason: String,
    },
}

/// A file while it is being checked: turns places in it into messages.
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    pub(super) path: &'a Path,
}

impl Source<'_> {
    /// The error that `key` (as `section.field`) at `span` has `reason`.
    pub(super) fn refuse(&self, span: Range<usize>, key: &str, reason: &str) -> ConfigError {
        self.invalid(span.start, format!("{key}: {reason}"))
    }

    /// The error that serde or the TOML parser found.
    pub(super) fn unparsable(&self, error: &toml::de::Error) -> ConfigError {
        let start = error.span().map_or(0, |span| span.start);
        let reason = error.message().trim_end().replace('\n', "; ");
        match self.key_of_value(start) {
            Some(key) => self.invalid(start, format!("{key}: {reason}")),
            None => self.invalid(start, reason),
        }
    }

    fn invalid(&self, offset: usize, reason: String) -> ConfigError {
        let before = self.before(offset);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        ConfigError::Invalid {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            reason,
        }
    }

    /// `section.field` of the value at `offset`; `None` where no value begins there.
    fn key_of_value(&self, offset: usize) -> Option<String> {
        let before = self.before(offset);
        let (above, line) = before.rsplit_once('\n').unwrap_or(("", before));
        let field = line.split_once('=')?.0.trim();
        let section = above.lines().rev().map(str::trim).find_map(|l| {
            let name = l.strip_prefix('[')?.split(']').next()?;
            Some(name.trim())
        });
        Some(match section {
            Some(section) => format!("{section}.{field}"),
            None => field.to_owned(),
        })
    }

    fn before(&self, offset: usize) -> &str {
        // A span of the parser's is always a character boundary; this survives one that is not.
        self.text.get(..offset).unwrap_or(self.text)
    }
}
