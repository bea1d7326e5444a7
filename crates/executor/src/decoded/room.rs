//! How many bytes the folder holds, and who leaves when there is no room.
//!
//! Invariant: the count, which lies in the lock file and changes under its lock alone, is never less
//! than the bytes of all files in the folder.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use nix::sys::statvfs::statvfs;
use tracing::debug;

use super::lock::{Lock, Locks};

/// Left free on the file system, which also holds blobs.
const LEFT_FREE: u64 = 256 << 20;

/// The folder's bytes.
#[derive(Debug)]
pub(super) struct Room {
    folder: PathBuf,
    limit: u64,
}

/// What the lock file says.
struct Count {
    now: u64,
    peak: u64,
}

impl Count {
    fn read(file: &File) -> Self {
        let mut bytes = [0; 16];
        // An empty file counts nothing.
        if file.read_exact_at(&mut bytes, 0).is_err() {
            return Self { now: 0, peak: 0 };
        }
        let (now, peak) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Self { now: number(now), peak: number(peak) }
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let bytes = [self.now.to_le_bytes(), self.peak.to_le_bytes()].concat();
        file.write_all_at(&bytes, 0)
    }
}

impl Room {
    pub(super) const fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit }
    }

    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Most bytes that were ever counted.
    pub(super) fn peak(locks: &Locks) -> io::Result<u64> {
        Ok(Count::read(&locks.file()?).peak)
    }

    /// Writes a file if there is room for it. Until all of it is there its checksum is wrong; who
    /// writes it has the image's lock.
    pub(super) fn write(&self, locks: &Locks, name: &str, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        if size > self.limit || !self.disk_has_room(size) {
            return Ok(());
        }
        let Some(file) = self.reserve(locks, name, size)? else { return Ok(()) };
        let written = file.write_all_at(bytes, 0);
        if written.is_err() {
            self.remove(locks, name);
        }
        written
    }

    /// Counts `size` bytes and makes the file that has them, both before anybody else counts.
    fn reserve(&self, locks: &Locks, name: &str, size: u64) -> io::Result<Option<File>> {
        let Some(lock) = locks.of_count() else { return Ok(None) };
        let mut count = Count::read(lock.file());
        if count.now.saturating_add(size) > self.limit {
            count.now = self.make_room(size)?;
            count.write(lock.file())?;
        }
        let after = count.now.saturating_add(size);
        if after > self.limit {
            return Ok(None);
        }
        // Counted first: whatever fails now, there are not more bytes than the count says.
        Count { now: after, peak: count.peak.max(after) }.write(lock.file())?;
        let file = File::create_new(self.folder.join(name))?;
        file.set_len(size)?;
        Ok(Some(file))
    }

    /// Takes a file out.
    pub(super) fn remove(&self, locks: &Locks, name: &str) {
        let path = self.folder.join(name);
        let Some(lock) = locks.of_count() else { return };
        Self::remove_counted(&path, &lock).unwrap_or_else(
            |error| debug!(path = %path.display(), %error, "cannot remove a decoded sample"),
        );
    }

    fn remove_counted(path: &Path, lock: &Lock) -> io::Result<()> {
        let size = fs::metadata(path)?.len();
        fs::remove_file(path)?;
        let count = Count::read(lock.file());
        Count { now: count.now.saturating_sub(size), ..count }.write(lock.file())
    }

    /// Removes what was not used for longest until there is room for `size` bytes and an eighth of
    /// the limit beside, so that files are not listed for each image. Returns what is left, counted
    /// anew.
    fn make_room(&self, size: u64) -> io::Result<u64> {
        let mut files = self.files()?;
        files.sort();
        let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
        let aim = self.limit.saturating_sub(size).min(self.limit - self.limit / 8);
        for (_, size, path) in files {
            if total <= aim {
                break;
            }
            fs::remove_file(path)?;
            total -= size;
        }
        Ok(total)
    }

    /// Last use, size and path of every image. Under the lock nobody makes or removes one.
    fn files(&self) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name() == super::lock::FILE {
                continue;
            }
            let metadata = entry.metadata()?;
            files.push((metadata.modified()?, metadata.len(), entry.path()));
        }
        Ok(files)
    }

    fn disk_has_room(&self, size: u64) -> bool {
        let Ok(found) = statvfs(&self.folder) else { return false };
        found.blocks_available().saturating_mul(found.fragment_size()) >= size + LEFT_FREE
    }
}
