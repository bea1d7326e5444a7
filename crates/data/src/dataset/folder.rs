//! Image folders: `root/CLASS/…/picture`.
//!
//! Invariant: the order of samples is that of their ids, whatever order the file system lists them
//! in. Links to files are followed, and so is a class folder that is a link; links to folders below
//! that are not, so a walk always ends. Hidden files are invisible.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use orchestrator_files::Files;
use orchestrator_types::{ByteCount, SampleId};

use super::{
    Class, Manifest, Sample, Warning,
    classes::{self, ClassList},
    has_picture_extension,
    problem::{Problem, Problems},
};

/// Reads the folder and its class list; problems and warnings go where they belong.
pub(super) fn read(
    root: &Path,
    classes: Option<&Path>,
    files: &Files,
    problems: &mut Problems,
) -> Manifest {
    let mut walk = Walk { problems, skipped: BTreeSet::new(), samples: Vec::new() };
    let (folders, outside) = walk.top(root);
    let list = match classes {
        Some(file) => classes::read(file, files, walk.problems),
        None => Some(ClassList::of_folders(folders.keys())),
    };
    if let (Some(list), Some(_)) = (&list, classes) {
        report_folders_without_class(&folders, &list.classes, walk.problems);
    }
    let ClassList { classes, templates } =
        list.unwrap_or_else(|| ClassList { classes: Vec::new(), templates: Vec::new() });
    let mut warnings = Vec::new();
    for (label, class) in (0..).zip(&classes) {
        let before = walk.samples.len();
        if let Some(folder) = folders.get(&class.name) {
            walk.class(folder, &class.name, label);
        }
        if walk.samples.len() == before {
            warnings.push(Warning::ClassWithoutImages { class: class.name.clone() });
        }
    }
    let Walk { skipped, mut samples, .. } = walk;
    samples.sort_by(|a, b| a.id.cmp(&b.id));
    warnings.extend(counted(outside, |count, example| Warning::OutsideClasses { count, example }));
    warnings.extend(counted(skipped, |count, example| Warning::SkippedFiles { count, example }));
    Manifest { samples, classes, templates, captions: Vec::new(), warnings }
}

fn counted(
    files: BTreeSet<PathBuf>,
    warning: impl FnOnce(u64, PathBuf) -> Warning,
) -> Option<Warning> {
    let count = files.len() as u64;
    files.into_iter().next().map(|example| warning(count, example))
}

fn report_folders_without_class(
    folders: &BTreeMap<String, PathBuf>,
    classes: &[Class],
    problems: &mut Problems,
) {
    let names: BTreeSet<&String> = classes.iter().map(|class| &class.name).collect();
    for name in folders.keys().filter(|name| !names.contains(name)) {
        let near = names
            .iter()
            .map(|known| (strsim::damerau_levenshtein(known, name), known))
            .filter(|(distance, _)| *distance <= 2)
            .min()
            .map(|(_, known)| (*known).clone());
        problems.push(Problem::FolderWithoutClass { name: name.clone(), near });
    }
}

struct Walk<'a> {
    problems: &'a mut Problems,
    skipped: BTreeSet<PathBuf>,
    samples: Vec<Sample>,
}

impl Walk<'_> {
    /// The class folders by name, and the pictures that lie beside them.
    fn top(&mut self, root: &Path) -> (BTreeMap<String, PathBuf>, BTreeSet<PathBuf>) {
        let (mut folders, mut outside) = (BTreeMap::new(), BTreeSet::new());
        for (path, name) in self.entries(root, "folder of class folders") {
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    folders.insert(name, path);
                }
                Ok(_) if has_picture_extension(&path) => {
                    outside.insert(path);
                }
                // A lone file beside the class folders (a licence, a list) is not worth a word.
                Ok(_) => {}
                Err(source) => self.problems.unreadable(&path, source),
            }
        }
        (folders, outside)
    }

    /// Adds every picture below `folder`, breadth first; depth is bounded by the file system.
    fn class(&mut self, folder: &Path, class: &str, label: u32) {
        let mut open = vec![(folder.to_owned(), class.to_owned())];
        while let Some((folder, prefix)) = open.pop() {
            for (path, name) in self.entries(&folder, "folder") {
                let id = format!("{prefix}/{name}");
                match fs::symlink_metadata(&path) {
                    Ok(metadata) if metadata.is_dir() => open.push((path, id)),
                    Ok(_) => self.file(path, id, label),
                    Err(source) => self.problems.unreadable(&path, source),
                }
            }
        }
    }

    fn file(&mut self, path: PathBuf, id: String, label: u32) {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() && has_picture_extension(&path) => {
                let bytes = ByteCount::bytes(metadata.len());
                self.samples.push(Sample { id: SampleId(id), path, bytes, label: Some(label) });
            }
            Ok(_) => {
                self.skipped.insert(path);
            }
            Err(source) => self.problems.unreadable(&path, source),
        }
    }

    /// Entries that are not hidden, with their names as text.
    fn entries(&mut self, folder: &Path, expected: &'static str) -> Vec<(PathBuf, String)> {
        let listing = match fs::read_dir(folder) {
            Ok(listing) => listing,
            Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => {
                self.problems.push(Problem::WrongKind { path: folder.to_owned(), expected });
                return Vec::new();
            }
            Err(source) => {
                self.problems.unreadable(folder, source);
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        for entry in listing {
            match entry {
                Ok(entry) if entry.file_name().as_encoded_bytes().starts_with(b".") => {}
                Ok(entry) => match entry.file_name().into_string() {
                    Ok(name) => found.push((entry.path(), name)),
                    Err(_) => self.problems.push(Problem::NameNotText { path: entry.path() }),
                },
                Err(source) => self.problems.unreadable(folder, source),
            }
        }
        // Problems are reported in this order too.
        found.sort_by(|a, b| a.1.cmp(&b.1));
        found
    }
}
