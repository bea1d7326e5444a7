//! Pictures: from a file's bytes to RGB.
//!
//! Invariant: [`decode`] gives the pixels of Pillow's `Image.open(f).convert("RGB")` — alpha and
//! palette transparency are dropped, not composited; EXIF orientation, gamma and colour profiles
//! are not applied — or a typed reason. It never panics, and never allocates more than
//! [`DecodeLimits`] allows. The format is known by its first bytes, never by the file's name.

mod jpeg;
mod png;
#[cfg(test)]
mod tests;
mod webp;

use std::fmt;

use orchestrator_types::ByteCount;

/// A picture: 8-bit RGB, rows from the top, no padding (height × width × 3).
#[derive(Clone, PartialEq, Eq)]
pub struct RgbImage {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl RgbImage {
    /// A picture from its pixels; `None` if `pixels` is not `width` × `height` × 3 bytes, or empty.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        let expected = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        (expected > 0 && expected == pixels.len()).then_some(Self { width, height, pixels })
    }

    /// Width in pixels, at least 1.
    pub const fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels, at least 1.
    pub const fn height(&self) -> u32 {
        self.height
    }

    /// The bytes: row by row, R, G, B of each pixel.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

impl fmt::Debug for RgbImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RgbImage({} × {})", self.width, self.height)
    }
}

/// What a picture may cost. A few hostile bytes can announce gigabytes of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Largest file.
    pub bytes: ByteCount,
    /// Largest width and largest height, in pixels.
    pub side: u32,
    /// Largest width × height.
    pub pixels: u64,
    /// Most bytes for pixels and coefficients while a picture is decoded, the result included.
    pub memory: ByteCount,
    /// Most scans of a progressive JPEG: each one costs a pass over all coefficients.
    pub scans: u32,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self {
            bytes: ByteCount::mib(32),
            side: 16_384,
            pixels: 64_000_000,
            memory: ByteCount::mib(256),
            scans: 500,
        }
    }
}

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JPEG, through libjpeg-turbo.
    Jpeg,
    /// PNG.
    Png,
    /// WebP, lossy or lossless.
    Webp,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Webp => "WebP",
        })
    }
}

/// Why a file gives no picture. None of these can be cured by trying again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A file of zero bytes.
    #[error("the file is empty")]
    Empty,
    /// More bytes than the limit.
    #[error("the file has {bytes}, more than the limit of {limit}")]
    TooManyBytes {
        /// The file's size.
        bytes: ByteCount,
        /// What is allowed.
        limit: ByteCount,
    },
    /// The first bytes belong to no format that is read.
    #[error("not a JPEG, PNG or WebP file: it starts with {start}")]
    UnknownFormat {
        /// The first bytes, for people.
        start: String,
    },
    /// More pixels than the limit.
    #[error("{width} × {height} pixels are more than the limit of {} a side and {} in all", limits.side, limits.pixels)]
    TooManyPixels {
        /// Announced width.
        width: u32,
        /// Announced height.
        height: u32,
        /// What is allowed.
        limits: DecodeLimits,
    },
    /// More memory than the limit, although the picture itself is not too large: formats differ in
    /// what they hold beside the pixels.
    #[error(
        "decoding {width} × {height} pixels of this {format} takes more than the limit of {limit}"
    )]
    TooMuchMemory {
        /// The file's format.
        format: Format,
        /// Announced width.
        width: u32,
        /// Announced height.
        height: u32,
        /// What is allowed.
        limit: ByteCount,
    },
    /// The data end before the picture does.
    #[error("truncated {format}: the data end before the picture is complete")]
    Truncated {
        /// The file's format.
        format: Format,
    },
    /// The data contradict themselves or the format.
    #[error("broken {format}: {reason}")]
    Corrupt {
        /// The file's format.
        format: Format,
        /// The decoder's words.
        reason: String,
    },
}

/// Reads a picture. See the module's text for what exactly comes out.
///
/// # Errors
/// The reason why there is no picture, or not all of it.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    let size = ByteCount::bytes(bytes.len() as u64);
    if size > limits.bytes {
        return Err(DecodeError::TooManyBytes { bytes: size, limit: limits.bytes });
    }
    match sniff(bytes)? {
        Format::Jpeg => jpeg::decode(bytes, limits),
        Format::Png => png::decode(bytes, limits),
        Format::Webp => webp::decode(bytes, limits),
    }
}

fn sniff(bytes: &[u8]) -> Result<Format, DecodeError> {
    match bytes {
        [] => Err(DecodeError::Empty),
        [0xff, 0xd8, 0xff, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Format::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Format::Webp),
        _ => {
            let start = &bytes[..bytes.len().min(12)];
            Err(DecodeError::UnknownFormat { start: format!("\"{}\"", start.escape_ascii()) })
        }
    }
}

/// Refuses a picture by its announced size, before anything is allocated for it.
fn check_size(width: u32, height: u32, limits: &DecodeLimits) -> Result<(), DecodeError> {
    let within = width <= limits.side
        && height <= limits.side
        && u64::from(width) * u64::from(height) <= limits.pixels;
    if within { Ok(()) } else { Err(DecodeError::TooManyPixels { width, height, limits: *limits }) }
}

/// Refuses a picture whose decoding takes `bytes`, before anything is allocated for it.
fn check_memory(
    format: Format,
    (width, height): (u32, u32),
    bytes: u64,
    limits: &DecodeLimits,
) -> Result<(), DecodeError> {
    let limit = limits.memory;
    if bytes <= limit.as_u64() {
        return Ok(());
    }
    Err(DecodeError::TooMuchMemory { format, width, height, limit })
}

/// A complete picture, or the statement that the decoder announced an impossible one.
fn complete(
    format: Format,
    width: u32,
    height: u32,
    pixels: Vec<u8>,
) -> Result<RgbImage, DecodeError> {
    let reason = || format!("{width} × {height} pixels");
    RgbImage::new(width, height, pixels)
        .ok_or_else(|| DecodeError::Corrupt { format, reason: reason() })
}
