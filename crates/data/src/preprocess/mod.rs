//! From a picture to the numbers a vision tower takes: resize, centre crop, rescale, normalise.
//!
//! Invariant: the crop's bytes are those of transformers' Pillow backend with Pillow 13 to the last
//! bit (older Pillows differ by a few units in pictures more than twice as tall as wide), and the
//! numbers follow from them in single precision. Both are functions of the picture and the
//! [`Recipe`] alone, whatever the processor.

mod config;
mod resample;
#[cfg(test)]
mod tests;

pub use config::RecipeError;

use std::path::Path;

use orchestrator_files::Files;

use crate::image::RgbImage;
use resample::{Axis, Window};

/// A picture of exactly [`Recipe::size`].
pub type Crop = RgbImage;

/// What a model's `preprocessor_config.json` asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    geometry: Geometry,
    // Factor applied to the bytes before normalisation.
    scale: Option<f64>,
    // Per channel; mean 0 and deviation 1 where the model does not normalise.
    mean: [f64; 3],
    std: [f64; 3],
    normalises: bool,
    // The normalised number of each byte, per channel.
    table: Box<[[f32; 256]; 3]>,
}

/// How a picture of any size becomes one of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Geometry {
    /// Shorter edge to `edge` pixels, keeping proportions, then `width` × `height` from the centre;
    /// what is missing is black.
    ShortestEdge { edge: u32, width: u32, height: u32 },
    /// Straight to `width` × `height`, whatever the proportions.
    Exact { width: u32, height: u32 },
    /// `width` × `height` from the centre of the picture as it is.
    CropOnly { width: u32, height: u32 },
}

impl Geometry {
    /// Width and height of what comes out.
    fn size(self) -> (u32, u32) {
        match self {
            Self::ShortestEdge { width, height, .. }
            | Self::Exact { width, height }
            | Self::CropOnly { width, height } => (width, height),
        }
    }
}

impl Recipe {
    /// Reads `preprocessor_config.json` in a model's folder.
    ///
    /// # Errors
    /// The file is missing, is no JSON, or asks for something that is not built: by the name of its
    /// key.
    pub fn open(model_folder: &Path) -> Result<Self, RecipeError> {
        Self::open_in(model_folder, &Files::anywhere())
    }

    /// As [`Recipe::open`], and opens no file that `files` does not admit.
    ///
    /// # Errors
    /// As [`Recipe::open`].
    pub fn open_in(model_folder: &Path, files: &Files) -> Result<Self, RecipeError> {
        config::read(&model_folder.join("preprocessor_config.json"), files)
    }

    fn new(geometry: Geometry, scale: Option<f64>, normalisation: Option<[[f64; 3]; 2]>) -> Self {
        let [mean, std] = normalisation.unwrap_or([[0.0; 3], [1.0; 3]]);
        let mut table = Box::new([[0.0; 256]; 3]);
        for channel in 0..3 {
            for byte in 0..=u8::MAX {
                table[channel][usize::from(byte)] =
                    normalised(byte, scale, mean[channel], std[channel]);
            }
        }
        Self { geometry, scale, mean, std, normalises: normalisation.is_some(), table }
    }

    /// Width and height of what comes out, in pixels.
    pub fn size(&self) -> (u32, u32) {
        self.geometry.size()
    }

    /// What decides the bytes of [`Self::crop`], in one line; crops are the same exactly if these
    /// lines are.
    pub fn describe_crop(&self) -> String {
        let geometry = match self.geometry {
            Geometry::ShortestEdge { edge, width, height } => {
                format!("resize shortest edge to {edge}, crop {width}x{height} from the centre")
            }
            Geometry::Exact { width, height } => format!("resize to {width}x{height}"),
            Geometry::CropOnly { width, height } => {
                format!("crop {width}x{height} from the centre")
            }
        };
        format!("RGB as Pillow, bicubic as Pillow, {geometry}")
    }

    /// The recipe in one line; two recipes are the same exactly if their lines are.
    pub fn describe(&self) -> String {
        let crop = self.describe_crop();
        let scale = self.scale.map_or_else(String::new, |scale| format!(", times {scale}"));
        let normalise = if self.normalises {
            format!(", mean {:?}, std {:?}", self.mean, self.std)
        } else {
            String::new()
        };
        format!("{crop}{scale}{normalise}")
    }

    /// The part of the picture that the model sees, as bytes.
    pub fn crop(&self, image: &RgbImage) -> Crop {
        let (width, height) = self.size();
        let (full_width, full_height) = self.resized(image);
        let columns = Axis::new(image.width(), full_width, Window::centred(full_width, width));
        let rows = Axis::new(image.height(), full_height, Window::centred(full_height, height));
        resample::resize(image, &columns, &rows)
    }

    /// Width and height after the resize and before the crop.
    fn resized(&self, image: &RgbImage) -> (u32, u32) {
        match self.geometry {
            Geometry::Exact { width, height } => (width, height),
            Geometry::CropOnly { .. } => (image.width(), image.height()),
            Geometry::ShortestEdge { edge, .. } => {
                let (width, height) = (image.width(), image.height());
                let (short, long) = (width.min(height), width.max(height));
                let long = scaled_edge(edge, long, short);
                if width <= height { (edge, long) } else { (long, edge) }
            }
        }
    }

    /// Factor and summand of each channel: a byte times the one plus the other is its number, up to
    /// rounding. For devices that normalise by themselves.
    #[expect(clippy::cast_possible_truncation, reason = "numbers are in single precision")]
    pub fn affine(&self) -> ([f32; 3], [f32; 3]) {
        let scale = self.scale.unwrap_or(1.0);
        let factor = [0, 1, 2].map(|channel| (scale / self.std[channel]) as f32);
        let summand = [0, 1, 2].map(|channel| (-self.mean[channel] / self.std[channel]) as f32);
        (factor, summand)
    }

    /// Writes the crop as numbers: channel by channel, each row by row (3 × height × width).
    ///
    /// # Panics
    /// If `crop` has not this recipe's size, or `out` not three times as many places as pixels.
    pub fn normalise(&self, crop: &Crop, out: &mut [f32]) {
        assert_eq!((crop.width(), crop.height()), self.size(), "the crop has the recipe's size");
        assert_eq!(out.len(), crop.pixels().len(), "one place per byte");
        let pixels = crop.pixels().as_chunks::<3>().0;
        let planes = out.chunks_exact_mut(pixels.len());
        for (channel, (plane, table)) in planes.zip(self.table.iter()).enumerate() {
            for (place, pixel) in plane.iter_mut().zip(pixels) {
                *place = table[usize::from(pixel[channel])];
            }
        }
    }
}

/// The longer edge when the shorter one becomes `edge`: transformers' `int(edge * long / short)`,
/// at least one pixel.
fn scaled_edge(edge: u32, long: u32, short: u32) -> u32 {
    let exact = (f64::from(edge) * f64::from(long) / f64::from(short)).trunc();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; a side beyond 32 bits saturates"
    )]
    let whole = exact as u32;
    whole.max(1)
}

/// One byte as a number: product, difference and quotient, each rounded to single precision.
/// transformers forms the product in double precision; that moves the result by at most one unit in
/// the last place of the product (5e-7 here).
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is the point")]
fn normalised(byte: u8, scale: Option<f64>, mean: f64, std: f64) -> f32 {
    let value = f32::from(byte) * scale.unwrap_or(1.0) as f32;
    (value - mean as f32) / std as f32
}
