//! Bicubic, antialiased resizing with Pillow's arithmetic, restricted to the window that is kept.
//!
//! Pillow (`src/libImaging/Resample.c`) first resizes every row to the new width, rounds to bytes,
//! and then resizes every column. A weight is a 22-bit fixed-point number, a sum a 32-bit one.
//! Each output pixel depends on its own inputs alone, so computing only the window that the crop
//! keeps, and only the rows which that window reads, changes nothing in it.
//!
//! Invariant: the bytes are Pillow's to the last bit, on every processor; the vector code in
//! `horizontal` and the plain code give the same sums, because both are exact.

mod axis;
mod horizontal;
mod vertical;

pub(super) use axis::{Axis, Window};

use crate::image::RgbImage;

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
    let (width, height) = (columns.window().length(), rows.window().length());
    let mut pixels = vec![0; width * height * 3];
    let (left, top) = (columns.window().before(), rows.window().before());
    let inside = columns.window().inside();
    let narrowed = horizontal::pass(image, columns, rows.inputs());
    let kept = pixels.chunks_exact_mut(width * 3).skip(top);
    let kept = kept.map(|row| &mut row[left * 3..][..inside * 3]);
    vertical::pass(&narrowed, rows, kept);
    let side = |length: usize| u32::try_from(length).expect("a window's side came from 32 bits");
    RgbImage::new(side(width), side(height), pixels).expect("a window has at least one pixel")
}
