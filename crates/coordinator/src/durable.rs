//! Folders that are still there after a power cut.
//!
//! A file that was synced is lost with its folder's entry; so is a folder with its parent's.

use std::{fs, io, path::Path};

/// What everybody is told while nothing can be stored.
pub(crate) const DISK_FULL: &str =
    "the coordinator's disk is full; it goes on by itself when there is space";

/// Whether a file system has no room left, for us or at all.
pub(crate) fn disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes the entries of `folder` durable.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// Creates `folder` and its parents, durably.
pub(crate) fn create_all(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(folder)?;
    for parent in missing.iter().filter_map(|folder| folder.parent()) {
        // The parent of a relative path's first folder is the empty path: the working folder.
        sync(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_folder_is_created_with_its_parents_and_twice() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("a/b/c");
        super::create_all(&folder).unwrap();
        super::create_all(&folder).unwrap();
        assert!(folder.is_dir());
        let file = state.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(super::create_all(&file.join("below")).is_err());
    }
}
