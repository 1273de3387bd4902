//! f32 tensors that travel as f16 or bf16: one conversion each way, round to nearest even.

use crate::tensor::Tensor;
use gradbox_protocol::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Whether tensors of `tensor` may travel as `wire`.
pub(crate) const fn allowed(tensor: DType, wire: DType) -> bool {
    tensor as u8 == wire as u8 || matches!((tensor, wire), (DType::F32, DType::F16 | DType::Bf16))
}

/// `values` as `wire`; `None` where that is not a narrower float.
pub(crate) fn narrow(values: &[f32], wire: DType) -> Option<Tensor> {
    match wire {
        DType::F16 => {
            let mut out = vec![f16::ZERO; values.len()];
            out.convert_from_f32_slice(values);
            Some(Tensor::F16(out))
        }
        DType::Bf16 => Some(Tensor::Bf16(values.iter().map(|&x| to_bf16(x)).collect())),
        DType::F32 | DType::I32 => None,
    }
}

/// Writes `wire` into `values`, which has as many elements. Other types than f16 and bf16 leave
/// `values` as it is: they are never converted.
pub(crate) fn widen(wire: &Tensor, values: &mut [f32]) {
    match wire {
        Tensor::F16(v) => v.convert_to_f32_slice(values),
        Tensor::Bf16(v) => {
            for (out, x) in values.iter_mut().zip(v) {
                *out = f32::from_bits(u32::from(x.to_bits()) << 16);
            }
        }
        Tensor::F32(_) | Tensor::I32(_) => {}
    }
}

/// Without a branch, so that the loop over it becomes vector code (`bf16::from_f32` branches).
#[inline]
fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN stays one: its top bits, made quiet.
    let quiet = (bits >> 16) | 0x40;
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    bf16::from_bits(if nan { quiet } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interesting() -> Vec<f32> {
        let edges = [
            0.0,
            -0.0,
            1.0,
            f32::MAX,
            f32::MIN_POSITIVE,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::from_bits(0x7f80_0001),
            f32::from_bits(0xffff_ffff),
            65504.0,
            65520.0,
            f32::from_bits(0x3f80_8000),
            f32::from_bits(0x3f81_8000),
            f32::from_bits(1),
        ];
        edges.to_vec()
    }

    #[test]
    fn edges_equal_the_scalar_conversion() {
        let values = interesting();
        let Some(Tensor::Bf16(b)) = narrow(&values, DType::Bf16) else { panic!("bf16") };
        for (x, y) in values.iter().zip(&b) {
            assert_eq!(bf16::from_f32(*x).to_bits(), y.to_bits(), "{x}");
        }
        let Some(Tensor::F16(h)) = narrow(&values, DType::F16) else { panic!("f16") };
        for (x, y) in values.iter().zip(&h).filter(|(x, _)| !x.is_nan()) {
            assert_eq!(f16::from_f32(*x).to_bits(), y.to_bits(), "{x}");
        }
        assert_eq!(narrow(&values, DType::I32), None);
    }

    proptest! {
        #[test]
        fn bf16_equals_the_scalar_conversion(bits: u32) {
            let x = f32::from_bits(bits);
            prop_assert_eq!(to_bf16(x).to_bits(), bf16::from_f32(x).to_bits());
        }

        #[test]
        fn widening_is_exact(bits in proptest::collection::vec(any::<u16>(), 0..40)) {
            let b = Tensor::Bf16(bits.iter().map(|&x| bf16::from_bits(x)).collect());
            let mut out = vec![0.0; bits.len()];
            widen(&b, &mut out);
            for (x, y) in bits.iter().zip(&out) {
                prop_assert_eq!(u32::from(*x) << 16, y.to_bits());
            }
        }
    }
}
