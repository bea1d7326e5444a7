//! JPEG through libjpeg-turbo, with the settings that Pillow uses: the accurate integer DCT and
//! smooth chroma upsampling.
//!
//! Invariant: what libjpeg calls a warning decodes, as it does in Pillow — except a premature end
//! of the data, which Pillow refuses and libjpeg fills with grey. CMYK and YCCK pictures are taken
//! as Adobe writes them, inverted.

mod turbo;

use self::turbo::{Colours, Decoder, Outcome};
use super::{DecodeError, DecodeLimits, Format, RgbImage, check_size, complete};

/// A start-of-frame marker of a process that libjpeg-turbo knows and refuses (hierarchical,
/// ISO/IEC 10918-1 table B.1). Laid behind the file's last byte, it is read only if the file ends
/// too early.
const SENTINEL: [u8; 2] = [0xff, 0xc5];

pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    let mut decoder = Decoder::new(limits.scans).map_err(corrupt)?;
    let header = decoder.header(bytes).map_err(corrupt)?;
    check_size(header.width, header.height, limits)?;
    let channels = match header.colours {
        Colours::Rgb => 3,
        Colours::Cmyk => 4,
    };
    let mut pixels = vec![0; header.width as usize * header.height as usize * channels];
    match decoder.pixels(bytes, header, &mut pixels) {
        Outcome::Clean => {}
        Outcome::Warned => {
            if ends_early(&mut decoder, bytes, header, &mut pixels) {
                return Err(DecodeError::Truncated { format: Format::Jpeg });
            }
        }
        Outcome::Failed(reason) => return Err(corrupt(reason)),
    }
    if header.colours == Colours::Cmyk {
        pixels = rgb_of_inverted_cmyk(&pixels);
    }
    complete(Format::Jpeg, header.width, header.height, pixels)
}

/// Whether the decoder asks for more bytes than there are. libjpeg's own warning cannot tell: a
/// later one overwrites it, and the same one is given for damage in the middle.
fn ends_early(
    decoder: &mut Decoder,
    bytes: &[u8],
    header: turbo::Header,
    pixels: &mut [u8],
) -> bool {
    let probed = [bytes, &SENTINEL].concat();
    // Pixels that were complete without the sentinel are the same with it.
    matches!(decoder.pixels(&probed, header, pixels), Outcome::Failed(_))
}

fn corrupt(reason: String) -> DecodeError {
    DecodeError::Corrupt { format: Format::Jpeg, reason }
}

/// Pillow's conversion: samples are inverted first, then each colour is `(255 - k)` less its share
/// of `(255 - k)`, with Pillow's rounding of a product over 255.
fn rgb_of_inverted_cmyk(pixels: &[u8]) -> Vec<u8> {
    let mut rgb = Vec::with_capacity(pixels.len() / 4 * 3);
    for &[c, m, y, k] in pixels.as_chunks::<4>().0 {
        // The file holds 255 - k already.
        let white = u32::from(k);
        for inverted in [c, m, y] {
            let product = (255 - u32::from(inverted)) * white + 128;
            let share = ((product >> 8) + product) >> 8;
            rgb.push(u8::try_from(white.saturating_sub(share)).unwrap_or(u8::MAX));
        }
    }
    rgb
}
