//! JPEG through libjpeg-turbo, with the settings that Pillow uses: the accurate integer DCT and
//! smooth chroma upsampling.
//!
//! Invariant: what libjpeg calls a warning decodes, as it does in Pillow — except a premature end
//! of the data, which Pillow refuses and libjpeg fills with grey. CMYK and YCCK pictures are taken
//! as Adobe writes them, inverted.

mod turbo;

use self::turbo::{Colours, Decoder, Outcome};
use super::{DecodeError, DecodeLimits, Format, RgbImage, check_memory, check_size, complete};

pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    let mut decoder = Decoder::new(limits.scans).map_err(corrupt)?;
    let header = decoder.header(bytes).map_err(|reason| refusal(bytes, reason))?;
    check_size(header.width, header.height, limits)?;
    let channels = match header.colours {
        Colours::Rgb => 3,
        Colours::Cmyk => 4,
    };
    let size = (header.width, header.height);
    let length = u64::from(header.width) * u64::from(header.height) * channels as u64;
    check_memory(Format::Jpeg, size, length, limits)?;
    // The rest is for coefficients, of which a progressive file holds all at once.
    decoder.limit_memory(limits.memory.as_u64() - length);
    let mut pixels = vec![0; header.width as usize * header.height as usize * channels];
    match decoder.pixels(bytes, header, &mut pixels) {
        Outcome::Failed(reason) if turbo::is_out_of_memory(&reason) => {
            let ((width, height), limit) = (size, limits.memory);
            let format = Format::Jpeg;
            return Err(DecodeError::TooMuchMemory { format, width, height, limit });
        }
        Outcome::Warned if !has_end(bytes) => {
            return Err(DecodeError::Truncated { format: Format::Jpeg });
        }
        Outcome::Clean | Outcome::Warned => {}
        Outcome::Failed(reason) => return Err(refusal(bytes, reason)),
    }
    if header.colours == Colours::Cmyk {
        to_rgb_from_inverted_cmyk(&mut pixels);
    }
    complete(Format::Jpeg, header.width, header.height, pixels)
}

/// Whether the end marker is there, found by walking from segment to segment. libjpeg's own warning
/// of a premature end does not tell: a later warning overwrites it, and damage in the middle gives
/// the same one.
fn has_end(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xff && is_marker(pair[1])) {
        let (marker, segment) = (rest[at + 1], &rest[at + 2..]);
        if marker == 0xd9 {
            return true;
        }
        // Markers without a length: start of image, restarts, TEM.
        let length = match (marker, segment) {
            (0xd0..=0xd8 | 0x01, _) => 0,
            (_, [high, low, ..]) => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return false,
        };
        rest = segment.get(length..).unwrap_or_default();
    }
    false
}

/// Neither a stuffed zero of the coded samples nor a fill byte.
fn is_marker(byte: u8) -> bool {
    !matches!(byte, 0x00 | 0xff)
}

/// A file that lost its end is called that, whatever the decoder stumbled over because of it.
fn refusal(bytes: &[u8], reason: String) -> DecodeError {
    if has_end(bytes) { corrupt(reason) } else { DecodeError::Truncated { format: Format::Jpeg } }
}

fn corrupt(reason: String) -> DecodeError {
    DecodeError::Corrupt { format: Format::Jpeg, reason }
}

/// Pillow's conversion: samples are inverted first, then each colour is `(255 - k)` less its share
/// of `(255 - k)`, with Pillow's rounding of a product over 255.
fn to_rgb_from_inverted_cmyk(pixels: &mut Vec<u8>) {
    let count = pixels.len() / 4;
    for pixel in 0..count {
        let rgb = match pixels[4 * pixel..4 * pixel + 4] {
            // The file holds 255 - k already.
            [c, m, y, k] => [c, m, y].map(|inverted| {
                let white = u32::from(k);
                let product = (255 - u32::from(inverted)) * white + 128;
                let share = ((product >> 8) + product) >> 8;
                u8::try_from(white.saturating_sub(share)).unwrap_or(u8::MAX)
            }),
            _ => unreachable!("a range of four"),
        };
        pixels[3 * pixel..3 * pixel + 3].copy_from_slice(&rgb);
    }
    pixels.truncate(3 * count);
}
