//! Weights as the multiply-add instruction takes them, and sums as it leaves them.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_set_epi64x, _mm256_add_epi32, _mm256_set1_epi32, _mm256_slli_epi32,
    _mm256_srai_epi32,
};

use super::super::{HALF, PRECISION};

/// Fraction bits that the low part of a weight keeps.
const LOW_BITS: i32 = 15;

/// The weights of two neighbouring inputs: each number holds two 16-bit parts.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) low: i32,
    pub(super) high: i32,
}

impl Pair {
    pub(super) fn new(first: i32, second: i32) -> Self {
        let low = |weight: i32| weight & ((1 << LOW_BITS) - 1);
        let high = |weight: i32| weight >> LOW_BITS;
        let side_by_side = |first: i32, second: i32| (first & 0xffff) | (second << 16);
        Self {
            low: side_by_side(low(first), low(second)),
            high: side_by_side(high(first), high(second)),
        }
    }
}

/// Joins the sums of low and high parts, rounds, and drops the fraction.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn joined(low: __m256i, high: __m256i) -> __m256i {
    let sum = _mm256_add_epi32(_mm256_slli_epi32::<LOW_BITS>(high), low);
    let rounded = _mm256_add_epi32(sum, _mm256_set1_epi32(HALF));
    _mm256_srai_epi32::<{ PRECISION.cast_signed() }>(rounded)
}

/// Sixteen bytes as a register; one load after optimisation.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(bytes: &[u8; 16]) -> __m128i {
    let halves = bytes.as_chunks::<8>().0;
    _mm_set_epi64x(i64::from_le_bytes(halves[1]), i64::from_le_bytes(halves[0]))
}
