//! Embeddings and predictions, stored by their content.
//!
//! Invariant: a file under its digest's name is complete and durable: it was written under another
//! name, synced and renamed. Its bytes are hashed again whenever they are sent.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use orchestrator_types::Digest;

use crate::durable;

/// Bytes hashed at a time.
const VERIFY_BYTES: usize = 1 << 20;

/// Why a blob cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is no such blob.
    #[error("blob {0} is not here")]
    Missing(Digest),
    /// The file no longer holds what its name says.
    #[error("blob {0} is damaged on disk")]
    Damaged(Digest),
    /// A file cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BlobError + 'a {
    move |source| BlobError::File { action, path: path.to_owned(), source }
}

/// The blobs of one coordinator.
#[derive(Debug)]
pub struct Blobs {
    root: PathBuf,
    /// Names of files in work; the store's lock keeps other processes out.
    next: AtomicU64,
}

impl Blobs {
    /// The blobs in the state folder `state`. Files that an earlier life left unfinished are
    /// removed.
    pub fn open(state: &Path) -> Result<Self, BlobError> {
        let root = state.join("blobs");
        let staging = root.join("staging");
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &staging)(error));
            }
            _ => {}
        }
        durable::create_all(&staging).map_err(failed("create", &staging))?;
        Ok(Self { root, next: AtomicU64::new(0) })
    }

    /// Where a blob lies, if it is there.
    pub fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(&name[..2]).join(name)
    }

    /// Size of a blob in bytes; `None` if it is not there.
    pub fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let path = self.path(digest);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("look at", &path)(error)),
        }
    }

    /// Whether a blob is there and whole: its bytes are hashed.
    pub fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        let mut reader = self.read(digest)?;
        while !reader.chunk(VERIFY_BYTES)?.is_empty() {}
        Ok(())
    }

    /// Starts a new blob.
    pub fn create(&self) -> Result<BlobWriter, BlobError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join("staging").join(number.to_string());
        let file = File::create_new(&path).map_err(failed("create", &path))?;
        Ok(BlobWriter { path, file, hasher: blake3::Hasher::new(), size_bytes: 0 })
    }

    /// Starts reading a blob.
    pub fn read(&self, digest: Digest) -> Result<BlobReader, BlobError> {
        let path = self.path(digest);
        match File::open(&path) {
            Ok(file) => Ok(BlobReader { digest, path, file, hasher: blake3::Hasher::new() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(BlobError::Missing(digest))
            }
            Err(error) => Err(failed("open", &path)(error)),
        }
    }
}

/// A blob being written. Dropped before [`BlobWriter::keep`], it leaves nothing.
#[derive(Debug)]
pub struct BlobWriter {
    path: PathBuf,
    file: File,
    hasher: blake3::Hasher,
    size_bytes: u64,
}

impl BlobWriter {
    /// Appends to the blob.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))?;
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Makes the blob durable under its digest; returns digest and size. What lies there already is
    /// replaced, not trusted: it may be damaged.
    pub fn keep(self, blobs: &Blobs) -> Result<(Digest, u64), BlobError> {
        let digest = Digest::from(self.hasher.finalize());
        let path = blobs.path(digest);
        self.file.sync_all().map_err(failed("sync", &self.path))?;
        let folder = path.parent().expect("a blob lies in a folder");
        fs::create_dir_all(folder).map_err(failed("create", folder))?;
        fs::rename(&self.path, &path).map_err(failed("rename to", &path))?;
        for folder in [folder, &blobs.root] {
            durable::sync(folder).map_err(failed("sync", folder))?;
        }
        Ok((digest, self.size_bytes))
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        // Renamed away after `keep`; otherwise the next start removes what this cannot.
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove an unfinished blob");
        }
    }
}

/// A blob being read, and checked while it is.
#[derive(Debug)]
pub struct BlobReader {
    digest: Digest,
    path: PathBuf,
    file: File,
    hasher: blake3::Hasher,
}

impl BlobReader {
    /// The next at most `limit` bytes; none at the end.
    ///
    /// # Errors
    /// [`BlobError::Damaged`] at the end of a blob whose bytes are not those of its name.
    pub fn chunk(&mut self, limit: usize) -> Result<Vec<u8>, BlobError> {
        let mut bytes = Vec::with_capacity(limit);
        let mut part = Read::by_ref(&mut self.file).take(limit as u64);
        part.read_to_end(&mut bytes).map_err(failed("read", &self.path))?;
        self.hasher.update(&bytes);
        if bytes.is_empty() && Digest::from(self.hasher.finalize()) != self.digest {
            return Err(BlobError::Damaged(self.digest));
        }
        Ok(bytes)
    }

    /// The whole blob.
    pub fn all(mut self) -> Result<Vec<u8>, BlobError> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).map_err(failed("read", &self.path))?;
        if Digest::of(&bytes) == self.digest {
            Ok(bytes)
        } else {
            Err(BlobError::Damaged(self.digest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_found_by_its_content_and_nothing_unfinished_stays() {
        let state = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(state.path()).unwrap();
        let mut writer = blobs.create().unwrap();
        writer.write(b"one ").unwrap();
        writer.write(b"blob").unwrap();
        let (digest, size) = writer.keep(&blobs).unwrap();
        assert_eq!((digest, size), (Digest::of(b"one blob"), 8));
        assert_eq!(blobs.size(digest).unwrap(), Some(8));

        let mut reader = blobs.read(digest).unwrap();
        assert_eq!(reader.chunk(5).unwrap(), b"one b");
        assert_eq!(reader.chunk(5).unwrap(), b"lob");
        assert_eq!(reader.chunk(5).unwrap(), b"");

        let mut dropped = blobs.create().unwrap();
        dropped.write(b"half").unwrap();
        drop(dropped);
        assert_eq!(fs::read_dir(state.path().join("blobs/staging")).unwrap().count(), 0);
        assert_eq!(blobs.size(Digest::of(b"half")).unwrap(), None);
    }

    #[test]
    fn a_damaged_blob_is_never_sent_as_whole() {
        let state = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(state.path()).unwrap();
        let mut writer = blobs.create().unwrap();
        writer.write(b"good").unwrap();
        let (digest, _) = writer.keep(&blobs).unwrap();
        fs::write(blobs.path(digest), b"evil").unwrap();
        let mut reader = blobs.read(digest).unwrap();
        assert_eq!(reader.chunk(100).unwrap(), b"evil");
        assert!(matches!(reader.chunk(100), Err(BlobError::Damaged(_))));
        assert!(matches!(blobs.verify(digest), Err(BlobError::Damaged(_))));
        let mut writer = blobs.create().unwrap();
        writer.write(b"good").unwrap();
        writer.keep(&blobs).unwrap();
        blobs.verify(digest).unwrap();
        assert!(matches!(blobs.read(Digest::of(b"?")), Err(BlobError::Missing(_))));
    }
}
