//! The scratch folder: locked by one agent, with sockets, and a folder each for blobs and decoded
//! samples.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{Config, StartError, blobs::Blobs};

/// `sun_path` of `sockaddr_un` has 108 bytes, and the last one is zero.
const SOCKET_PATH_BYTES: usize = 107;
const DECODED: &str = "decoded";

/// An agent's own folder. The lock is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: PathBuf,
    blobs: Arc<Blobs>,
    _lock: File,
}

impl Scratch {
    /// Makes the folders for scratch and cache, locks the former and empties it.
    pub(crate) fn open(config: &Config) -> Result<Self, StartError> {
        let folder = config.scratch.clone();
        // Others must not talk to our executors: they read files with our rights.
        private_folder(&folder)?;
        private_folder(&config.cache)?;
        let lock = lock(&folder)?;
        let blobs = folder.join("blobs");
        let blobs = Blobs::empty(blobs.clone(), config.limits.blobs)
            .map_err(folder_error("empty", &blobs))?;
        let decoded = folder.join(DECODED);
        emptied(&decoded).map_err(folder_error("empty", &decoded))?;
        has_room(&folder).map_err(folder_error("write to", &folder))?;
        Ok(Self { folder, blobs: Arc::new(blobs), _lock: lock })
    }

    /// Where executors keep decoded samples.
    pub(crate) fn decoded(&self) -> PathBuf {
        self.folder.join(DECODED)
    }

    pub(crate) const fn blobs(&self) -> &Arc<Blobs> {
        &self.blobs
    }

    /// Where executor number `index` listens.
    pub(crate) fn socket(&self, index: usize) -> Result<PathBuf, StartError> {
        let path = self.folder.join(format!("{index}.sock"));
        let length = path.as_os_str().as_bytes().len();
        if length > SOCKET_PATH_BYTES {
            return Err(StartError::SocketPath { path, length });
        }
        Ok(path)
    }
}

/// What an earlier agent's executors counted is nobody's.
fn emptied(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(folder),
    }
}

/// On a full volume folders and sockets can still be made: without this look units would be taken, and
/// each would fail with its result in hand.
fn has_room(folder: &Path) -> io::Result<()> {
    let probe = folder.join("probe");
    let written = fs::write(&probe, vec![0; 64 << 10]);
    written.and(fs::remove_file(&probe))
}

fn lock(folder: &Path) -> Result<File, StartError> {
    let path = folder.join("lock");
    let file = File::create(&path).map_err(folder_error("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StartError::ScratchInUse { path: folder.to_owned() }),
        Err(TryLockError::Error(error)) => Err(folder_error("lock", &path)(error)),
    }
}

fn private_folder(path: &Path) -> Result<(), StartError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(folder_error("create", path))
}

fn folder_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> StartError + 'a {
    move |source| StartError::Folder { action, path: path.to_owned(), source }
}
