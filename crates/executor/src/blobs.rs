//! Blobs: files named by the digest of their bytes, in a folder that agent and executor share.
//!
//! Invariant: a file that has a blob's name has all of its bytes; it appears by a rename.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use orchestrator_proto::domain::Blob;
use orchestrator_types::{ByteCount, Digest};

use crate::error::ExecuteError;

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct BlobFolder(PathBuf);

impl BlobFolder {
    /// Makes the folder if it is not there.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Stores bytes under their digest.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<Blob, ExecuteError> {
        let digest = Digest::of(bytes);
        let path = self.0.join(digest.to_string());
        write_whole(&path, bytes).map_err(|source| ExecuteError::File {
            action: "write",
            path,
            source,
        })?;
        Ok(Blob { digest, size_bytes: ByteCount::bytes(bytes.len() as u64) })
    }

    /// The bytes of a blob, whose digest is right.
    pub(crate) fn read(&self, digest: Digest) -> Result<Vec<u8>, ExecuteError> {
        let path = self.0.join(digest.to_string());
        let bytes = fs::read(&path).map_err(|source| ExecuteError::File {
            action: "read",
            path,
            source,
        })?;
        let found = Digest::of(&bytes);
        if found == digest {
            Ok(bytes)
        } else {
            let problem = format!("its bytes have digest {found}");
            Err(ExecuteError::Blob { digest, problem })
        }
    }
}

/// Writes a file that other processes see complete or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Executors of one host share folders; one process writes one file at a time.
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        drop(fs::remove_file(&draft));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_comes_back_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = BlobFolder::open(folder.path().join("blobs")).unwrap();
        let blob = blobs.write(b"rows").unwrap();
        assert_eq!(blob.size_bytes, ByteCount::bytes(4));
        assert_eq!(blobs.read(blob.digest).unwrap(), b"rows");
        let names: Vec<_> = fs::read_dir(folder.path().join("blobs")).unwrap().collect();
        assert_eq!(names.len(), 1, "no draft stays behind");
        fs::write(folder.path().join("blobs").join(blob.digest.to_string()), b"rowz").unwrap();
        let damaged = blobs.read(blob.digest).unwrap_err();
        assert!(damaged.message().contains("its bytes have digest"), "{damaged}");
        let absent = blobs.read(Digest::of(b"other")).unwrap_err();
        assert!(matches!(absent, ExecuteError::File { action: "read", .. }), "{absent}");
    }
}
