//! WebP, lossy and lossless; of an animation the first frame.
//!
//! Invariant: alpha is dropped, as Pillow's conversion does.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::{DecodeError, DecodeLimits, Format, RgbImage, check_size, complete};

pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(refusal)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, limits)?;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut pixels = vec![0; width as usize * height as usize * channels];
    decoder.read_image(&mut pixels).map_err(refusal)?;
    if channels == 4 {
        pixels = pixels.as_chunks().0.iter().flat_map(|&[r, g, b, _]| [r, g, b]).collect();
    }
    complete(Format::Webp, width, height, pixels)
}

fn refusal(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            DecodeError::Truncated { format: Format::Webp }
        }
        other => DecodeError::Corrupt { format: Format::Webp, reason: other.to_string() },
    }
}
