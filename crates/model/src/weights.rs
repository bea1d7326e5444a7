//! model.safetensors: the header, checked, and the bytes of each tensor by memory map.
//!
//! Invariant: every tensor's byte range lies inside the file, ranges do not overlap and leave no
//! gap, and each range is as long as shape and element type say. The `safetensors` crate checks
//! that; limits on the header's size and the number of tensors are ours, and tighter than its own.
//!
//! A mapped file must not be shortened while it is read: the kernel answers with SIGBUS and the
//! process dies. So header and digest are read, not mapped, and whoever only describes a model
//! (`check`, `plan`, `submit`) survives whatever is done to its files. Tensor bytes are touched by the
//! executor alone, the process that may die: its unit is tried again, and given up in words. Files
//! that others can write are mapped there all the same: in a shared volume that is most of them, and a
//! copy would cost the weights' size in host memory. What others *changed* meanwhile is found after
//! loading ([`WeightsFile::require_unchanged`]).

mod header;

use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    io,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use orchestrator_files::Files;
use orchestrator_types::Digest;
use safetensors::Dtype;

use crate::ModelError;

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
    path: PathBuf,
    file: File,
    opened: State,
    map: memmap2::Mmap,
    pub tensors: BTreeMap<String, Listed>,
}

/// What changes when somebody writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    bytes: u64,
    modified: (i64, i64),
    names: u64,
    changed: (i64, i64),
}

impl State {
    fn of(found: &Metadata) -> Self {
        Self {
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            names: found.nlink(),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether the bytes are those of `other`. The inode's own time, which nobody can set back, tells
    /// of names too: a file that was deleted or replaced is as it was for who has it open.
    fn same_bytes(self, other: Self) -> bool {
        (self.bytes, self.modified) == (other.bytes, other.modified)
            && (self.changed == other.changed || self.names != other.names)
    }
}

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

impl WeightsFile {
    pub(crate) fn open(path: &Path, files: &Files) -> Result<Self, ModelError> {
        let unreadable = |source| ModelError::Read { path: path.to_owned(), source };
        let file = files.open(path).map_err(unreadable)?;
        let opened = State::of(&file.metadata().map_err(unreadable)?);
        let mut start = [0_u8; header::LENGTH_BYTES];
        let got = read_up_to(&file, &mut start, 0).map_err(unreadable)?;
        if is_pickle(&start[..got]) {
            return Err(ModelError::Pickle { path: path.to_owned() });
        }
        let damaged = |problem| ModelError::Header { path: path.to_owned(), problem };
        let length = header::length(u64::from_le_bytes(start), opened.bytes).map_err(damaged)?;
        let mut text = vec![0; length];
        let got = read_up_to(&file, &mut text, start.len() as u64).map_err(unreadable)?;
        if got < length {
            return Err(ModelError::Changed { path: path.to_owned() });
        }
        let tensors = header::list(&text, opened.bytes).map_err(damaged)?;
        #[expect(
            unsafe_code,
            reason = "read-only map; see this file's header for who may shorten it"
        )]
        // SAFETY: the map is private to this value and only read. Another process that changes the
        // file can change the bytes under us, which are plain numbers, or shorten it (SIGBUS).
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), file, opened, map, tensors })
    }

    /// Digest of the whole file.
    pub(crate) fn digest(&self) -> Result<Digest, ModelError> {
        let unreadable = |source| ModelError::Read { path: self.path.clone(), source };
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut at = 0;
        loop {
            let got = read_up_to(&self.file, &mut buffer, at).map_err(unreadable)?;
            hasher.update(&buffer[..got]);
            at += got as u64;
            if got < buffer.len() {
                break;
            }
        }
        self.require_unchanged()?;
        Ok(hasher.finalize().into())
    }

    /// Whether the file is as it was when it was opened.
    pub(crate) fn require_unchanged(&self) -> Result<(), ModelError> {
        let unreadable = |source| ModelError::Read { path: self.path.clone(), source };
        let now = State::of(&self.file.metadata().map_err(unreadable)?);
        if now.same_bytes(self.opened) {
            Ok(())
        } else {
            Err(ModelError::Changed { path: self.path.clone() })
        }
    }

    /// A listed tensor whose element type we read.
    pub(crate) fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let listed = self.tensors.get(name)?;
        let bytes = self.map.get(listed.range.clone())?;
        Some(StoredTensor { element: Element::read(listed.dtype)?, shape: &listed.shape, bytes })
    }
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A zip archive (torch.save since 1.6) or a bare pickle of protocol 2 to 5 (before it).
fn is_pickle(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04")
        || matches!(start, [0x80, 2..=5, b'}' | b'c' | b'(' | b'\x8a' | b'\x95', ..])
}
