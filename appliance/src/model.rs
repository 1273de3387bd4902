//! Tables of a model's tensors, and the buckets that training puts them into.

use gradbox_protocol::DType;
use gradbox_protocol::control::TensorEntry;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// First line of a table.
const HEADER: &str = "index,name,numel";

macro_rules! tables {
    ($($name:literal,)*) => {
        /// The tables that are built in, in the order of the models' parameters.
        const TABLES: &[(&str, &str)] = &[$((
            $name,
            include_str!(concat!("../../tests/data/models/", $name, ".csv")),
        ),)*];
    };
}

tables! {
    "alexnet", "bert-base-uncased", "bert-large-uncased", "gpt2", "gpt2-medium", "gpt2-large",
    "gpt2-xl", "resnet18", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19",
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Neither built in nor a file.
    #[error(
        "model {name}: neither a file ({source}) nor built in; needs the path of a table with the \
         header {HEADER}, or one of {}",
        names()
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// Why it is not a file.
        source: io::Error,
    },
    /// A file that is not a table.
    #[error("{}, line {line}: found {found:?}, needs {needed}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is there.
        found: String,
        /// What should be.
        needed: &'static str,
    },
    /// A table without lines.
    #[error("{} has no tensors: needs lines as {HEADER}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The tensors of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name that it is built in under, or of the file without its ending.
    pub name: String,
    /// In order of the table.
    pub tensors: Vec<TensorEntry>,
}

impl Model {
    /// The model that is built in under `name`, else that of the file `name`.
    ///
    /// # Errors
    /// Where there is neither, or the file is not a table.
    pub fn open(name: &str) -> Result<Self, ModelError> {
        let path = Path::new(name);
        if let Some((_, text)) = TABLES.iter().find(|(known, _)| *known == name) {
            return Ok(Self { name: name.to_owned(), tensors: parse(text, path)? });
        }
        let text = fs::read_to_string(path)
            .map_err(|source| ModelError::Unknown { name: name.to_owned(), source })?;
        let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name: stem, tensors: parse(&text, path)? })
    }

    /// The same gradient in buckets, as data-parallel training makes them: backward produces the
    /// last tensor first; tensors are added in that order, and a bucket is closed when it has
    /// reached `cap_bytes`. A tensor is never split, so a bucket may be larger.
    ///
    /// PyTorch's `DistributedDataParallel` with `bucket_cap_mb` does the same.
    #[must_use]
    pub fn buckets(&self, dtype: DType, cap_bytes: u64) -> Vec<TensorEntry> {
        let mut buckets: Vec<TensorEntry> = Vec::new();
        let mut open = false;
        for tensor in self.tensors.iter().rev() {
            match buckets.last_mut().filter(|_| open) {
                Some(bucket) => bucket.elements += tensor.elements,
                None => {
                    let name = format!("bucket {} from {} on", buckets.len(), tensor.name);
                    buckets.push(TensorEntry { name, elements: tensor.elements });
                }
            }
            let elements = buckets.last().map_or(0, |b| b.elements);
            open = elements.saturating_mul(dtype.size() as u64) < cap_bytes;
        }
        buckets
    }
}

fn names() -> String {
    TABLES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Reads a table; `path` is for messages.
fn parse(text: &str, path: &Path) -> Result<Vec<TensorEntry>, ModelError> {
    let wrong = |line: usize, found: &str, needed| ModelError::Line {
        path: path.to_owned(),
        line: line + 1,
        found: found.to_owned(),
        needed,
    };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (at, header) = lines.next().unwrap_or((0, ""));
    if header.trim() != HEADER {
        return Err(wrong(at, header, "the header index,name,numel"));
    }
    let mut tensors = Vec::new();
    for (at, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[_, name, count] = &fields[..] else {
            return Err(wrong(at, line, "index,name,numel"));
        };
        let elements = count.parse().map_err(|_| wrong(at, line, "a number of elements"))?;
        tensors.push(TensorEntry { name: name.to_owned(), elements });
    }
    if tensors.is_empty() {
        return Err(ModelError::Empty { path: path.to_owned() });
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn tables() {
        let found = parse("index,name,numel\n0,a.weight,12\n\n1,b,0\n", Path::new("t")).unwrap();
        let found: Vec<_> = found.iter().map(|e| (e.name.as_str(), e.elements)).collect();
        assert_eq!(found, [("a.weight", 12), ("b", 0)]);
        for (wrong, says) in [
            ("", "needs the header"),
            ("index,name,numel\n", "no tensors"),
            ("index,name,numel\n0,a", "t, line 2"),
            ("index,name,numel\n0,a,x", "needs a number of elements"),
        ] {
            let error = parse(wrong, Path::new("t")).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let error = Model::open("resnet49").unwrap_err().to_string();
        assert!(error.contains("resnet49") && error.contains("resnet50, resnet101"), "{error}");
    }

    #[test]
    fn what_is_built_in_is_read() {
        for (name, _) in TABLES {
            let model = Model::open(name).unwrap();
            assert!(model.name == *name && model.tensors.iter().all(|t| t.elements > 0));
        }
        let elements = |name| Model::open(name).unwrap().tensors.iter().map(|t| t.elements).sum();
        let known: [u64; 2] = [elements("resnet50"), elements("gpt2")];
        assert_eq!(known, [25_557_032, 124_439_808]);
    }

    #[test]
    fn buckets_close_at_the_cap_and_begin_at_the_end() {
        let tensors = [("a", 1), ("b", 3), ("c", 2), ("d", 2), ("e", 9)];
        let tensors = tensors.map(|(name, elements)| TensorEntry { name: name.into(), elements });
        let model = Model { name: "m".into(), tensors: tensors.into() };
        let buckets = |dtype, cap| -> Vec<(String, u64)> {
            model.buckets(dtype, cap).into_iter().map(|b| (b.name, b.elements)).collect()
        };
        let of = |i, first, elements| (format!("bucket {i} from {first} on"), elements);
        let found = buckets(DType::F32, 16);
        assert_eq!(found, [of(0, "e", 9), of(1, "d", 4), of(2, "b", 4)]);
        // Half the bytes: a bucket takes more of them.
        assert_eq!(buckets(DType::Bf16, 16), [of(0, "e", 9), of(1, "d", 8)]);
        assert_eq!(buckets(DType::F32, 0).len(), 5);
        assert_eq!(buckets(DType::F32, u64::MAX), [of(0, "e", 17)]);
    }

    #[test]
    fn buckets_of_resnet50() {
        let model = Model::open("resnet50").unwrap();
        let buckets = model.buckets(DType::F32, 25 * MIB);
        let mib: Vec<u64> = buckets.iter().map(|b| 4 * b.elements / MIB).collect();
        assert_eq!(mib, [28, 25, 27, 16]);
        assert!(buckets[0].name.ends_with("from fc.bias on"), "{}", buckets[0].name);
        assert_eq!(buckets.iter().map(|b| b.elements).sum::<u64>(), 25_557_032);
    }
}
