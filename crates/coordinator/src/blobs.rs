//! Embeddings and predictions, stored by their content.
//!
//! Invariant: what is under a digest's name is complete and durable, and its bytes are hashed again
//! whenever they are sent. Nothing that is written or read is held whole, unless asked for.

mod local;

use std::{
    io,
    path::{Path, PathBuf},
};

use orchestrator_types::Digest;

use self::local::{Draft, Folder, Source};
use crate::blocking::{Blocking, Defect};

/// Bytes hashed at a time.
const VERIFY_BYTES: usize = 1 << 20;

/// Why a blob cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is no such blob.
    #[error("blob {0} is not here")]
    Missing(Digest),
    /// It no longer holds what its name says.
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
    /// See [`Defect`].
    #[error(transparent)]
    Defect(#[from] Defect),
}

/// Where a blob lies in the folder `root`.
pub(crate) fn path_in(root: &Path, digest: Digest) -> PathBuf {
    let name = digest.to_string();
    root.join(&name[..2]).join(name)
}

/// The blobs of one coordinator.
#[derive(Debug)]
pub(crate) struct Blobs {
    folder: Folder,
}

impl Blobs {
    /// The blobs in the state folder `state`. Blocks.
    pub(crate) fn open(state: &Path, blocking: Blocking) -> Result<Self, BlobError> {
        Ok(Self { folder: Folder::open(&state.join("blobs"), blocking)? })
    }

    /// Where a blob lies, if it is there.
    #[cfg(test)]
    pub(crate) fn path(&self, digest: Digest) -> PathBuf {
        self.folder.path(digest)
    }

    /// Size of a blob in bytes; `None` if it is not there.
    pub(crate) async fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        self.folder.size(digest).await
    }

    /// Whether a blob is there and whole: its bytes are hashed.
    pub(crate) async fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        let mut reader = self.read(digest).await?;
        while !reader.chunk(VERIFY_BYTES).await?.is_empty() {}
        Ok(())
    }

    /// Starts a new blob.
    pub(crate) async fn create(&self) -> Result<BlobWriter, BlobError> {
        let draft = self.folder.create().await?;
        Ok(BlobWriter { draft, hasher: blake3::Hasher::new(), size_bytes: 0 })
    }

    /// Starts reading a blob.
    pub(crate) async fn read(&self, digest: Digest) -> Result<BlobReader, BlobError> {
        let source = self.folder.read(digest).await?;
        Ok(BlobReader { digest, source, hasher: blake3::Hasher::new() })
    }
}

/// A blob being written. Dropped before [`BlobWriter::keep`], it leaves nothing.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    draft: Draft,
    hasher: blake3::Hasher,
    size_bytes: u64,
}

impl BlobWriter {
    /// Appends to the blob. After an error, the blob can only be dropped.
    pub(crate) async fn write(&mut self, bytes: Vec<u8>) -> Result<(), BlobError> {
        self.hasher.update(&bytes);
        self.size_bytes += bytes.len() as u64;
        self.draft.write(bytes).await
    }

    /// Makes the blob durable under its digest; returns digest and size.
    pub(crate) async fn keep(self) -> Result<(Digest, u64), BlobError> {
        let digest = Digest::from(self.hasher.finalize());
        self.draft.keep(digest).await?;
        Ok((digest, self.size_bytes))
    }
}

/// A blob being read, and checked while it is.
#[derive(Debug)]
pub(crate) struct BlobReader {
    digest: Digest,
    source: Source,
    hasher: blake3::Hasher,
}

impl BlobReader {
    /// The next at most `limit` bytes; none at the end.
    ///
    /// # Errors
    /// [`BlobError::Damaged`] at the end of a blob whose bytes are not those of its name.
    pub(crate) async fn chunk(&mut self, limit: usize) -> Result<Vec<u8>, BlobError> {
        let bytes = self.source.chunk(limit).await?;
        self.hasher.update(&bytes);
        if bytes.is_empty() && Digest::from(self.hasher.finalize()) != self.digest {
            return Err(BlobError::Damaged(self.digest));
        }
        Ok(bytes)
    }

    /// The whole blob.
    pub(crate) async fn all(mut self) -> Result<Vec<u8>, BlobError> {
        let mut whole = Vec::new();
        loop {
            let bytes = self.chunk(VERIFY_BYTES).await?;
            if bytes.is_empty() {
                return Ok(whole);
            }
            whole.extend(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn written(blobs: &Blobs, parts: &[&[u8]]) -> (Digest, u64) {
        let mut writer = blobs.create().await.unwrap();
        for part in parts {
            writer.write(part.to_vec()).await.unwrap();
        }
        writer.keep().await.unwrap()
    }

    #[tokio::test]
    async fn a_blob_is_found_by_its_content_and_nothing_unfinished_stays() {
        for blocking in [Blocking::Threads, Blocking::Inline] {
            let state = tempfile::tempdir().unwrap();
            let blobs = Blobs::open(state.path(), blocking).unwrap();
            let (digest, size) = written(&blobs, &[b"one ", b"blob"]).await;
            assert_eq!((digest, size), (Digest::of(b"one blob"), 8));
            assert_eq!(blobs.size(digest).await.unwrap(), Some(8));

            let mut reader = blobs.read(digest).await.unwrap();
            assert_eq!(reader.chunk(5).await.unwrap(), b"one b");
            assert_eq!(reader.chunk(5).await.unwrap(), b"lob");
            assert_eq!(reader.chunk(5).await.unwrap(), b"");

            let mut dropped = blobs.create().await.unwrap();
            dropped.write(b"half".to_vec()).await.unwrap();
            drop(dropped);
            assert_eq!(fs::read_dir(state.path().join("blobs/staging")).unwrap().count(), 0);
            assert_eq!(blobs.size(Digest::of(b"half")).await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn a_damaged_blob_is_never_sent_as_whole() {
        let state = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(state.path(), Blocking::Inline).unwrap();
        let (digest, _) = written(&blobs, &[b"good"]).await;
        fs::write(blobs.path(digest), b"evil").unwrap();
        let mut reader = blobs.read(digest).await.unwrap();
        assert_eq!(reader.chunk(100).await.unwrap(), b"evil");
        assert!(matches!(reader.chunk(100).await, Err(BlobError::Damaged(_))));
        assert!(matches!(blobs.verify(digest).await, Err(BlobError::Damaged(_))));
        let read = blobs.read(digest).await.unwrap().all().await;
        assert!(matches!(read, Err(BlobError::Damaged(_))));
        written(&blobs, &[b"good"]).await;
        blobs.verify(digest).await.unwrap();
        assert_eq!(blobs.read(digest).await.unwrap().all().await.unwrap(), b"good");
        assert!(matches!(blobs.read(Digest::of(b"?")).await, Err(BlobError::Missing(_))));
    }
}
