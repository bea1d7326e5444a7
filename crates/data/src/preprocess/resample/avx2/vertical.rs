//! Along the columns: 32 bytes of a row at a time, two rows a step.

use std::{
    arch::x86_64::{
        __m256i, _mm_cvtsi128_si64, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm256_add_epi32,
        _mm256_castsi256_si128, _mm256_cvtepu8_epi16, _mm256_extracti128_si256, _mm256_madd_epi16,
        _mm256_packs_epi32, _mm256_packus_epi16, _mm256_permute4x64_epi64, _mm256_set1_epi32,
        _mm256_setzero_si256,
    },
    ops::Range,
};

use super::{
    super::{Axis, Grid},
    weights::{Pair, joined, load},
};

/// Bytes of a row that are summed together. Narrower spans are left to the plain code.
pub(super) const TILE: usize = 32;

#[target_feature(enable = "avx2")]
pub(super) fn shorten(source: &Grid<'_>, span: Range<usize>, rows: &Axis, bytes: &mut [u8]) {
    let mut pairs = Vec::new();
    for ((first, count, weights), out) in rows.outputs().zip(bytes.chunks_exact_mut(span.len())) {
        pairs.clear();
        for (step, weights) in weights[..count.next_multiple_of(2)].chunks_exact(2).enumerate() {
            let row = first + step * 2;
            // An odd last row meets itself, with a weight of zero.
            let next = (row + 1).min(first + count - 1);
            let part = |row| &source.row(row)[span.clone()];
            pairs.push((Pair::new(weights[0], weights[1]), part(row), part(next)));
        }
        let mut at = 0;
        while at < out.len() {
            // The last tile overlaps the one before it rather than being narrower.
            at = at.min(out.len() - TILE);
            let tile = sum_tile(&pairs, at);
            out[at..at + TILE].copy_from_slice(&tile);
            at += TILE;
        }
    }
}

/// The output bytes from `at` on.
#[target_feature(enable = "avx2")]
#[inline]
fn sum_tile(pairs: &[(Pair, &[u8], &[u8])], at: usize) -> [u8; TILE] {
    let mut low = [_mm256_setzero_si256(); 4];
    let mut high = [_mm256_setzero_si256(); 4];
    for (weights, first, second) in pairs {
        let inputs = interleaved(&first[at..at + TILE], &second[at..at + TILE]);
        let (low_weights, high_weights) =
            (_mm256_set1_epi32(weights.low), _mm256_set1_epi32(weights.high));
        for part in 0..4 {
            let (products, others) = (
                _mm256_madd_epi16(inputs[part], low_weights),
                _mm256_madd_epi16(inputs[part], high_weights),
            );
            low[part] = _mm256_add_epi32(low[part], products);
            high[part] = _mm256_add_epi32(high[part], others);
        }
    }
    let (first, second) = (joined(low[0], high[0]), joined(low[1], high[1]));
    let (third, fourth) = (joined(low[2], high[2]), joined(low[3], high[3]));
    let mut tile = [0; TILE];
    let (left, right) = tile.split_at_mut(TILE / 2);
    left.copy_from_slice(&packed(first, second));
    right.copy_from_slice(&packed(third, fourth));
    tile
}

/// Bytes of two rows in turn, widened to 16 bits: eight columns to a register.
#[target_feature(enable = "avx2")]
#[inline]
fn interleaved(first: &[u8], second: &[u8]) -> [__m256i; 4] {
    let (first, second) = (first.as_chunks::<16>().0, second.as_chunks::<16>().0);
    let (a, b) = (load(&first[0]), load(&second[0]));
    let (c, d) = (load(&first[1]), load(&second[1]));
    [
        _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
        _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)),
        _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(c, d)),
        _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(c, d)),
    ]
}

/// Sixteen numbers as bytes, clamped to 0–255.
#[target_feature(enable = "avx2")]
#[inline]
fn packed(first: __m256i, second: __m256i) -> [u8; 16] {
    // Packing works in halves of a register: 0-3 8-11 | 4-7 12-15.
    let numbers = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(first, second));
    let bytes = _mm256_packus_epi16(numbers, numbers);
    let (left, right) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&_mm_cvtsi128_si64(left).to_le_bytes());
    out[8..].copy_from_slice(&_mm_cvtsi128_si64(right).to_le_bytes());
    out
}
