//! Blobs as files of one folder on this machine.
//!
//! Invariant: a file under its digest's name is complete and durable: it was written under another
//! name, synced and renamed.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use orchestrator_proto::Blocking;
use orchestrator_types::Digest;
use tonic::codegen::Bytes;

use super::{BlobError, Listed, path_in};
use crate::durable;

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BlobError + 'a {
    move |source| BlobError::File { action, path: path.to_owned(), source }
}

/// A folder of blobs; the store's lock keeps other processes out.
#[derive(Debug)]
pub(super) struct Folder {
    root: Arc<Path>,
    /// Names of files in work.
    next: AtomicU64,
    blocking: Blocking,
}

impl Folder {
    /// Makes the folder. Files that an earlier life left unfinished are removed. Blocks.
    pub(super) fn open(root: &Path, blocking: Blocking) -> Result<Self, BlobError> {
        let staging = root.join("staging");
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &staging)(error));
            }
            _ => {}
        }
        durable::create_all(&staging).map_err(failed("create", &staging))?;
        Ok(Self { root: root.into(), next: AtomicU64::new(0), blocking })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
    ) -> Result<T, BlobError> {
        self.blocking.run(work).await?
    }

    pub(super) async fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let path = path_in(&self.root, digest);
        let look = move || match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("look at", &path)(error)),
        };
        self.run(look).await
    }

    pub(super) async fn create(&self) -> Result<Draft, BlobError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join("staging").join(number.to_string());
        let (root, blocking) = (self.root.clone(), self.blocking);
        let create = move || {
            let file = File::create_new(&path).map_err(failed("create", &path))?;
            Ok(Draft { opened: Some(Opened { root, path, file }), blocking })
        };
        self.run(create).await
    }

    pub(super) async fn read(&self, digest: Digest) -> Result<Source, BlobError> {
        let path = path_in(&self.root, digest);
        let blocking = self.blocking;
        let open = move || match File::open(&path) {
            Ok(file) => Ok(Source { path: path.into(), file: file.into(), blocking }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(BlobError::Missing(digest))
            }
            Err(error) => Err(failed("open", &path)(error)),
        };
        self.run(open).await
    }

    pub(super) async fn delete(&self, digest: Digest) -> Result<(), BlobError> {
        let path = path_in(&self.root, digest);
        let delete = move || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &path)(error))
            }
            _ => Ok(()),
        };
        self.run(delete).await
    }

    /// At most `limit` blobs in order of their digests, after `after`.
    pub(super) async fn list(
        &self,
        after: Option<Digest>,
        limit: usize,
    ) -> Result<Vec<Listed>, BlobError> {
        let root = self.root.clone();
        self.run(move || list(&root, after, limit)).await
    }
}

/// One page of [`Folder::list`]. Blocks.
fn list(root: &Path, after: Option<Digest>, limit: usize) -> Result<Vec<Listed>, BlobError> {
    let first = after.map_or_else(String::new, |digest| digest.to_string());
    let mut found = Vec::new();
    for part in names(root)? {
        if found.len() >= limit || part.len() != 2 || part.as_str() < first.get(..2).unwrap_or("") {
            continue;
        }
        for name in names(&root.join(&part))? {
            let Ok(digest) = name.parse::<Digest>() else { continue };
            if found.len() < limit && after.is_none_or(|after| digest > after) {
                let path = root.join(&part).join(&name);
                found.extend(modified(&path)?.map(|at| Listed { digest, modified_unix_ms: at }));
            }
        }
    }
    Ok(found)
}

/// Sorted names in a folder.
fn names(folder: &Path) -> Result<Vec<String>, BlobError> {
    let entries = fs::read_dir(folder).map_err(failed("list", folder))?;
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let mut names: Vec<String> =
        entries.map(name).collect::<Result<_, _>>().map_err(failed("list", folder))?;
    names.sort_unstable();
    Ok(names)
}

/// When a file was written last, milliseconds since 1970; none if it has gone.
fn modified(path: &Path) -> Result<Option<i64>, BlobError> {
    match fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Ok(at) => {
            let since = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Ok(Some(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("look at", path)(error)),
    }
}

/// A file in work. Dropped before [`Draft::keep`], it leaves nothing.
#[derive(Debug)]
pub(super) struct Draft {
    /// Away only while a thread works with it.
    opened: Option<Opened>,
    pub(super) blocking: Blocking,
}

#[derive(Debug)]
struct Opened {
    root: Arc<Path>,
    path: PathBuf,
    file: File,
}

impl Draft {
    fn opened(&mut self) -> Opened {
        self.opened.take().expect("a draft that failed or was cut off is not used again")
    }

    /// Appends `bytes`.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), BlobError> {
        let mut opened = self.opened();
        let write = move || {
            opened.file.write_all(&bytes).map_err(failed("write", &opened.path))?;
            Ok::<_, BlobError>(opened)
        };
        self.opened = Some(self.blocking.run(write).await??);
        Ok(())
    }

    /// Makes it durable as `digest`. What lies there already is replaced, not trusted: it may be
    /// damaged.
    pub(super) async fn keep(mut self, digest: Digest) -> Result<(), BlobError> {
        let opened = self.opened();
        self.blocking.run(move || opened.keep(digest)).await?
    }
}

impl Opened {
    fn keep(self, digest: Digest) -> Result<(), BlobError> {
        let path = path_in(&self.root, digest);
        self.file.sync_all().map_err(failed("sync", &self.path))?;
        let folder = path.parent().expect("a blob lies in a folder");
        fs::create_dir_all(folder).map_err(failed("create", folder))?;
        fs::rename(&self.path, &path).map_err(failed("rename to", &path))?;
        for folder in [folder, &*self.root] {
            durable::sync(folder).map_err(failed("sync", folder))?;
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Renamed away after `keep`; otherwise the next start removes what this cannot.
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove an unfinished blob");
        }
    }
}

/// A file being read.
#[derive(Debug)]
pub(super) struct Source {
    path: Arc<Path>,
    file: Arc<File>,
    pub(super) blocking: Blocking,
}

impl Source {
    /// The next at most `limit` bytes; fewer only at the end.
    pub(super) async fn chunk(&mut self, limit: usize) -> Result<Vec<u8>, BlobError> {
        let (path, file) = (self.path.clone(), self.file.clone());
        let read = move || {
            let mut bytes = Vec::with_capacity(limit);
            let mut part = (&*file).take(limit as u64);
            part.read_to_end(&mut bytes).map_err(failed("read", &path))?;
            Ok(bytes)
        };
        self.blocking.run(read).await?
    }
}
