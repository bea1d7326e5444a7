//! model.safetensors: the header, checked, and the bytes of each tensor by memory map.
//!
//! Invariant: every tensor's byte range lies inside the file, ranges do not overlap and leave no
//! gap, and each range is as long as shape and element type say. The `safetensors` crate checks
//! that; limits on the header's size and the number of tensors are ours, and tighter than its own.
//!
//! A mapped file must not be shortened while it is read: the kernel answers with SIGBUS and the
//! process dies. Only the executor reads tensor bytes, and it is the process that may die.

use std::{collections::BTreeMap, fs::File, io::Read as _, ops::Range, path::Path};

use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::{HeaderProblem, ModelError};

/// Number format of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// Bytes that one element takes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    pub(crate) fn read(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// A tensor's place in the mapped file.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// Number format.
    pub element: Element,
    /// Shape; the last axis is contiguous.
    pub shape: &'a [usize],
    /// Little-endian elements: the product of `shape` times the element's size.
    pub bytes: &'a [u8],
}

/// A tensor as the header lists it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    range: Range<usize>,
}

/// A checked, mapped safetensors file.
pub(crate) struct WeightsFile {
    map: memmap2::Mmap,
    pub tensors: BTreeMap<String, Listed>,
}

const LENGTH_BYTES: usize = 8;
const MOST_HEADER: u64 = 8 << 20;
const MOST_TENSORS: usize = 20_000;

impl WeightsFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let unreadable = |source| ModelError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut start = [0_u8; LENGTH_BYTES];
        let got = read_up_to(&mut file, &mut start).map_err(unreadable)?;
        if is_pickle(&start[..got]) {
            return Err(ModelError::Pickle { path: path.to_owned() });
        }
        let damaged = |problem| ModelError::Header { path: path.to_owned(), problem };
        check_length(u64::from_le_bytes(start), bytes).map_err(damaged)?;
        #[expect(
            unsafe_code,
            reason = "read-only map; see this file's header for who may shorten it"
        )]
        // SAFETY: the map is private to this value and only read. Another process that changes the
        // file can change the bytes under us, which are plain numbers, or shorten it (SIGBUS).
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(unreadable)?;
        let tensors = list(&map).map_err(damaged)?;
        Ok(Self { map, tensors })
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// A listed tensor whose element type we read.
    pub(crate) fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let listed = self.tensors.get(name)?;
        let bytes = self.map.get(listed.range.clone())?;
        Some(StoredTensor { element: Element::read(listed.dtype)?, shape: &listed.shape, bytes })
    }
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// A zip archive (torch.save since 1.6) or a bare pickle of protocol 2 to 5 (before it).
fn is_pickle(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04")
        || matches!(start, [0x80, 2..=5, b'}' | b'c' | b'(' | b'\x8a' | b'\x95', ..])
}

fn check_length(claimed: u64, bytes: u64) -> Result<(), HeaderProblem> {
    if bytes <= LENGTH_BYTES as u64 {
        return Err(HeaderProblem::TooShort { bytes });
    }
    if claimed > MOST_HEADER {
        return Err(HeaderProblem::TooLarge { claimed, limit: MOST_HEADER });
    }
    if claimed > bytes - LENGTH_BYTES as u64 {
        return Err(HeaderProblem::Truncated { claimed, bytes });
    }
    Ok(())
}

fn list(map: &[u8]) -> Result<BTreeMap<String, Listed>, HeaderProblem> {
    let (header, metadata) = SafeTensors::read_metadata(map).map_err(|error| match error {
        SafeTensorError::MetadataIncompleteBuffer => HeaderProblem::Size,
        error => HeaderProblem::Damaged(error.to_string()),
    })?;
    let listed = metadata.tensors();
    if listed.len() > MOST_TENSORS {
        return Err(HeaderProblem::TooManyTensors { found: listed.len(), limit: MOST_TENSORS });
    }
    let data = header + LENGTH_BYTES;
    let place = |info: &safetensors::tensor::TensorInfo| Listed {
        dtype: info.dtype,
        shape: info.shape.clone(),
        range: info.data_offsets.0 + data..info.data_offsets.1 + data,
    };
    Ok(listed.into_iter().map(|(name, info)| (name, place(info))).collect())
}
