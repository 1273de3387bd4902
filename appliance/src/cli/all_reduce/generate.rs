//! Made-up gradients: any element of any rank, round and tensor, at once and the same everywhere.

use gradbox_protocol::DType;

/// What made-up values depend on besides the element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) seed: u64,
    pub(super) rank: u8,
    pub(super) round: u32,
    pub(super) tensor: usize,
}

/// Weyl step and finaliser of splitmix64 (Steele et al., 2014): each element is hashed on its own.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes the values of the elements from `first` on to `out`, as many as it holds.
///
/// Floats have either sign, and magnitudes over 2^24 (f16: 2^12), so that the last bits of a sum
/// depend on the order; integers are any. The sum of 32 ranks is finite.
pub(super) fn fill(recipe: Recipe, dtype: DType, first: usize, out: &mut [u8]) {
    let Recipe { seed, rank, round, tensor } = recipe;
    let key = mix(mix(seed ^ STEP) ^ u64::from(rank) << 32 ^ u64::from(round));
    let key = mix(key.wrapping_add((tensor as u64).wrapping_mul(STEP)));
    let hash = |i: usize| mix(key.wrapping_add((first + i) as u64).wrapping_mul(STEP));
    match dtype {
        DType::F32 => {
            for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                let h = hash(i);
                // Exponents 2^-12 to 2^11.
                let exponent = (115 + ((h >> 40) % 24) as u32) << 23;
                *out = ((h as u32 & 0x807f_ffff) | exponent).to_le_bytes();
            }
        }
        DType::Bf16 => {
            for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                let h = hash(i);
                let exponent = (115 + ((h >> 40) % 24) as u16) << 7;
                *out = ((h as u16 & 0x807f) | exponent).to_le_bytes();
            }
        }
        DType::F16 => {
            for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                let h = hash(i);
                // Exponents 2^-6 to 2^5.
                let exponent = (9 + ((h >> 40) % 12) as u16) << 10;
                *out = ((h as u16 & 0x83ff) | exponent).to_le_bytes();
            }
        }
        DType::I32 => {
            for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                *out = (hash(i) as u32).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { seed: 1, rank: 2, round: 3, tensor: 4 };

    #[test]
    fn any_part_is_the_same_part_of_the_whole() {
        for dtype in DType::ALL {
            let size = dtype.size();
            let mut whole = vec![0; 1000 * size];
            fill(RECIPE, dtype, 0, &mut whole);
            let mut part = vec![0; 100 * size];
            fill(RECIPE, dtype, 300, &mut part);
            assert_eq!(part, whole[300 * size..400 * size]);
            for other in [
                Recipe { seed: 2, ..RECIPE },
                Recipe { rank: 3, ..RECIPE },
                Recipe { round: 4, ..RECIPE },
                Recipe { tensor: 5, ..RECIPE },
            ] {
                fill(other, dtype, 300, &mut part);
                assert_ne!(part, whole[300 * size..400 * size]);
            }
        }
    }

    #[test]
    fn floats_are_finite_and_of_both_signs() {
        let mut out = vec![0; 40_000];
        fill(RECIPE, DType::F32, 0, &mut out);
        let values = out.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let values: Vec<f32> = values.collect();
        assert!(values.iter().all(|x| x.abs() >= 2f32.powi(-12) && x.abs() < 4096.0));
        assert!(values.iter().any(|x| *x < 0.0) && values.iter().any(|x| *x > 0.0));
        fill(RECIPE, DType::F16, 0, &mut out);
        let largest = out.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32().abs());
        assert!(largest.fold(0.0, f32::max) < 64.0);
    }
}
