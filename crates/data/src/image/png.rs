//! PNG.
//!
//! Invariant: samples become bytes as in Pillow: 1, 2 and 4-bit grey are stretched to 0–255; of
//! 16-bit colour and grey with alpha the high byte is kept, while 16-bit grey is *clipped* at 255;
//! palette entries that are missing are black.
//!
//! Stricter than Pillow on purpose: the checksum of the picture's data is verified, and data that end
//! between two rows are a truncated file; Pillow ignores the one and leaves the rest black.

use std::io::{Cursor, ErrorKind};

use png::{BitDepth, ColorType, DecodingError, Limits, Reader, Transformations};

use super::{DecodeError, DecodeLimits, Format, RgbImage, check_memory, check_size, complete};

type PngReader<'a> = Reader<Cursor<&'a [u8]>>;

/// What chunks other than the picture may take; text and colour profiles are of no use here.
const METADATA_LIMIT: usize = 16 << 20;

/// The last chunk of every file.
const END_CHUNK: [u8; 12] = *b"\0\0\0\0IEND\xae\x42\x60\x82";

pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    match decode_whole(bytes, limits) {
        // Nothing but the end chunk may be missing: then every pixel is there.
        Err(truncated @ DecodeError::Truncated { .. }) => {
            decode_whole(&[bytes, &END_CHUNK].concat(), limits).map_err(|_| truncated)
        }
        result => result,
    }
}

fn decode_whole(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    let mut decoder =
        png::Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: METADATA_LIMIT });
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(refusal)?;
    let (width, height) = (header.width, header.height);
    check_size(width, height, limits)?;
    let mut reader = decoder.read_info().map_err(refusal)?;
    let stride = reader.output_line_size(width).ok_or_else(|| too_large(width, height, limits))?;
    let layout = Layout::of(&reader);
    // Interlaced rows are put together before they are widened; others are widened as they come.
    let packed = if layout.interlaced { stride as u64 * u64::from(height) } else { stride as u64 };
    let length = 3 * u64::from(width) * u64::from(height);
    check_memory(Format::Png, (width, height), length + packed, limits)?;
    let mut rgb = Vec::with_capacity(3 * width as usize * height as usize);
    if layout.interlaced {
        let packed = interlaced(&mut reader, &layout, stride, height)?;
        packed.chunks_exact(stride).for_each(|row| layout.widen(row, &mut rgb));
    } else {
        while let Some(row) = reader.next_row().map_err(refusal)? {
            layout.widen(row.data(), &mut rgb);
        }
    }
    // Verifies the checksum of the last data chunk.
    reader.finish().map_err(refusal)?;
    complete(Format::Png, width, height, rgb)
}

fn too_large(width: u32, height: u32, limits: &DecodeLimits) -> DecodeError {
    DecodeError::TooManyPixels { width, height, limits: *limits }
}

/// All rows, as the file packs samples.
fn interlaced(
    reader: &mut PngReader<'_>,
    layout: &Layout,
    stride: usize,
    height: u32,
) -> Result<Vec<u8>, DecodeError> {
    let mut packed = vec![0; stride * height as usize];
    while let Some(row) = reader.next_interlaced_row().map_err(refusal)? {
        if let png::InterlaceInfo::Adam7(pass) = row.interlace() {
            png::expand_interlaced_row(&mut packed, stride, row.data(), pass, layout.bits());
        }
    }
    Ok(packed)
}

/// How samples lie in a row.
struct Layout {
    colour: ColorType,
    depth: BitDepth,
    width: usize,
    interlaced: bool,
    /// Three bytes a colour.
    palette: Vec<u8>,
}

impl Layout {
    fn of(reader: &PngReader<'_>) -> Self {
        let info = reader.info();
        Self {
            colour: info.color_type,
            depth: info.bit_depth,
            width: info.width as usize,
            interlaced: info.interlaced,
            palette: info.palette.as_deref().unwrap_or_default().to_vec(),
        }
    }

    /// Bits of a pixel.
    const fn bits(&self) -> u8 {
        let samples: u8 = match self.colour {
            ColorType::Grayscale | ColorType::Indexed => 1,
            ColorType::GrayscaleAlpha => 2,
            ColorType::Rgb => 3,
            ColorType::Rgba => 4,
        };
        samples * self.depth as u8
    }

    /// Unpacks and widens the samples of a row.
    fn widen(&self, row: &[u8], rgb: &mut Vec<u8>) {
        let (depth, width) = (self.depth, self.width);
        let wide = depth == BitDepth::Sixteen;
        let grey = |value: u8| [value; 3];
        match self.colour {
            ColorType::Grayscale if wide => rgb.extend(
                row.as_chunks()
                    .0
                    .iter()
                    .flat_map(|&[high, low]| grey(if high > 0 { u8::MAX } else { low })),
            ),
            ColorType::Grayscale => {
                let step = u8::MAX / max_of(depth);
                rgb.extend(indices(row, depth, width).flat_map(|v| grey(v * step)));
            }
            ColorType::Indexed => {
                let palette = self.palette.as_chunks::<3>().0;
                let colour = |index: u8| palette.get(usize::from(index)).copied();
                rgb.extend(
                    indices(row, depth, width).flat_map(|index| colour(index).unwrap_or_default()),
                );
            }
            ColorType::GrayscaleAlpha if wide => {
                rgb.extend(row.as_chunks().0.iter().flat_map(|&[high, _, _, _]| grey(high)));
            }
            ColorType::GrayscaleAlpha => {
                rgb.extend(row.as_chunks().0.iter().flat_map(|&[value, _]| grey(value)));
            }
            ColorType::Rgb if wide => {
                rgb.extend(row.as_chunks().0.iter().map(|&[high, _]| high));
            }
            ColorType::Rgb => rgb.extend_from_slice(row),
            ColorType::Rgba if wide => {
                rgb.extend(
                    row.as_chunks().0.iter().flat_map(|&[r, _, g, _, b, _, _, _]| [r, g, b]),
                );
            }
            ColorType::Rgba => {
                rgb.extend(row.as_chunks().0.iter().flat_map(|&[r, g, b, _]| [r, g, b]));
            }
        }
    }
}

fn max_of(depth: BitDepth) -> u8 {
    match depth {
        BitDepth::One => 1,
        BitDepth::Two => 3,
        BitDepth::Four => 15,
        BitDepth::Eight | BitDepth::Sixteen => u8::MAX,
    }
}

/// The samples of one row of at most 8 bits each; the leftmost lies in the high bits.
fn indices(row: &[u8], depth: BitDepth, width: usize) -> impl Iterator<Item = u8> {
    let bits = (depth as usize).min(8);
    let mask = max_of(depth);
    (0..width).map(move |x| {
        let bit = x * bits;
        (row[bit / 8] >> (8 - bits - bit % 8)) & mask
    })
}

fn refusal(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            DecodeError::Truncated { format: Format::Png }
        }
        other => DecodeError::Corrupt { format: Format::Png, reason: other.to_string() },
    }
}
