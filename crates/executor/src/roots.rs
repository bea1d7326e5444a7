//! Folders outside of which no image is opened.
//!
//! The agent resolves the paths that an evaluation names. What a captions file or a folder of images
//! leads to is known only where it is read: here. A captions file may name a picture by an absolute
//! path or climb out of its folder, and a picture may be a link.
//!
//! Invariant: the unit fails as a whole. Set aside as bad samples, the pictures that one worker may
//! not read would be counted there and not on the next worker. As for the agent, a link that is
//! changed after the look is not caught.

use std::path::{Component, Path, PathBuf};

use orchestrator_data::dataset::Sample;

use crate::error::ExecuteError;

/// The folders, without links; none: everything may be opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots(Vec<PathBuf>);

impl Roots {
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// Refuses samples that lie elsewhere.
    pub(crate) fn require(&self, samples: &[Sample]) -> Result<(), ExecuteError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let outside = samples.iter().find(|sample| !self.contains(&sample.path));
        outside.map_or(Ok(()), |Sample { id, path, .. }| {
            Err(ExecuteError::Outside { sample: id.clone(), path: path.clone() })
        })
    }

    fn contains(&self, path: &Path) -> bool {
        let within = |path: &Path| self.0.iter().any(|folder| path.starts_with(folder));
        match path.canonicalize() {
            Ok(real) => within(&real),
            // Whoever opens it says what is wrong with it. Of other places nothing is told, not even
            // that nothing is there.
            Err(_) => within(path) && path.components().all(|part| part != Component::ParentDir),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use orchestrator_types::{ByteCount, SampleId};

    use super::*;

    #[test]
    fn only_pictures_inside_a_root_are_opened() {
        let disk = tempfile::tempdir().unwrap();
        let disk = disk.path().canonicalize().unwrap();
        for folder in ["root/sub", "other", "root-too"] {
            fs::create_dir_all(disk.join(folder)).unwrap();
            fs::write(disk.join(folder).join("a.jpg"), "").unwrap();
        }
        symlink(disk.join("other/a.jpg"), disk.join("root/out.jpg")).unwrap();
        symlink(disk.join("root/sub/a.jpg"), disk.join("root/in.jpg")).unwrap();
        let roots = Roots::new(vec![disk.join("root")]);
        let told = |path: &str| {
            let (id, path) = (SampleId(path.to_owned()), disk.join(path));
            let sample = Sample { id, path, bytes: ByteCount::ZERO, label: None };
            roots.require(&[sample]).map_err(|error| error.to_string())
        };
        for inside in ["root/sub/a.jpg", "root/in.jpg", "root/sub/../in.jpg", "root/nothing.jpg"] {
            assert_eq!(told(inside), Ok(()), "{inside}");
        }
        let outside = [
            "other/a.jpg",
            "root-too/a.jpg",
            "root/out.jpg",
            "root/../other/a.jpg",
            "other/nothing.jpg",
            "root/../other/nothing.jpg",
        ];
        for path in outside {
            let error = told(path).unwrap_err();
            assert!(error.starts_with(&format!("sample {path}: ")), "{error}");
            assert!(error.contains("in none of this worker's data roots"), "{error}");
        }
        let anywhere = Roots::default();
        let path = disk.join("other/a.jpg");
        let id = SampleId("a".to_owned());
        anywhere.require(&[Sample { id, path, bytes: ByteCount::ZERO, label: None }]).unwrap();
    }
}
