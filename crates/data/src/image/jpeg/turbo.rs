//! The four calls of libjpeg-turbo's C interface that decoding needs.
//!
//! Why not the safe wrapper of the same crate: it turns a *warning* in a header or in the data into
//! an error without the picture, and cannot say which of the two it was; Pillow decodes such files.
//!
//! Invariant: one handle per [`Decoder`], freed once; a pixel buffer is checked against the size
//! that the library itself announces for the same bytes before it writes.

#![expect(unsafe_code, reason = "C interface; each call states why it is sound")]

use std::ffi::{CStr, c_int};

use turbojpeg_sys as raw;

/// What the header of a file announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) colours: Colours,
}

/// In which colours the pixels come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// From RGB, YCbCr and grey files: three bytes a pixel.
    Rgb,
    /// From CMYK and YCCK files: four bytes a pixel, as stored.
    Cmyk,
}

/// How a decoding ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Clean,
    /// The pixels are there; the data were odd.
    Warned,
    /// There are no pixels to trust.
    Failed(String),
}

/// How libjpeg's warnings begin (`jerror.h`, `JWRN_…`); no error begins like one of them.
const WARNINGS: [&str; 6] = [
    "Corrupt JPEG data",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "Premature end of JPEG file",
    "Unknown Adobe color transform code",
    "Warning: unknown JFIF revision",
];

pub(super) struct Decoder {
    handle: raw::tjhandle,
}

impl Decoder {
    pub(super) fn new(scans: u32) -> Result<Self, String> {
        // SAFETY: takes an integer, gives a handle or null.
        let handle = unsafe { raw::tj3Init(raw::TJINIT_TJINIT_DECOMPRESS.cast_signed()) };
        if handle.is_null() {
            return Err("libjpeg-turbo did not start; the machine may be out of memory".to_owned());
        }
        let decoder = Self { handle };
        let scans = c_int::try_from(scans).unwrap_or(c_int::MAX);
        // SAFETY: the handle is live; the library checks parameter and value.
        unsafe { raw::tj3Set(handle, raw::TJPARAM_TJPARAM_SCANLIMIT.cast_signed(), scans) };
        Ok(decoder)
    }

    /// Most bytes for what is held beside the pixels, in whole MiB and at least one: the library
    /// takes zero for no limit.
    pub(super) fn limit_memory(&mut self, bytes: u64) {
        let mebibytes = c_int::try_from((bytes >> 20).max(1)).unwrap_or(c_int::MAX);
        let parameter = raw::TJPARAM_TJPARAM_MAXMEMORY.cast_signed();
        // SAFETY: the handle is live; the library checks parameter and value.
        unsafe { raw::tj3Set(self.handle, parameter, mebibytes) };
    }

    /// Reads the header; warnings in it are of no interest.
    pub(super) fn header(&mut self, bytes: &[u8]) -> Result<Header, String> {
        // SAFETY: the handle is live, and pointer and length belong to one slice, which the library
        // only reads and does not keep beyond the next call that is given bytes.
        let code = unsafe { raw::tj3DecompressHeader(self.handle, bytes.as_ptr(), length(bytes)) };
        if code != 0 && self.is_fatal() {
            return Err(self.message());
        }
        let size = |side: c_int| u32::try_from(side).ok().filter(|&side| side > 0);
        let width = size(self.get(raw::TJPARAM_TJPARAM_JPEGWIDTH));
        let height = size(self.get(raw::TJPARAM_TJPARAM_JPEGHEIGHT));
        let (Some(width), Some(height)) = (width, height) else {
            return Err("no picture in the file".to_owned());
        };
        if self.get(raw::TJPARAM_TJPARAM_PRECISION) != 8 {
            return Err("not 8 bits a sample".to_owned());
        }
        #[expect(
            clippy::cast_sign_loss,
            reason = "-1 (unknown) becomes a value of no colour space"
        )]
        let colours = match self.get(raw::TJPARAM_TJPARAM_COLORSPACE) as raw::TJCS {
            raw::TJCS_TJCS_CMYK | raw::TJCS_TJCS_YCCK => Colours::Cmyk,
            _ => Colours::Rgb,
        };
        Ok(Header { width, height, colours })
    }

    /// Decodes `bytes`, whose header is `header`, into `pixels` (height × width × channels).
    pub(super) fn pixels(&mut self, bytes: &[u8], header: Header, pixels: &mut [u8]) -> Outcome {
        let (channels, format) = match header.colours {
            Colours::Rgb => (3, raw::TJPF_TJPF_RGB),
            Colours::Cmyk => (4, raw::TJPF_TJPF_CMYK),
        };
        let expected = header.width as usize * header.height as usize * channels;
        // The bytes may not be those of `header`: ask again what the library will write.
        if self.header(bytes) != Ok(header) || pixels.len() != expected {
            return Outcome::Failed("the header changed between two readings".to_owned());
        }
        // SAFETY: the handle is live; `bytes` is one slice, only read; with no scaling and no
        // cropping set, the library writes `height` rows of `width * channels` bytes (pitch 0 means
        // packed), which is the length of `pixels`, checked above against the same bytes.
        let code = unsafe {
            raw::tj3Decompress8(
                self.handle,
                bytes.as_ptr(),
                length(bytes),
                pixels.as_mut_ptr(),
                0,
                format as c_int,
            )
        };
        if code == 0 {
            Outcome::Clean
        } else if self.is_fatal() {
            Outcome::Failed(self.message())
        } else {
            Outcome::Warned
        }
    }

    fn get(&self, parameter: raw::TJPARAM) -> c_int {
        // SAFETY: the handle is live; an unknown parameter gives -1.
        unsafe { raw::tj3Get(self.handle, parameter.cast_signed()) }
    }

    /// Whether the last call failed, rather than warned. The library's own code says "warning" as
    /// soon as there was one, even if an error followed; the last message tells.
    fn is_fatal(&self) -> bool {
        // SAFETY: the handle is live.
        let code = unsafe { raw::tj3GetErrorCode(self.handle) };
        let message = self.message();
        code != raw::TJERR_TJERR_WARNING.cast_signed()
            || !WARNINGS.iter().any(|warning| message.starts_with(warning))
    }

    /// The library's last message.
    fn message(&self) -> String {
        // SAFETY: the handle is live; the string is terminated and stays until the next call on
        // this thread; it is copied at once.
        let text = unsafe { CStr::from_ptr(raw::tj3GetErrorStr(self.handle)) };
        text.to_string_lossy().into_owned()
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and nothing uses it afterwards.
        unsafe { raw::tj3Destroy(self.handle) };
    }
}

/// Whether the library stopped at [`Decoder::limit_memory`] (`JERR_NO_BACKING_STORE`).
pub(super) fn is_out_of_memory(reason: &str) -> bool {
    reason.contains("Memory limit exceeded") || reason.contains("Backing store not supported")
}

fn length(bytes: &[u8]) -> raw::size_t {
    bytes.len() as raw::size_t
}
