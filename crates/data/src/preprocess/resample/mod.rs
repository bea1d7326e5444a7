//! Bicubic, antialiased resizing with Pillow's arithmetic, restricted to the window that is kept.
//!
//! Pillow (`src/libImaging/Resample.c`) resizes along one axis, rounds to bytes, and then along the
//! other. A weight is a 22-bit fixed-point number, a sum a 32-bit one. Each output pixel depends on
//! its own inputs alone, so computing only the window that the crop keeps, and of the first pass
//! only what that window reads, changes nothing in it.
//!
//! Invariant: the bytes are Pillow's to the last bit, on every processor: vector code and plain code
//! give the same sums, because both are exact. What is absent: other filters, other sample formats.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod axis;
mod grid;
mod horizontal;
mod vertical;

pub(super) use axis::{Axis, Window};

use crate::image::RgbImage;
use grid::Grid;

/// Fraction bits of a weight: 8 bits are the pixel's and 2 the sum's, of 32.
const PRECISION: u32 = 32 - 8 - 2;

/// Half a unit of a byte, so that the shift at the end rounds.
const HALF: i32 = 1 << (PRECISION - 1);

/// A sum as a byte.
#[inline]
fn to_byte(sum: i32) -> u8 {
    #[expect(clippy::cast_sign_loss, reason = "clamped")]
    let byte = (sum >> PRECISION).clamp(0, 255) as u8;
    byte
}

/// Resizes `image` along both axes and returns the window; what lies outside the picture is black.
pub(super) fn resize(image: &RgbImage, columns: &Axis, rows: &Axis) -> RgbImage {
    let whole = Grid::of(image);
    let inside = if rows_first(columns, rows) {
        let shortened = vertical::pass(&whole, columns.inputs(), rows);
        horizontal::pass(&shortened, columns, 0..rows.window().inside())
    } else {
        let narrowed = horizontal::pass(&whole, columns, rows.inputs());
        vertical::pass(&narrowed, 0..columns.window().inside(), rows)
    };
    framed(inside, columns.window(), rows.window())
}

/// Pillow's choice, since version 13: rows first where the height loses more than twice what the
/// width loses. The order shows in the last bits, because bytes are rounded between the passes.
fn rows_first(columns: &Axis, rows: &Axis) -> bool {
    rows.loss() > 0 && rows.loss() > 2 * columns.loss()
}

/// The window as a picture: what was computed, and black around it.
fn framed(inside: Grid<'_>, columns: Window, rows: Window) -> RgbImage {
    let (width, height) = (columns.length(), rows.length());
    let pixels = if columns.inside() == width && rows.inside() == height {
        inside.into_bytes()
    } else {
        let mut pixels = vec![0; width * height * 3];
        let places = pixels.chunks_exact_mut(width * 3).skip(rows.before());
        for (row, place) in (0..rows.inside()).zip(places) {
            let row = inside.row(row);
            place[columns.before() * 3..][..row.len()].copy_from_slice(row);
        }
        pixels
    };
    let side = |length: usize| u32::try_from(length).expect("a window's side came from 32 bits");
    RgbImage::new(side(width), side(height), pixels).expect("a window has at least one pixel")
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Also on processors and shapes that the golden files do not reach.
        #[test]
        fn vector_and_plain_code_agree(
            width in 1_u32..200, height in 1_u32..40, seed: u64,
            to_width in 1_u32..200, to_height in 1_u32..40, keep in 1_u32..200,
        ) {
            let mut state = seed | 1;
            let noise = (0..width * height * 3).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_le_bytes()[7]
            });
            let image = RgbImage::new(width, height, noise.collect()).unwrap();
            let source = Grid::of(&image);
            let columns = Axis::new(width, to_width, Window::centred(to_width, keep));
            let mut found = vec![0; columns.window().inside() * 3 * height as usize];
            let mut expected = found.clone();
            if avx2::narrow(&source, &columns, 0..height as usize, &mut found) {
                horizontal::narrow_plainly(&source, &columns, 0..height as usize, &mut expected);
                prop_assert!(found == expected, "along rows");
            }
            let rows = Axis::new(height, to_height, Window::centred(to_height, keep));
            let mut found = vec![0; rows.window().inside() * 3 * width as usize];
            let mut expected = found.clone();
            if avx2::shorten(&source, 0..width as usize * 3, &rows, &mut found) {
                vertical::shorten_plainly(&source, 0..width as usize * 3, &rows, &mut expected);
                prop_assert!(found == expected, "along columns");
            }
        }
    }
}
