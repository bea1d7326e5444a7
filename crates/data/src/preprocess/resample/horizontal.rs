//! Along the rows: each output pixel is a weighted sum of neighbours in its row.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::{Axis, Grid, HALF, to_byte};

/// Resizes the given rows.
pub(super) fn pass<'a>(source: &Grid<'_>, columns: &Axis, rows: Range<usize>) -> Grid<'a> {
    let width = columns.window().inside();
    let mut bytes = vec![0; width * 3 * rows.len()];
    let top = rows.start;
    if columns.is_identity() {
        let start = (columns.inputs().start - source.left()) * 3;
        for (row, out) in rows.zip(bytes.chunks_exact_mut(width * 3)) {
            out.copy_from_slice(&source.row(row)[start..][..width * 3]);
        }
    } else {
        narrow(source, columns, rows, &mut bytes);
    }
    Grid::part(bytes, width, 0, top)
}

fn narrow(source: &Grid<'_>, columns: &Axis, rows: Range<usize>, bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::narrow(source, columns, rows.clone(), bytes) {
        return;
    }
    narrow_plainly(source, columns, rows, bytes);
}

/// What the vector code must equal.
pub(super) fn narrow_plainly(
    source: &Grid<'_>,
    columns: &Axis,
    rows: Range<usize>,
    bytes: &mut [u8],
) {
    let width = columns.window().inside() * 3;
    for (row, out) in rows.zip(bytes.chunks_exact_mut(width)) {
        narrow_row(source.row(row), source.left(), columns, out);
    }
}

fn narrow_row(source: &[u8], left: usize, columns: &Axis, out: &mut [u8]) {
    for ((start, count, weights), out) in columns.outputs().zip(out.as_chunks_mut::<3>().0) {
        let mut sums = [HALF; 3];
        let pixels = source[(start - left) * 3..][..count * 3].as_chunks::<3>().0;
        for (pixel, &weight) in pixels.iter().zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(pixel) {
                *sum += weight * i32::from(byte);
            }
        }
        *out = sums.map(to_byte);
    }
}
