//! Where figures are written to, and read from.

use crate::bench::figure::Figures;
use crate::bench::report;
use anyhow::Context;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Name of the page in its directory.
const PAGE: &str = "index.html";
/// Name of the figures beside it.
const FIGURES: &str = "figures.json";

/// The figures of a file.
pub(super) fn read(file: &Path) -> anyhow::Result<Figures> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("--from {} cannot be read", file.display()))?;
    Figures::from_json(&text).with_context(|| format!("--from {}", file.display()))
}

/// Files that can be written.
pub(super) struct Output {
    json: Option<PathBuf>,
    report: Option<PathBuf>,
}

impl Output {
    /// Makes what is missing, and sees whether all of it can be written.
    pub(super) fn prepare(json: Option<&Path>, report: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(file) = json {
            open(file).with_context(|| format!("--json {} cannot be written", file.display()))?;
        }
        if let Some(dir) = report {
            let made = fs::create_dir_all(dir)
                .and_then(|()| [PAGE, FIGURES].iter().try_for_each(|name| open(&dir.join(name))));
            made.with_context(|| {
                format!("--report {}: needs a directory that this user may write to", dir.display())
            })?;
        }
        Ok(Self { json: json.map(Path::to_owned), report: report.map(Path::to_owned) })
    }

    /// Writes the figures, and says where a page is.
    pub(super) fn write(&self, figures: &Figures) -> anyhow::Result<()> {
        let text = figures.to_json()?;
        let write = |file: &Path, text: &str| {
            fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
        };
        if let Some(file) = &self.json {
            write(file, &text)?;
        }
        if let Some(dir) = &self.report {
            write(&dir.join(FIGURES), &text)?;
            let page = dir.join(PAGE);
            write(&page, &report::page(figures))?;
            println!("report: {}", page.display());
        }
        Ok(())
    }
}

/// Opens a file for writing and leaves it as it is.
fn open(file: &Path) -> std::io::Result<()> {
    File::options().write(true).create(true).truncate(false).open(file).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Bench, Figure, SCHEMA};
    use crate::bench::machine::Machine;

    #[test]
    fn a_page_is_made_again_from_the_figures_beside_it() {
        let temporary = tempfile::tempdir().expect("a directory");
        let dir = temporary.path().join("new").join("report");
        let results = vec![Figure::new(Bench::Sum)];
        let machine = Machine::describe();
        let figures = Figures { schema: SCHEMA, machine, tiny: true, results };
        let output = Output::prepare(None, Some(&dir)).expect("a directory");
        output.write(&figures).expect("written");
        let page = fs::read_to_string(dir.join(PAGE)).expect("a page");
        let again = read(&dir.join(FIGURES)).expect("figures");
        assert_eq!(again, figures);
        // Where nothing can be written, nothing gets lost.
        let file = dir.join(FIGURES);
        let refused = Output::prepare(None, Some(&file)).err().expect("a refusal").to_string();
        assert!(refused.contains("--report") && refused.contains("needs a directory"), "{refused}");
        Output::prepare(Some(&file), Some(&dir)).expect("the same");
        assert_eq!(read(&file).expect("figures"), again);
        output.write(&again).expect("written");
        assert_eq!(fs::read_to_string(dir.join(PAGE)).expect("a page"), page);
    }
}
