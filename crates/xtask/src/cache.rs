//! The cache folder that all checkouts of one user share, and locks inside it.

use anyhow::{Context, Result, bail};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// `$ORCHESTRATOR_CACHE`, else `$XDG_CACHE_HOME/orchestrator`, else `~/.cache/orchestrator`.
pub(crate) fn root() -> Result<PathBuf> {
    choose(env::var_os("ORCHESTRATOR_CACHE"), env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
}

fn choose(
    ours: Option<OsString>,
    xdg: Option<OsString>,
    home: Option<OsString>,
) -> Result<PathBuf> {
    let given = |value: Option<OsString>| value.filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = given(ours) {
        return std::path::absolute(path).context("ORCHESTRATOR_CACHE is not a usable path");
    }
    // The XDG rules say that a relative value is ignored.
    if let Some(path) = given(xdg).filter(|path| path.is_absolute()) {
        return Ok(path.join("orchestrator"));
    }
    match given(home) {
        Some(path) => Ok(path.join(".cache/orchestrator")),
        None => bail!("no cache folder: set ORCHESTRATOR_CACHE (HOME is not set)"),
    }
}

/// An exclusive lock on a file, given back on drop, or by the kernel if the process is killed.
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Waits for the lock; says so when it has to.
    pub(crate) fn wait(path: &Path, who: &str) -> Result<Self> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => return Ok(Self { file }),
            Err(TryLockError::WouldBlock) => eprintln!("waiting for {who} ({})", path.display()),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { file })
    }

    /// The lock, or `None` if somebody holds it or the folder takes no locks.
    pub(crate) fn try_take(path: &Path) -> Option<Self> {
        let file = open(path).ok()?;
        file.try_lock().ok()?;
        Some(Self { file })
    }

    /// Lets the lock outlive an `exec` of this process: the program that takes its place holds it.
    pub(crate) fn keep_over_exec(&self) -> Result<()> {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        fcntl(&self.file, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot keep the lock")?;
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| {
            format!("cannot make {}; ORCHESTRATOR_CACHE names another folder", folder.display())
        })?;
    }
    File::options().create(true).truncate(false).write(true).open(path).with_context(|| {
        format!("cannot write {}; ORCHESTRATOR_CACHE names another folder", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_variable_wins_then_xdg_then_home() {
        let some = |value: &str| Some(OsString::from(value));
        let path = |ours, xdg, home| choose(ours, xdg, home).unwrap();
        assert_eq!(path(some("/a"), some("/b"), some("/c")), Path::new("/a"));
        assert_eq!(path(None, some("/b"), some("/c")), Path::new("/b/orchestrator"));
        assert_eq!(path(some(""), some("rel"), some("/c")), Path::new("/c/.cache/orchestrator"));
        assert!(choose(None, None, None).is_err());
    }

    #[test]
    fn a_lock_is_exclusive_until_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/lock");
        let held = Lock::try_take(&path).unwrap();
        assert!(Lock::try_take(&path).is_none());
        drop(held);
        assert!(Lock::try_take(&path).is_some());
    }
}
