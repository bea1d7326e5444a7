//! Scratch folders of embedded workers: one for each process, removed when it ends, swept by a
//! later one if it was killed.
//!
//! Invariant: a folder is swept only if it is this user's, has been there for a while, and nobody
//! holds the lock that its worker takes.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use tempfile::TempDir;

const PREFIX: &str = "orchestrator-";
/// A folder younger than this may belong to a worker that has not locked it yet.
const SETTLED: Duration = Duration::from_mins(1);

/// A new scratch folder; those of killed processes are removed.
pub(crate) fn create() -> anyhow::Result<TempDir> {
    let parent = std::env::temp_dir();
    let made = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir_in(&parent)
        .with_context(|| format!("failed to create a folder in {}", parent.display()))?;
    if let Ok(own) = made.path().metadata() {
        sweep(&parent, own.uid(), SystemTime::now() - SETTLED);
    }
    Ok(made)
}

/// Removes what killed processes of `user` have left in `parent` before `settled`. That is tidiness: what
/// cannot be removed stays.
fn sweep(parent: &Path, user: u32, settled: SystemTime) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && let Err(error) = sweep_one(&entry.path(), user, settled) {
            tracing::debug!(%error, folder = %entry.path().display(), "left behind");
        }
    }
}

fn sweep_one(folder: &Path, user: u32, settled: SystemTime) -> io::Result<()> {
    // Not through a link, which could lead anywhere.
    let found = fs::symlink_metadata(folder)?;
    let own = found.is_dir() && found.uid() == user;
    if !own || found.modified()? > settled {
        return Ok(());
    }
    match File::open(folder.join("lock")) {
        Ok(lock) if lock.try_lock().is_ok() => fs::remove_dir_all(folder),
        Ok(_) => Ok(()),
        // Killed before it was used, or something else with our prefix: then it is not empty.
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir(folder),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_uses_is_swept() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str, lock: bool| {
            let folder = parent.path().join(name);
            fs::create_dir_all(folder.join("blobs")).unwrap();
            lock.then(|| File::create(folder.join("lock")).unwrap())
        };
        folder("orchestrator-dead", true);
        folder("orchestrator-other", false);
        folder("unrelated", true);
        let held = folder("orchestrator-live", true).unwrap();
        held.lock().unwrap();
        fs::create_dir(parent.path().join("orchestrator-empty")).unwrap();
        std::os::unix::fs::symlink(
            parent.path().join("unrelated"),
            parent.path().join("orchestrator-link"),
        )
        .unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(parent.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let user = parent.path().metadata().unwrap().uid();
        let before = names();
        sweep(parent.path(), user, SystemTime::now() - SETTLED);
        assert_eq!(names(), before, "all of it is new");
        sweep(parent.path(), user, SystemTime::now() + SETTLED);
        let kept = ["orchestrator-link", "orchestrator-live", "orchestrator-other", "unrelated"];
        assert_eq!(names(), kept);
        assert!(parent.path().join("unrelated/lock").is_file());
    }
}
