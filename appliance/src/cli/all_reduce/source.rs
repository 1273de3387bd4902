//! Where the tensors come from and go to.

use super::AllReduce;
use super::generate::{self, Recipe};
use crate::model::Model;
use anyhow::{Context, bail, ensure};
use gradbox_client::{Tensor, TensorEntry};
use gradbox_protocol::DType;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;
use std::path::Path;

/// Tensors by name, all of one type.
#[derive(Debug)]
pub(super) struct Source {
    dtype: DType,
    entries: Vec<Entry>,
    metadata: Option<HashMap<String, String>>,
    origin: Origin,
    /// Results of the last round.
    results: Vec<Tensor>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    elements: usize,
}

impl TryFrom<TensorEntry> for Entry {
    type Error = anyhow::Error;

    fn try_from(TensorEntry { name, elements }: TensorEntry) -> anyhow::Result<Self> {
        let elements = usize::try_from(elements)
            .with_context(|| format!("{name}: {elements} elements do not fit into memory"))?;
        Ok(Self { name, shape: vec![elements], elements })
    }
}

#[derive(Debug)]
enum Origin {
    /// Data of each entry.
    File(Vec<Tensor>),
    Generated {
        seed: u64,
        rank: u8,
    },
}

impl Source {
    pub(super) fn open(args: &AllReduce) -> anyhow::Result<Self> {
        match (&args.input, &args.model) {
            (Some(path), _) => Self::file(path),
            (None, Some(name)) => {
                let model = Model::open(name)?;
                let tensors = match args.bucket_mib {
                    Some(mib) => model.buckets(args.dtype, u64::from(mib) << 20),
                    None => model.tensors,
                };
                let entries = tensors.into_iter().map(Entry::try_from);
                let entries = entries.collect::<anyhow::Result<Vec<_>>>()?;
                let origin = Origin::Generated { seed: args.seed, rank: args.rank };
                Ok(Self { dtype: args.dtype, entries, metadata: None, origin, results: Vec::new() })
            }
            (None, None) => bail!("needs IN.safetensors or --model"),
        }
    }

    /// Reads a safetensors file; tensors are in order of their names, on every rank the same.
    pub(super) fn file(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let bytes = std::fs::read(path).with_context(|| format!("reading {shown}"))?;
        let tensors = SafeTensors::deserialize(&bytes)
            .with_context(|| format!("{shown} is not a safetensors file"))?;
        let (_, header) = SafeTensors::read_metadata(&bytes)?;
        let mut views = tensors.tensors();
        views.sort_by(|a, b| a.0.cmp(&b.0));
        ensure!(!views.is_empty(), "{shown} has no tensors");
        let mut dtype = None;
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for (name, view) in views {
            let this = match view.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::Bf16,
                Dtype::I32 => DType::I32,
                other => bail!("{shown}: tensor {name} is {other:?}, needs f32, f16, bf16 or i32"),
            };
            let first = *dtype.get_or_insert(this);
            ensure!(
                first == this,
                "{shown}: tensor {name} is {this} and tensors before it are {first}; a job has one type, so put them into two files and jobs"
            );
            let elements = view.shape().iter().product();
            let mut tensor = Tensor::zeros(this, elements);
            tensor.bytes_mut().copy_from_slice(view.data());
            entries.push(Entry { name, shape: view.shape().to_vec(), elements });
            data.push(tensor);
        }
        Ok(Self {
            dtype: dtype.unwrap_or(DType::F32),
            entries,
            metadata: header.metadata().clone(),
            origin: Origin::File(data),
            results: Vec::new(),
        })
    }

    pub(super) const fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn table(&self) -> Vec<TensorEntry> {
        let entry = |e: &Entry| TensorEntry { name: e.name.clone(), elements: e.elements as u64 };
        self.entries.iter().map(entry).collect()
    }

    pub(super) fn name(&self, tensor: usize) -> &str {
        self.entries.get(tensor).map_or("?", |e| &e.name)
    }

    /// Bytes of a round on the wire.
    pub(super) fn bytes(&self, wire: DType) -> u64 {
        self.entries.iter().map(|e| (e.elements * wire.size()) as u64).sum()
    }

    /// The data of a source that is a file.
    pub(super) fn data(&self) -> &[Tensor] {
        match &self.origin {
            Origin::File(data) => data,
            Origin::Generated { .. } => &[],
        }
    }

    /// What this rank puts into `round`.
    pub(super) fn tensors(&mut self, round: u32) -> Vec<Tensor> {
        let mut tensors = std::mem::take(&mut self.results);
        if tensors.is_empty() {
            tensors = self.entries.iter().map(|e| Tensor::zeros(self.dtype, e.elements)).collect();
        }
        match &self.origin {
            Origin::File(data) => {
                for (tensor, data) in tensors.iter_mut().zip(data) {
                    tensor.bytes_mut().copy_from_slice(data.bytes());
                }
            }
            &Origin::Generated { seed, rank } => {
                for (i, tensor) in tensors.iter_mut().enumerate() {
                    let recipe = Recipe { seed, rank, round, tensor: i };
                    generate::fill(recipe, self.dtype, 0, tensor.bytes_mut());
                }
            }
        }
        tensors
    }

    /// Takes the results of a round: to be saved, or written over by the next round.
    pub(super) fn give_back(&mut self, results: Vec<Tensor>) {
        self.results = results;
    }

    /// Writes the results of the last round.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let dtype = match self.dtype {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::Bf16 => Dtype::BF16,
            DType::I32 => Dtype::I32,
        };
        let views = self.entries.iter().zip(&self.results).map(|(e, tensor)| {
            Ok((e.name.as_str(), TensorView::new(dtype, e.shape.clone(), tensor.bytes())?))
        });
        let views = views.collect::<anyhow::Result<Vec<_>>>()?;
        // Not serialize_to_file: it renames a new file into place, even over /dev/null.
        let bytes = safetensors::serialize(views, self.metadata.clone())?;
        std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
    }
}
