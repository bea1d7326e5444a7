//! Opening files that somebody else named: an evaluation, a captions file, a model folder.
//!
//! Invariants:
//! - What is opened is a regular file. A named pipe, a device or a socket is refused and never waited
//!   for.
//! - Beneath folders, what is opened lies inside one of them, wherever links lead, and whatever
//!   somebody changes between the look and the opening: the kernel walks from the folder itself
//!   (`openat2` with `RESOLVE_BENEATH`, or its equivalent) and refuses to leave it.
//! - What is read has a limit, however large the file says that it is and whatever it grows to.
//!
//! Links may be absolute, as long as they end inside: the path is freed of links first, and only the
//! way that is left is walked.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use cap_std::{ambient_authority, fs::Dir};
use orchestrator_types::ByteCount;

/// Without these a pipe would wait for its writer, and a terminal become ours.
const FLAGS: i32 = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;

/// Why a file is not opened or not read; the source of an [`io::Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is something else.
    #[error("it is {found}, not a regular file")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// It lies elsewhere.
    #[error("it lies outside of the folders that may be read")]
    Outside,
    /// It is larger than any honest file of its kind.
    #[error("it has more than {limit}, the most that is read of such a file")]
    TooLarge {
        /// The most that is read.
        limit: ByteCount,
    },
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        let kind = match refused {
            Refused::NotAFile { .. } => io::ErrorKind::InvalidInput,
            Refused::Outside => io::ErrorKind::PermissionDenied,
            Refused::TooLarge { .. } => io::ErrorKind::FileTooLarge,
        };
        Self::new(kind, refused)
    }
}

/// Which files may be opened. Clones share the open folders.
#[derive(Clone, Debug, Default)]
pub struct Files(Option<Arc<[Root]>>);

#[derive(Debug)]
struct Root {
    /// Without links.
    path: PathBuf,
    folder: Dir,
}

impl Files {
    /// All that the user may open.
    pub const fn anywhere() -> Self {
        Self(None)
    }

    /// What lies inside one of these folders.
    ///
    /// # Errors
    /// A folder cannot be opened.
    pub fn beneath(folders: &[PathBuf]) -> io::Result<Self> {
        let root = |path: &PathBuf| {
            let path = path.canonicalize()?;
            let folder = Dir::open_ambient_dir(&path, ambient_authority())?;
            Ok(Root { path, folder })
        };
        Ok(Self(Some(folders.iter().map(root).collect::<io::Result<_>>()?)))
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// What the system says, or [`Refused`].
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let file = match &self.0 {
            None => OpenOptions::new().read(true).custom_flags(FLAGS).open(path)?,
            Some(roots) => Self::open_beneath(roots, path)?,
        };
        match kind_of(&file.metadata()?) {
            None => Ok(file),
            Some(found) => Err(Refused::NotAFile { found }.into()),
        }
    }

    fn open_beneath(roots: &[Root], path: &Path) -> io::Result<File> {
        let real = real(roots, path)?;
        let inside =
            roots.iter().find_map(|root| Some((root, real.strip_prefix(&root.path).ok()?)));
        let (root, rest) = inside.ok_or(Refused::Outside)?;
        if rest.as_os_str().is_empty() {
            return Err(Refused::NotAFile { found: "a folder" }.into());
        }
        let mut options = cap_std::fs::OpenOptions::new();
        cap_std::fs::OpenOptionsExt::custom_flags(options.read(true), FLAGS);
        Ok(root.folder.open_with(rest, &options)?.into_std())
    }

    /// Whether nothing about where a file lies forbids to open it. Of what is not there, that it would
    /// be admitted.
    pub fn admits(&self, path: &Path) -> bool {
        let Some(roots) = &self.0 else { return true };
        match real(roots, path) {
            Ok(real) => roots.iter().any(|root| real.starts_with(&root.path)),
            Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        }
    }

    /// All of a regular file, which has at most `limit` bytes.
    ///
    /// # Errors
    /// What the system says, or [`Refused`].
    pub fn read(&self, path: &Path, limit: ByteCount) -> io::Result<Vec<u8>> {
        read_up_to(self.open(path)?, limit)
    }
}

/// All of a stream, which gives at most `limit` bytes.
///
/// # Errors
/// What the system says, or [`Refused::TooLarge`].
pub fn read_up_to(stream: impl io::Read, limit: ByteCount) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte too many is enough to be refused, and no size that a file claims is believed.
    stream.take(limit.as_u64().saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.as_u64() {
        Err(Refused::TooLarge { limit }.into())
    } else {
        Ok(bytes)
    }
}

/// The path without links. Of other places nothing is told, not even that nothing is there.
fn real(roots: &[Root], path: &Path) -> io::Result<PathBuf> {
    let named = roots.iter().any(|root| path.starts_with(&root.path))
        && path.components().all(|part| part != Component::ParentDir);
    match path.canonicalize() {
        Err(_) if !named => Err(Refused::Outside.into()),
        real => real,
    }
}

/// What something is that is not a regular file.
fn kind_of(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a folder")
    } else if kind.is_fifo() {
        Some("a named pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

#[cfg(test)]
mod tests;
