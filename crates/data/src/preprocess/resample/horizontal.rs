//! The first pass: each output pixel is a weighted sum of neighbours in its row.

use std::ops::Range;

use super::{Axis, HALF, to_byte};
use crate::image::RgbImage;

/// Rows at their new width, as bytes.
pub(super) struct Narrowed {
    pixels: Vec<u8>,
    // Number of the first row.
    first: usize,
    // Bytes of one row.
    stride: usize,
}

impl Narrowed {
    /// A row by its number in the picture.
    pub(super) fn row(&self, number: usize) -> &[u8] {
        &self.pixels[(number - self.first) * self.stride..][..self.stride]
    }
}

/// Resizes the given rows of the picture.
pub(super) fn pass(image: &RgbImage, columns: &Axis, rows: Range<usize>) -> Narrowed {
    let stride = columns.window().inside() * 3;
    let mut pixels = vec![0; stride * rows.len()];
    let input = image.width() as usize * 3;
    let sources = image.pixels().chunks_exact(input).skip(rows.start);
    for (source, out) in sources.zip(pixels.chunks_exact_mut(stride.max(1))) {
        row(source, columns, out);
    }
    Narrowed { pixels, first: rows.start, stride }
}

fn row(source: &[u8], columns: &Axis, out: &mut [u8]) {
    for ((start, count, weights), out) in columns.outputs().zip(out.as_chunks_mut::<3>().0) {
        let mut sums = [HALF; 3];
        let pixels = source[start * 3..][..count * 3].as_chunks::<3>().0;
        for (pixel, &weight) in pixels.iter().zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(pixel) {
                *sum += weight * i32::from(byte);
            }
        }
        *out = sums.map(to_byte);
    }
}
