//! A rectangle of pixels that knows where it lies in the picture it was cut from.

use std::borrow::Cow;

use crate::image::RgbImage;

/// Rows of RGB bytes without padding; rows and columns are counted as in the whole picture.
pub(super) struct Grid<'a> {
    bytes: Cow<'a, [u8]>,
    // Bytes of one row.
    stride: usize,
    top: usize,
    left: usize,
}

impl<'a> Grid<'a> {
    /// A whole picture.
    pub(super) fn of(image: &'a RgbImage) -> Self {
        let stride = image.width() as usize * 3;
        Self { bytes: image.pixels().into(), stride, top: 0, left: 0 }
    }

    /// A part of a picture whose first pixel is at (`left`, `top`), `width` pixels wide.
    pub(super) fn part(bytes: Vec<u8>, width: usize, left: usize, top: usize) -> Self {
        Self { bytes: bytes.into(), stride: width * 3, top, left }
    }

    /// A row by its number.
    #[inline]
    pub(super) fn row(&self, number: usize) -> &[u8] {
        &self.bytes[(number - self.top) * self.stride..][..self.stride]
    }

    /// All bytes from the start of a row to the end of the last one.
    pub(super) fn tail_from(&self, number: usize) -> &[u8] {
        &self.bytes[(number - self.top) * self.stride..]
    }

    /// The number of the first column.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_owned()
    }
}
