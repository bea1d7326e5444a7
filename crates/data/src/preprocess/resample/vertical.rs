//! Along the columns: each output row is a weighted sum of rows.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::{Axis, Grid, HALF, to_byte};

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
    } else {
        shorten(source, span, rows, &mut bytes);
    }
    Grid::part(bytes, width, columns.start, 0)
}

fn shorten(source: &Grid<'_>, span: Range<usize>, rows: &Axis, bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::shorten(source, span.clone(), rows, bytes) {
        return;
    }
    shorten_plainly(source, span, rows, bytes);
}

/// What the vector code must equal.
pub(super) fn shorten_plainly(
    source: &Grid<'_>,
    span: Range<usize>,
    rows: &Axis,
    bytes: &mut [u8],
) {
    let mut sums = vec![HALF; span.len()];
    for ((first, count, weights), out) in rows.outputs().zip(bytes.chunks_exact_mut(span.len())) {
        sums.fill(HALF);
        for (row, &weight) in (first..).zip(&weights[..count]) {
            for (sum, &byte) in sums.iter_mut().zip(&source.row(row)[span.clone()]) {
                *sum += weight * i32::from(byte);
            }
        }
        for (byte, &sum) in out.iter_mut().zip(&sums) {
            *byte = to_byte(sum);
        }
    }
}
