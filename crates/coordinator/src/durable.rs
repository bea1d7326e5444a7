//! Folders that are still there after a power cut.
//!
//! A file that was synced is lost with its folder's entry; so is a folder with its parent's.

use std::{fs, io, os::unix::fs::DirBuilderExt as _, path::Path};

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

/// Creates `folder` and its parents, durably. What is kept there is for its owner only.
pub(crate) fn create_all(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for parent in missing.iter().filter_map(|folder| folder.parent()) {
        // The parent of a relative path's first folder is the empty path: the working folder.
        sync(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_folder_is_created_with_its_parents_and_twice() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("a/b/c");
        super::create_all(&folder).unwrap();
        super::create_all(&folder).unwrap();
        let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "results are nobody else's");
        let file = state.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(super::create_all(&file.join("below")).is_err());
    }
}
