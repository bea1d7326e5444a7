//! Folders outside of which no file of an evaluation is opened.
//!
//! The agent resolves the paths that an evaluation names. What a captions file, a folder of images or
//! a model folder leads to is known only where it is read: here. A captions file may name a picture by
//! an absolute path or climb out of its folder, and a picture or a file of weights may be a link.
//!
//! Invariant: the unit fails as a whole. Set aside as bad samples, the pictures that one worker may
//! not read would be counted there and not on the next worker. What is changed after this look is
//! caught when the file is opened ([`Files`]).

use std::{io, path::PathBuf};

use orchestrator_data::dataset::Sample;
use orchestrator_files::Files;

use crate::error::ExecuteError;

/// What may be opened: what lies inside these folders, or, without any, everything.
pub(crate) fn files(folders: &[PathBuf]) -> io::Result<Files> {
    if folders.is_empty() { Ok(Files::anywhere()) } else { Files::beneath(folders) }
}

/// Refuses samples that lie elsewhere.
pub(crate) fn require(files: &Files, samples: &[Sample]) -> Result<(), ExecuteError> {
    let outside = samples.iter().find(|sample| !files.admits(&sample.path));
    outside.map_or(Ok(()), |Sample { id, path, .. }| {
        Err(ExecuteError::Outside { sample: id.clone(), path: path.clone() })
    })
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
        let inside_root = files(&[disk.join("root")]).unwrap();
        let told = |path: &str| {
            let (id, path) = (SampleId(path.to_owned()), disk.join(path));
            let sample = Sample { id, path, bytes: ByteCount::ZERO, label: None };
            require(&inside_root, &[sample]).map_err(|error| error.to_string())
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
        let anywhere = files(&[]).unwrap();
        let path = disk.join("other/a.jpg");
        let id = SampleId("a".to_owned());
        require(&anywhere, &[Sample { id, path, bytes: ByteCount::ZERO, label: None }]).unwrap();
    }
}
