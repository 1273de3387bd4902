//! The buffers that are reduced.

use gradbox_protocol::DType;
use half::{bf16, f16};
use zerocopy::IntoBytes;

/// A flat array of one element type. It is moved into the I/O thread and handed back with the
/// sum in place of the input.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// IEEE 754 binary32.
    F32(Vec<f32>),
    /// IEEE 754 binary16.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// Two's complement, 32 bits.
    I32(Vec<i32>),
}

impl Default for Tensor {
    /// A tensor of no elements; does not allocate.
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

impl Tensor {
    /// `elements` zeros.
    #[must_use]
    pub fn zeros(dtype: DType, elements: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![0.0; elements]),
            DType::F16 => Self::F16(vec![f16::ZERO; elements]),
            DType::Bf16 => Self::Bf16(vec![bf16::ZERO; elements]),
            DType::I32 => Self::I32(vec![0; elements]),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F16(v) => v.len(),
            Self::Bf16(v) => v.len(),
            Self::I32(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::I32(_) => DType::I32,
        }
    }

    /// The elements as they go over the wire, little-endian.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(v) => v.as_bytes(),
            Self::F16(v) => v.as_bytes(),
            Self::Bf16(v) => v.as_bytes(),
            Self::I32(v) => v.as_bytes(),
        }
    }

    /// The same, to write to.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(v) => v.as_mut_bytes(),
            Self::F16(v) => v.as_mut_bytes(),
            Self::Bf16(v) => v.as_mut_bytes(),
            Self::I32(v) => v.as_mut_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_little_endian_and_writable() {
        for dtype in DType::ALL {
            let mut t = Tensor::zeros(dtype, 3);
            assert_eq!((t.len(), t.dtype()), (3, dtype));
            assert_eq!(t.bytes().len(), 3 * dtype.size());
            t.bytes_mut()[0] = 1;
            assert_ne!(t, Tensor::zeros(dtype, 3));
        }
        assert_eq!(Tensor::I32(vec![0x0102_0304]).bytes(), [4, 3, 2, 1]);
    }
}
