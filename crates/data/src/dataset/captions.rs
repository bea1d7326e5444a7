//! Captions files: JSON Lines, `{"image": "a/b.jpg", "captions": ["…", "…"]}` or `"caption": "…"`.
//!
//! Invariant: samples and captions keep the file's order; a picture appears once. Picture paths are
//! relative to the file's folder and may leave it: who may read what is the operating system's
//! business when the user runs this, and the worker's data roots' on a cluster. Keys not named here
//! are notes and are left alone.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Component, Path, PathBuf},
};

use orchestrator_files::Files;
use orchestrator_types::{ByteCount, SampleId};
use serde::Deserialize;

use super::{
    Manifest, Sample,
    problem::{Problem, Problems},
};

/// A larger file is refused: what is read of it stays in memory.
const SIZE_LIMIT: ByteCount = ByteCount::gib(2);
/// A longer line is not a line of captions.
const LINE_LIMIT: u64 = 1 << 20;

#[derive(Deserialize)]
struct Entry {
    image: String,
    caption: Option<String>,
    captions: Option<Vec<String>>,
}

/// Reads the file line by line.
pub(super) fn read(file: &Path, files: &Files, problems: &mut Problems) -> Manifest {
    let mut reading = Reading {
        file,
        files,
        folder: file.parent().unwrap_or(Path::new("")),
        problems,
        first_line: BTreeMap::new(),
        samples: Vec::new(),
        captions: Vec::new(),
    };
    reading.all();
    let Reading { samples, captions, .. } = reading;
    Manifest { samples, captions, classes: Vec::new(), templates: Vec::new(), warnings: Vec::new() }
}

struct Reading<'a> {
    file: &'a Path,
    files: &'a Files,
    folder: &'a Path,
    problems: &'a mut Problems,
    first_line: BTreeMap<String, u64>,
    samples: Vec<Sample>,
    captions: Vec<Vec<String>>,
}

impl Reading<'_> {
    fn all(&mut self) {
        if let Some(extension @ ("csv" | "tsv")) = self.file.extension().and_then(|e| e.to_str()) {
            let extension = extension.to_owned();
            self.problems.push(Problem::Format { file: self.file.to_owned(), extension });
            return;
        }
        let opened = self.files.open(self.file).and_then(|opened| {
            let bytes = opened.metadata()?.len();
            Ok((opened, bytes))
        });
        let mut reader = match opened {
            Ok((_, bytes)) if bytes > SIZE_LIMIT.as_u64() => {
                let reason = format!("larger than {SIZE_LIMIT}; cut it into several datasets");
                return self.refuse(1, reason);
            }
            // It may grow while it is read.
            Ok((opened, _)) => BufReader::new(opened.take(SIZE_LIMIT.as_u64())),
            Err(_) if self.file.is_dir() => {
                let path = self.file.to_owned();
                return self
                    .problems
                    .push(Problem::WrongKind { path, expected: "file of captions" });
            }
            Err(source) => return self.problems.unreadable(self.file, source),
        };
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            match reader.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut bytes) {
                Ok(0) => return,
                Ok(_) if bytes.len() as u64 == LINE_LIMIT => {
                    return self.refuse(line, "longer than 1 MiB; this is not JSON Lines".into());
                }
                Ok(_) => self.line(line, &bytes),
                Err(source) => return self.problems.unreadable(self.file, source),
            }
        }
    }

    fn refuse(&mut self, line: u64, reason: String) {
        self.problems.push(Problem::Line { file: self.file.to_owned(), line, reason });
    }

    fn line(&mut self, line: u64, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return self.refuse(line, "not valid UTF-8; save the file as UTF-8".to_owned());
        };
        // Some editors put a byte order mark before the first line.
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            return;
        }
        match serde_json::from_str::<Entry>(text) {
            Ok(entry) => self.entry(line, entry),
            Err(error) => self.refuse(
                line,
                format!(
                    "{}; expected {{\"image\": \"…\", \"captions\": [\"…\"]}}",
                    without_line(&error)
                ),
            ),
        }
    }

    fn entry(&mut self, line: u64, entry: Entry) {
        let texts = match (entry.captions, entry.caption) {
            (Some(_), Some(_)) => {
                return self.refuse(line, "both `caption` and `captions`; keep one".to_owned());
            }
            (Some(list), None) => list,
            (None, Some(one)) => vec![one],
            (None, None) => {
                return self.refuse(line, "no `captions` and no `caption`; add one".to_owned());
            }
        };
        if texts.is_empty() {
            return self.refuse(line, "`captions` is empty; give at least one".to_owned());
        }
        if let Some(index) = texts.iter().position(|text| text.trim().is_empty()) {
            return self.refuse(line, format!("captions[{index}] is blank; remove it"));
        }
        let id = tidy(&entry.image);
        if id.is_empty() {
            return self.refuse(line, "`image` is empty; give the picture's path".to_owned());
        }
        if let Some(&first) = self.first_line.get(&id) {
            let reason = format!(
                "`{id}` is on line {first} already; put all captions of a picture on one line"
            );
            return self.refuse(line, reason);
        }
        self.first_line.insert(id.clone(), line);
        self.picture(line, id, texts);
    }

    fn picture(&mut self, line: u64, id: String, texts: Vec<String>) {
        let path = self.folder.join(&id);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                let bytes = ByteCount::bytes(metadata.len());
                self.samples.push(Sample { id: SampleId(id), path, bytes, label: None });
                self.captions.push(texts);
            }
            // Of what lies elsewhere nothing is told: not what it is, nor that it is not there.
            Ok(_) | Err(_) if !self.files.admits(&path) => {
                self.refuse(line, format!("`{id}` lies outside of the folders that may be read"));
            }
            Ok(_) => self.refuse(line, format!("`{id}` is not a file")),
            Err(error) => self.refuse(
                line,
                format!("cannot read `{id}` ({error}); paths start at the captions file's folder"),
            ),
        }
    }
}

/// The path without `.` parts and doubled slashes, so that one picture has one id.
fn tidy(image: &str) -> String {
    let parts = Path::new(image).components().filter(|part| *part != Component::CurDir);
    let path: PathBuf = parts.collect();
    path.to_string_lossy().into_owned()
}

/// serde_json's message without its own "at line 1": the file's line is named before it.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.find(" at line 1 column ") {
        Some(end) => format!("{} (column {})", &text[..end], error.column()),
        None => text,
    }
}
