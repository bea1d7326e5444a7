//! Locks between the threads of all executors that share a folder: ranges of one file, which the
//! kernel frees when their holder dies.
//!
//! Invariant: nobody waits for ever. A holder may have been stopped, and what is locked here is
//! never worth a unit.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

use crate::attempt::Attempt;

/// The file's name; it begins with a dot so that nobody takes it for an image.
pub(super) const FILE: &str = ".locks";
/// Reading and decoding the largest picture takes a second or two.
const IMAGE: Duration = Duration::from_secs(20);
/// Counting takes microseconds; making room looks at every file.
const COUNT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_micros(200);

/// The file.
#[derive(Debug)]
pub(super) struct Locks {
    path: PathBuf,
}

/// A range of the file that is ours until this is dropped.
pub(super) struct Lock {
    file: File,
}

impl Lock {
    /// The file, for what the lock of the count guards.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }
}

impl Locks {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let locks = Self { path: folder.join(FILE) };
        locks.file()?;
        Ok(locks)
    }

    /// A file description of its own: locks of one description do not exclude each other.
    pub(super) fn file(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path)
    }

    /// The lock of the image with this name, a digest; `None` if the attempt is to stop first.
    pub(super) fn of_image(&self, name: &str, attempt: &Attempt) -> Option<Lock> {
        // 60 bits of the digest; two images that share them wait for each other.
        let at = i64::from_str_radix(name.get(..15)?, 16).ok()?;
        self.wait(at + 1, IMAGE, || attempt.is_stopped())
    }

    /// The lock of the count.
    pub(super) fn of_count(&self) -> Option<Lock> {
        self.wait(0, COUNT, || false)
    }

    fn wait(&self, at: i64, patience: Duration, stop: impl Fn() -> bool) -> Option<Lock> {
        let file = self.file().ok()?;
        let started = Instant::now();
        loop {
            match take(&file, at) {
                Ok(()) => return Some(Lock { file }),
                Err(Errno::EAGAIN | Errno::EACCES) => {}
                // A file system without locks: there is no cache then.
                Err(_) => return None,
            }
            if stop() || started.elapsed() > patience {
                return None;
            }
            thread::sleep(LOOK);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the kernel's constants are small")]
fn take(file: &File, at: i64) -> Result<(), Errno> {
    let range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&range)).map(drop)
}
