//! WebP, lossy and lossless; of an animation the first frame.
//!
//! Invariant: alpha is dropped, as Pillow's conversion does.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::{DecodeError, DecodeLimits, Format, RgbImage, check_memory, check_size, complete};

pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(refusal)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, limits)?;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    // Beside the result: planes of luma, colour and alpha, or whole pixels; and what an animation's
    // frames are laid on.
    let frame = if decoder.is_lossy() && !decoder.is_animated() { 3 } else { 4 };
    let canvas = if decoder.is_animated() { 4 } else { 0 };
    let pixels = u64::from(width) * u64::from(height);
    let bytes = pixels * (channels as u64 + frame + canvas);
    check_memory(Format::Webp, (width, height), bytes, limits)?;
    let mut pixels = vec![0; width as usize * height as usize * channels];
    decoder.read_image(&mut pixels).map_err(refusal)?;
    if channels == 4 {
        keep_rgb(&mut pixels);
    }
    complete(Format::Webp, width, height, pixels)
}

/// Drops every fourth byte, in place.
fn keep_rgb(pixels: &mut Vec<u8>) {
    let count = pixels.len() / 4;
    for pixel in 1..count {
        pixels.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
    }
    pixels.truncate(3 * count);
}

fn refusal(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            DecodeError::Truncated { format: Format::Webp }
        }
        other => DecodeError::Corrupt { format: Format::Webp, reason: other.to_string() },
    }
}
