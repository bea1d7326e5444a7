//! Embeddings and predictions, stored by their content: in a folder or in a bucket.
//!
//! Invariant: what is under a digest's name is complete and durable, and its bytes are hashed again
//! whenever they are sent. Nothing that is written or read is held whole, unless asked for.

mod bucket;
mod local;
mod place;
mod recent;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use orchestrator_proto::{Blocking, Defect};
use orchestrator_types::Digest;
use tokio::time::Instant;
use tonic::codegen::Bytes;

pub use self::place::{BlobPlace, ParsePlaceError};
pub(crate) use self::recent::GRACE;
use self::{
    bucket::{Bucket, Download, Upload},
    local::{Draft, Folder, Source},
    recent::Recent,
};

/// Bytes hashed at a time.
const VERIFY_BYTES: usize = 1 << 20;

/// Why a blob cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is no such blob.
    #[error("blob {0} is not here")]
    Missing(Digest),
    /// It no longer holds what its name says.
    #[error("blob {0} is damaged")]
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
    /// A bucket cannot be used.
    #[error("cannot {action} {url}; {advice}")]
    Object {
        /// What was tried.
        action: &'static str,
        /// Where.
        url: String,
        /// What to do.
        advice: &'static str,
        /// Why not.
        #[source]
        source: Box<object_store::Error>,
    },
    /// The sweep removes it right now.
    #[error("blob {0} was not wanted for long and is being removed; send it again")]
    Leaving(Digest),
    /// See [`Defect`].
    #[error(transparent)]
    Defect(#[from] Defect),
}

/// Where a blob lies in the folder `root`.
pub(crate) fn path_in(root: &Path, digest: Digest) -> PathBuf {
    let name = digest.to_string();
    root.join(&name[..2]).join(name)
}

/// A blob that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub digest: Digest,
    /// When it was stored last, milliseconds since 1970.
    pub modified_unix_ms: i64,
}

/// The blobs of one coordinator.
#[derive(Debug)]
pub(crate) struct Blobs {
    keeper: Keeper,
    recent: Arc<Recent>,
}

#[derive(Debug)]
enum Keeper {
    Folder(Folder),
    Bucket(Bucket),
}

impl Blobs {
    /// The blobs in `place` of the store in the folder `state`. Elsewhere they lie under `identity`,
    /// the store's own: two stores never delete each other's.
    pub(crate) async fn open(
        place: &BlobPlace,
        state: &Path,
        identity: u64,
        blocking: Blocking,
    ) -> Result<Self, BlobError> {
        let own = format!("{identity:016x}");
        let keeper = match place {
            BlobPlace::State => Self::folder(state.join("blobs"), blocking).await?,
            BlobPlace::Folder(folder) => Self::folder(folder.join(own), blocking).await?,
            BlobPlace::Bucket(url) => {
                let bucket = Bucket::open(url, &own, &environment())?;
                bucket.probe().await?;
                Keeper::Bucket(bucket)
            }
        };
        Ok(Self { keeper, recent: Arc::default() })
    }

    async fn folder(root: PathBuf, blocking: Blocking) -> Result<Keeper, BlobError> {
        let opened = blocking.run(move || Folder::open(&root, blocking)).await??;
        Ok(Keeper::Folder(opened))
    }

    /// Size of a blob in bytes; `None` if it is not there. Who asks wants to commit it.
    pub(crate) async fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        if !self.recent.want(digest, Instant::now()) {
            return Ok(None);
        }
        match &self.keeper {
            Keeper::Folder(folder) => folder.size(digest).await,
            Keeper::Bucket(bucket) => bucket.size(digest).await,
        }
    }

    /// Whether a blob is there and whole: its bytes are hashed.
    pub(crate) async fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        let mut reader = self.read(digest).await?;
        while !reader.chunk(VERIFY_BYTES).await?.is_empty() {}
        Ok(())
    }

    /// Starts a new blob.
    pub(crate) async fn create(&self) -> Result<BlobWriter, BlobError> {
        let sink = match &self.keeper {
            Keeper::Folder(folder) => Sink::Draft(folder.create().await?),
            Keeper::Bucket(bucket) => Sink::Upload(bucket.create()),
        };
        let recent = self.recent.clone();
        Ok(BlobWriter { sink, recent, hasher: blake3::Hasher::new(), size_bytes: 0 })
    }

    /// Starts reading a blob.
    pub(crate) async fn read(&self, digest: Digest) -> Result<BlobReader, BlobError> {
        let origin = match &self.keeper {
            Keeper::Folder(folder) => Origin::Source(folder.read(digest).await?),
            Keeper::Bucket(bucket) => Origin::Download(bucket.read(digest).await?),
        };
        Ok(BlobReader { digest, origin, hasher: blake3::Hasher::new() })
    }

    /// At most `limit` blobs in order of their digests, after `after`.
    pub(crate) async fn list(
        &self,
        after: Option<Digest>,
        limit: usize,
    ) -> Result<Vec<Listed>, BlobError> {
        match &self.keeper {
            Keeper::Folder(folder) => folder.list(after, limit).await,
            Keeper::Bucket(bucket) => bucket.list(after, limit).await,
        }
    }

    /// Deletes a blob that no result names; `false` if somebody wanted it within [`GRACE`].
    pub(crate) async fn delete(&self, digest: Digest) -> Result<bool, BlobError> {
        if !self.recent.leave(digest, Instant::now()) {
            return Ok(false);
        }
        let deleted = match &self.keeper {
            Keeper::Folder(folder) => folder.delete(digest).await,
            Keeper::Bucket(bucket) => bucket.delete(digest).await,
        };
        self.recent.left(digest);
        deleted.map(|()| true)
    }
}

/// What the environment says, where it is text.
fn environment() -> Vec<(String, String)> {
    let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((key.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// A blob being written. Dropped before [`BlobWriter::keep`], nobody sees it.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    sink: Sink,
    recent: Arc<Recent>,
    hasher: blake3::Hasher,
    size_bytes: u64,
}

#[derive(Debug)]
enum Sink {
    Draft(Draft),
    Upload(Upload),
}

impl BlobWriter {
    /// From now on files are written by whoever writes, who may block: see [`Blocking::drive`].
    pub(crate) fn on_this_thread(&mut self) {
        if let Sink::Draft(draft) = &mut self.sink {
            draft.blocking = Blocking::Inline;
        }
    }

    /// Appends to the blob. After an error, it can only be abandoned.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), BlobError> {
        self.hasher.update(&bytes);
        self.size_bytes += bytes.len() as u64;
        match &mut self.sink {
            Sink::Draft(draft) => draft.write(bytes).await,
            Sink::Upload(upload) => upload.write(bytes).await,
        }
    }

    /// Bytes that were given to it.
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Makes the blob durable under its digest; returns digest and size.
    pub(crate) async fn keep(self) -> Result<(Digest, u64), BlobError> {
        let digest = Digest::from(self.hasher.finalize());
        if !self.recent.want(digest, Instant::now()) {
            return Err(BlobError::Leaving(digest));
        }
        match self.sink {
            Sink::Draft(draft) => draft.keep(digest).await?,
            Sink::Upload(upload) => upload.keep(digest).await?,
        }
        Ok((digest, self.size_bytes))
    }

    /// Removes what was written.
    pub(crate) async fn abandon(self) {
        match self.sink {
            Sink::Draft(draft) => drop(draft),
            Sink::Upload(upload) => upload.abandon().await,
        }
    }
}

/// A blob being read, and checked while it is.
pub(crate) struct BlobReader {
    digest: Digest,
    origin: Origin,
    hasher: blake3::Hasher,
}

enum Origin {
    Source(Source),
    Download(Download),
}

impl BlobReader {
    /// From now on files are read by whoever reads, who may block: see [`Blocking::drive`].
    pub(crate) fn on_this_thread(&mut self) {
        if let Origin::Source(source) = &mut self.origin {
            source.blocking = Blocking::Inline;
        }
    }

    /// The next at most `limit` bytes; none at the end.
    ///
    /// # Errors
    /// [`BlobError::Damaged`] at the end of a blob whose bytes are not those of its name.
    pub(crate) async fn chunk(&mut self, limit: usize) -> Result<Vec<u8>, BlobError> {
        let bytes = match &mut self.origin {
            Origin::Source(source) => source.chunk(limit).await?,
            Origin::Download(download) => download.chunk(limit).await?,
        };
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
