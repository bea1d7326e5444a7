//! Which paths of this host an evaluation may name.
//!
//! On a cluster whoever submits is not who runs the worker, so a worker reads only below the *data
//! roots* that it was started with: `NAME:rest/of/path`, or an absolute path inside one. Embedded,
//! both are the same user, and any path is good. Pictures to which a dataset leads are looked at by
//! the executor, which is told the roots.
//!
//! Invariant: what [`DataAccess::resolve`] gives lies inside a root after every link and every `..`
//! was followed, unless access is [`DataAccess::anywhere`]. A link that is changed after the look is
//! not caught: a data root is to be writable by people that the worker trusts.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use orchestrator_proto::domain::{
    AssignedWork, Assignment, DatasetSource, ModelSource, SourceKind,
};
use orchestrator_types::{DataRootName, ParseNameError, below_data_root};

/// A folder of data and the name that evaluations call it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRoot {
    /// The name.
    pub name: DataRootName,
    /// The folder on this host.
    pub folder: PathBuf,
}

/// Why text is no data root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDataRootError {
    /// There is no `=` in it.
    #[error("`{0}` is not a data root; write NAME=DIR, for example data=/srv/data")]
    Shape(String),
    /// The name is none.
    #[error(transparent)]
    Name(#[from] ParseNameError),
}

impl FromStr for DataRoot {
    type Err = ParseDataRootError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shape = || ParseDataRootError::Shape(text.to_owned());
        let (name, folder) = text.split_once('=').ok_or_else(shape)?;
        if folder.is_empty() {
            return Err(shape());
        }
        Ok(Self { name: name.parse()?, folder: folder.into() })
    }
}

/// Why a data root cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum DataRootError {
    /// Its folder cannot be used.
    #[error("the data root `{name}` names {folder}, which cannot be used")]
    Folder {
        /// Its name.
        name: DataRootName,
        /// Its folder.
        folder: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another one has its name.
    #[error("there are two data roots `{0}`; give each a name of its own")]
    Twice(DataRootName),
}

/// Why a path is not read.
#[derive(Debug, thiserror::Error)]
pub enum DataPathError {
    /// This worker reads nothing.
    #[error(
        "{path} cannot be read: this worker declares no data root; start it with `--data-root \
         NAME=DIR`, where DIR holds the data"
    )]
    NoRoot {
        /// The path.
        path: PathBuf,
    },
    /// No root has this name.
    #[error("{path} names the data root `{name}`, and there is none here; known: {known}")]
    UnknownRoot {
        /// The path.
        path: PathBuf,
        /// What it calls the root.
        name: DataRootName,
        /// The roots that there are.
        known: Roots,
    },
    /// It is in no root.
    #[error(
        "{path} is in none of this worker's data roots ({known}); move the data there, or start \
         the worker with one more `--data-root NAME=DIR`"
    )]
    Outside {
        /// The path.
        path: PathBuf,
        /// The roots that there are.
        known: Roots,
    },
    /// It starts at a root and ends elsewhere.
    #[error("{path} leaves its data root {folder}; it may neither climb out nor follow a link out")]
    Leaves {
        /// The path.
        path: PathBuf,
        /// The root's folder.
        folder: PathBuf,
    },
    /// There is nothing there.
    #[error("{path} cannot be found on this worker")]
    Missing {
        /// The path.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// Data roots as messages name them: `data=/srv/data, models=/srv/models`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots(BTreeMap<DataRootName, PathBuf>);

impl fmt::Display for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().map(|(name, folder)| format!("{name}={}", folder.display()));
        let shown: Vec<String> = shown.collect();
        f.write_str(if shown.is_empty() { "none" } else { "" })?;
        f.write_str(&shown.join(", "))
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct DataAccess {
    /// Every folder without links.
    roots: Roots,
    anywhere: bool,
}

impl DataAccess {
    /// Only what lies below these roots.
    ///
    /// # Errors
    /// See [`DataRootError`].
    pub fn inside(roots: Vec<DataRoot>) -> Result<Self, DataRootError> {
        let mut known = BTreeMap::new();
        for DataRoot { name, folder } in roots {
            let real = folder.canonicalize().and_then(|real| {
                if real.is_dir() { Ok(real) } else { Err(io::ErrorKind::NotADirectory.into()) }
            });
            let real = real.map_err(|source| DataRootError::Folder {
                name: name.clone(),
                folder,
                source,
            })?;
            if known.insert(name.clone(), real).is_some() {
                return Err(DataRootError::Twice(name));
            }
        }
        Ok(Self { roots: Roots(known), anywhere: false })
    }

    /// Any path, and names for these roots.
    ///
    /// # Errors
    /// See [`DataRootError`].
    pub fn anywhere(roots: Vec<DataRoot>) -> Result<Self, DataRootError> {
        Ok(Self { anywhere: true, ..Self::inside(roots)? })
    }

    /// Where `path`, absolute or `NAME:rest`, lies on this host.
    ///
    /// # Errors
    /// See [`DataPathError`].
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, DataPathError> {
        let text = path.to_str().unwrap_or_default();
        if let Some((name, rest)) = below_data_root(text) {
            let unknown = || DataPathError::UnknownRoot {
                path: path.to_owned(),
                name: name.clone(),
                known: self.roots.clone(),
            };
            let folder = self.roots.0.get(&name).ok_or_else(unknown)?;
            let full = folder.join(rest);
            if real(&full)?.starts_with(folder) {
                return Ok(full);
            }
            return Err(DataPathError::Leaves { path: path.to_owned(), folder: folder.clone() });
        }
        if self.anywhere {
            return Ok(path.to_owned());
        }
        if self.roots.0.is_empty() {
            return Err(DataPathError::NoRoot { path: path.to_owned() });
        }
        self.contained(path).map(|()| path.to_owned())
    }

    /// The folders that images may be read from; none: any. A worker that may read nothing has none
    /// either, and its executors get no work ([`DataAccess::admit`]).
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        if self.anywhere { Vec::new() } else { self.roots.0.values().cloned().collect() }
    }

    /// Whether an absolute path ends inside some root.
    fn contained(&self, path: &Path) -> Result<(), DataPathError> {
        let outside =
            || DataPathError::Outside { path: path.to_owned(), known: self.roots.clone() };
        let named = self.roots.0.values().find(|folder| path.starts_with(folder));
        match (real(path), named) {
            (Ok(real), _) if self.roots.0.values().any(|folder| real.starts_with(folder)) => Ok(()),
            (Ok(_), Some(folder)) => {
                Err(DataPathError::Leaves { path: path.to_owned(), folder: folder.clone() })
            }
            (Err(missing), Some(_)) => Err(missing),
            // A worker tells nothing of the rest of its disk, not even whether something is there.
            (Ok(_) | Err(_), None) => Err(outside()),
        }
    }

    /// The assignment with every path resolved.
    ///
    /// # Errors
    /// See [`DataPathError`].
    pub(crate) fn admit(&self, mut assignment: Assignment) -> Result<Assignment, DataPathError> {
        match &mut assignment.work {
            AssignedWork::EncodeTexts(work) => {
                self.model(&mut work.model)?;
                self.dataset(&mut work.dataset)?;
            }
            AssignedWork::EncodeImages(work) => {
                self.model(&mut work.model)?;
                self.dataset(&mut work.dataset)?;
            }
            AssignedWork::Rank(work) => self.dataset(&mut work.dataset)?,
        }
        Ok(assignment)
    }

    fn model(&self, model: &mut ModelSource) -> Result<(), DataPathError> {
        model.folder = self.resolve(&model.folder)?;
        Ok(())
    }

    fn dataset(&self, dataset: &mut DatasetSource) -> Result<(), DataPathError> {
        match &mut dataset.source {
            SourceKind::ImageFolder { root, classes } => {
                *root = self.resolve(root)?;
                if let Some(classes) = classes {
                    *classes = self.resolve(classes)?;
                }
            }
            SourceKind::Captions { file } => *file = self.resolve(file)?,
        }
        Ok(())
    }
}

/// The path without links and dots.
fn real(path: &Path) -> Result<PathBuf, DataPathError> {
    let missing = |source| DataPathError::Missing { path: path.to_owned(), source };
    path.canonicalize().map_err(missing)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    /// `root/clip/weights`, `root/out` → outside, `root/in` → `root/clip`, and `other/secret`.
    fn disk() -> TempDir {
        let disk = tempfile::tempdir().unwrap();
        fs::create_dir_all(disk.path().join("root/clip")).unwrap();
        fs::create_dir_all(disk.path().join("other")).unwrap();
        fs::write(disk.path().join("root/clip/weights"), "").unwrap();
        fs::write(disk.path().join("other/secret"), "").unwrap();
        symlink(disk.path().join("other"), disk.path().join("root/out")).unwrap();
        symlink("clip", disk.path().join("root/in")).unwrap();
        disk
    }

    fn access(disk: &TempDir) -> DataAccess {
        let folder = disk.path().join("root");
        DataAccess::inside(vec![DataRoot { name: "data".parse().unwrap(), folder }]).unwrap()
    }

    fn told(disk: &TempDir, access: &DataAccess, path: &str) -> String {
        let path = path.replace("DISK", disk.path().to_str().unwrap());
        let told = match access.resolve(Path::new(&path)) {
            Ok(path) => path.display().to_string(),
            Err(error) => format!("refused: {error}"),
        };
        let real = disk.path().canonicalize().unwrap();
        told.replace(real.to_str().unwrap(), "DISK").replace(disk.path().to_str().unwrap(), "DISK")
    }

    #[test]
    fn only_what_ends_inside_a_root_is_read() {
        let disk = disk();
        let access = access(&disk);
        let paths = [
            "data:clip/weights",
            "data:",
            "data:clip/../in/weights",
            "DISK/root/in/weights",
            "data:../other/secret",
            "data:out/secret",
            "data:/etc/passwd",
            "data:nothing",
            "models:clip",
            "DISK/root/out/secret",
            "DISK/root/clip/../../other/secret",
            "DISK/root/nothing",
            "DISK/other/secret",
            "DISK/other/nothing",
            "relative",
        ];
        let told = paths.map(|path| format!("{path}\n  {}", told(&disk, &access, path)));
        insta::assert_snapshot!(told.join("\n"));
    }

    #[test]
    fn without_roots_nothing_is_read_and_embedded_everything_is() {
        let disk = disk();
        let none = DataAccess::inside(Vec::new()).unwrap();
        insta::assert_snapshot!(told(&disk, &none, "/etc/passwd"), @"refused: /etc/passwd cannot be read: this worker declares no data root; start it with `--data-root NAME=DIR`, where DIR holds the data");
        let any = DataAccess { anywhere: true, ..access(&disk) };
        assert_eq!(told(&disk, &any, "/etc/passwd"), "/etc/passwd");
        assert_eq!(told(&disk, &any, "/nowhere"), "/nowhere");
        assert_eq!(told(&disk, &any, "data:clip"), "DISK/root/clip");
        assert!(told(&disk, &any, "data:out/secret").starts_with("refused: "));
    }

    #[test]
    fn a_root_is_a_folder_with_a_name_of_its_own() {
        let disk = disk();
        let root = |text: &str| -> DataRoot {
            text.replace("DISK", disk.path().to_str().unwrap()).parse().unwrap()
        };
        let refused = |roots: Vec<DataRoot>| DataAccess::inside(roots).unwrap_err();
        let twice = refused(vec![root("a=DISK/root"), root("a=DISK/other")]);
        assert!(matches!(twice, DataRootError::Twice(_)));
        for folder in ["a=DISK/nothing", "a=DISK/other/secret"] {
            assert!(matches!(refused(vec![root(folder)]), DataRootError::Folder { .. }));
        }
        for text in ["a", "a=", "=b", "a b=c"] {
            assert!(text.parse::<DataRoot>().is_err(), "{text}");
        }
    }
}
