//! Compares results with the reference, bit by bit.

use super::AllReduce;
use super::generate::{self, Recipe};
use super::source::Source;
use anyhow::{bail, ensure};
use gradbox_client::Tensor;
use gradbox_protocol::DType;
use half::{bf16, f16};

/// Elements that are compared at once: bounds the memory, whatever the world and the tensor.
const BLOCK: usize = 1 << 16;

/// The inputs of all ranks.
#[derive(Debug)]
pub(super) enum Inputs {
    /// Made up again.
    Generated,
    /// By rank.
    Files(Vec<Source>),
}

impl Inputs {
    /// What the arguments ask for; `None` where nothing is to be verified.
    pub(super) fn open(args: &AllReduce, mine: &Source) -> anyhow::Result<Option<Self>> {
        if args.verify {
            return Ok(Some(Self::Generated));
        }
        if args.verify_with.is_empty() {
            return Ok(None);
        }
        let (found, world) = (args.verify_with.len(), usize::from(args.world));
        ensure!(found == world, "--verify-with: found {found} files, needs {world}, one per rank");
        let mut files = Vec::with_capacity(world);
        for path in &args.verify_with {
            let source = Source::file(path)?;
            ensure!(
                source.table() == mine.table() && source.dtype() == mine.dtype(),
                "--verify-with: {} has other tensors than this rank's input",
                path.display()
            );
            files.push(source);
        }
        Ok(Some(Self::Files(files)))
    }

    /// The elements of `tensor` from `first` on that `rank` put in, as many as `out` holds.
    fn read(&self, args: &AllReduce, place: Place, rank: u8, dtype: DType, out: &mut [u8]) {
        match self {
            Self::Generated => {
                let Place { round, tensor, first } = place;
                let recipe = Recipe { seed: args.seed, rank, round, tensor };
                generate::fill(recipe, dtype, first, out);
            }
            Self::Files(files) => {
                let at = place.first * dtype.size();
                let data = files[usize::from(rank)].data()[place.tensor].bytes();
                out.copy_from_slice(&data[at..at + out.len()]);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    round: u32,
    tensor: usize,
    first: usize,
}

/// Compares the results of `round` with the reference; fails at the first difference.
pub(super) fn check(
    inputs: &Inputs,
    args: &AllReduce,
    source: &Source,
    wire: DType,
    round: u32,
    results: &[Tensor],
) -> anyhow::Result<()> {
    let dtype = source.dtype();
    for (tensor, result) in results.iter().enumerate() {
        for first in (0..result.len()).step_by(BLOCK) {
            let count = BLOCK.min(result.len() - first);
            let place = Place { round, tensor, first };
            let mut parts = Vec::with_capacity(usize::from(args.world));
            for rank in 0..args.world {
                let mut part = vec![0; count * dtype.size()];
                inputs.read(args, place, rank, dtype, &mut part);
                parts.push(narrow(part, dtype, wire));
            }
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut sum = vec![0; count * wire.size()];
            crate::sum::reference(wire, args.op, &parts, &mut sum);
            let expected = widen(sum, wire, dtype);
            let size = dtype.size();
            let found = &result.bytes()[first * size..(first + count) * size];
            if expected != found {
                let differs =
                    expected.chunks(size).zip(found.chunks(size)).position(|(a, b)| a != b);
                let at = differs.unwrap_or(0);
                let show = |bytes: &[u8]| show(dtype, &bytes[at * size..(at + 1) * size]);
                bail!(
                    "round {round}, tensor {} ({tensor}), element {}: expected {}, found {}",
                    source.name(tensor),
                    first + at,
                    show(&expected),
                    show(found)
                );
            }
        }
    }
    Ok(())
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))
}

/// What a rank's values become on the wire.
fn narrow(values: Vec<u8>, dtype: DType, wire: DType) -> Vec<u8> {
    match (dtype, wire) {
        (DType::F32, DType::Bf16) => {
            floats(&values).flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect()
        }
        (DType::F32, DType::F16) => {
            floats(&values).flat_map(|x| f16::from_f32(x).to_le_bytes()).collect()
        }
        _ => values,
    }
}

/// And back.
fn widen(values: Vec<u8>, wire: DType, dtype: DType) -> Vec<u8> {
    let halves = values.as_chunks().0.iter();
    match (wire, dtype) {
        (DType::Bf16, DType::F32) => {
            halves.flat_map(|b| bf16::from_le_bytes(*b).to_f32().to_le_bytes()).collect()
        }
        (DType::F16, DType::F32) => {
            halves.flat_map(|b| f16::from_le_bytes(*b).to_f32().to_le_bytes()).collect()
        }
        _ => values,
    }
}

/// One element as a number and as bits.
fn show(dtype: DType, bytes: &[u8]) -> String {
    let mut four = [0; 4];
    four[..bytes.len()].copy_from_slice(bytes);
    let two = [four[0], four[1]];
    let bits = u32::from_le_bytes(four);
    match dtype {
        DType::F32 => format!("{:e} (0x{bits:08x})", f32::from_le_bytes(four)),
        DType::F16 => format!("{:e} (0x{bits:04x})", f16::from_le_bytes(two).to_f32()),
        DType::Bf16 => format!("{:e} (0x{bits:04x})", bf16::from_le_bytes(two).to_f32()),
        DType::I32 => format!("{} (0x{bits:08x})", i32::from_le_bytes(four)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let f32s: Vec<u8> = [1.5f32, -0.1, 3e5].iter().flat_map(|x| x.to_le_bytes()).collect();
        let wire = narrow(f32s.clone(), DType::F32, DType::Bf16);
        assert_eq!(wire.len(), 6);
        let back = widen(wire, DType::Bf16, DType::F32);
        let back: Vec<f32> = floats(&back).collect();
        assert_eq!(back, [1.5, bf16::from_f32(-0.1).to_f32(), bf16::from_f32(3e5).to_f32()]);
        assert_eq!(narrow(f32s.clone(), DType::F32, DType::F32), f32s);
    }

    #[test]
    fn elements_are_shown_with_their_bits() {
        assert_eq!(show(DType::F32, &1.5f32.to_le_bytes()), "1.5e0 (0x3fc00000)");
        assert_eq!(show(DType::I32, &(-1i32).to_le_bytes()), "-1 (0xffffffff)");
        assert_eq!(show(DType::F16, &f16::ONE.to_le_bytes()), "1e0 (0x3c00)");
    }
}
