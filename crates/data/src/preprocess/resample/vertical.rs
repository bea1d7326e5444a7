//! Along the columns: each output row is a weighted sum of rows.

use std::ops::Range;

use super::{Axis, Grid, HALF, avx2, to_byte};

/// Bytes summed at a time: few enough that the sums stay in registers.
const TILE: usize = 64;

/// Resizes the given columns.
pub(super) fn pass<'a>(source: &Grid<'_>, columns: Range<usize>, rows: &Axis) -> Grid<'a> {
    let width = columns.len();
    let mut bytes = vec![0; width * 3 * rows.window().inside()];
    let start = (columns.start - source.left()) * 3;
    let span = start..start + width * 3;
    if rows.is_identity() {
        for (row, out) in rows.inputs().zip(bytes.chunks_exact_mut(width * 3)) {
            out.copy_from_slice(&source.row(row)[span.clone()]);
        }
    } else if !avx2::shorten(source, span.clone(), rows, &mut bytes) {
        shorten(source, span, rows, &mut bytes);
    }
    Grid::part(bytes, width, columns.start, 0)
}

/// All output rows, for the bytes `span` of each input row.
#[expect(clippy::inline_always, reason = "compiled once more with wider instructions, in `avx2`")]
#[inline(always)]
pub(super) fn shorten(source: &Grid<'_>, span: Range<usize>, rows: &Axis, bytes: &mut [u8]) {
    for ((first, count, weights), out) in rows.outputs().zip(bytes.chunks_exact_mut(span.len())) {
        let weights = &weights[..count];
        let mut at = span.start;
        let (tiles, rest) = out.as_chunks_mut::<TILE>();
        for tile in tiles {
            *tile = sum_tile(source, first, weights, at);
            at += TILE;
        }
        for byte in rest {
            let inputs = (first..).zip(weights);
            let sum = inputs
                .fold(HALF, |sum, (row, &weight)| sum + weight * i32::from(source.row(row)[at]));
            *byte = to_byte(sum);
            at += 1;
        }
    }
}

#[expect(clippy::inline_always, reason = "as its caller")]
#[inline(always)]
fn sum_tile(source: &Grid<'_>, first: usize, weights: &[i32], at: usize) -> [u8; TILE] {
    let mut sums = [HALF; TILE];
    for (row, &weight) in (first..).zip(weights) {
        let bytes: &[u8; TILE] =
            source.row(row)[at..].first_chunk().expect("a tile lies inside its row");
        for (sum, &byte) in sums.iter_mut().zip(bytes) {
            *sum += weight * i32::from(byte);
        }
    }
    sums.map(to_byte)
}
