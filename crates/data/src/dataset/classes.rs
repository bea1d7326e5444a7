//! `classes.json`: names, labels and prompt templates.
//!
//! ```json
//! {"classes": [{"id": 0, "name": "animal-bird", "label": "bird"}], "templates": ["a photo of a {}."]}
//! ```
//!
//! Invariant: classes come out in order of their ids; names and ids are unique; every template has
//! exactly one `{}`. Keys that are not named here are notes for people and are left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use orchestrator_files::Files;
use orchestrator_types::ByteCount;
use serde::Deserialize;

use super::{
    Class, DEFAULT_TEMPLATE,
    problem::{Problem, Problems},
};

/// Larger class lists are refused: the largest public one (ImageNet-21k) takes 2 MB.
const SIZE_LIMIT: ByteCount = ByteCount::mib(64);

#[derive(Deserialize)]
struct ClassFile {
    classes: Vec<ClassEntry>,
    templates: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ClassEntry {
    id: u64,
    name: String,
    label: Option<String>,
}

pub(super) struct ClassList {
    pub(super) classes: Vec<Class>,
    pub(super) templates: Vec<String>,
}

impl ClassList {
    /// What a class list would say if there were one: each folder is a class.
    pub(super) fn of_folders<'a>(names: impl Iterator<Item = &'a String>) -> Self {
        let class = |name: &String| Class { name: name.clone(), label: label_of(name) };
        Self { classes: names.map(class).collect(), templates: vec![DEFAULT_TEMPLATE.to_owned()] }
    }
}

fn label_of(name: &str) -> String {
    name.replace(['_', '-'], " ")
}

/// Reads and checks the class list; `None` if nothing of it can be used.
pub(super) fn read(file: &Path, files: &Files, problems: &mut Problems) -> Option<ClassList> {
    let mut refuse =
        |reason: String| problems.push(Problem::ClassList { file: file.to_owned(), reason });
    let bytes = match files.read(file, SIZE_LIMIT) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            refuse(format!("larger than {SIZE_LIMIT}; this is no class list"));
            return None;
        }
        Err(source) => {
            problems.unreadable(file, source);
            return None;
        }
    };
    let parsed: ClassFile = match serde_json::from_slice(&bytes) {
        Ok(parsed) => parsed,
        Err(error) => {
            refuse(format!(
                "{error}; expected {{\"classes\": [{{\"id\", \"name\", \"label\"}}], \"templates\": [\"… {{}} …\"]}}"
            ));
            return None;
        }
    };
    check_classes(&parsed.classes, &mut refuse);
    check_templates(parsed.templates.as_deref(), &mut refuse);
    Some(into_list(parsed))
}

fn check_classes(classes: &[ClassEntry], refuse: &mut impl FnMut(String)) {
    if classes.is_empty() {
        refuse("`classes` is empty; name at least one class".to_owned());
    }
    let mut by_id = BTreeMap::new();
    let mut by_name = BTreeMap::new();
    for (index, class) in classes.iter().enumerate() {
        let at = format!("classes[{index}]");
        if class.name.is_empty() || class.name.contains('/') || class.name.starts_with('.') {
            refuse(format!("{at}.name: `{}` is not the name of a class folder", class.name));
        }
        if class.label.as_ref().is_some_and(|label| label.trim().is_empty()) {
            refuse(format!("{at}.label: empty; say what goes into the templates"));
        }
        if let Some(first) = by_id.insert(class.id, index) {
            refuse(format!("{at}.id: {} is taken by classes[{first}]", class.id));
        }
        if let Some(first) = by_name.insert(&class.name, index) {
            refuse(format!("{at}.name: `{}` is taken by classes[{first}]", class.name));
        }
    }
}

fn check_templates(templates: Option<&[String]>, refuse: &mut impl FnMut(String)) {
    let Some(templates) = templates else { return };
    if templates.is_empty() {
        refuse(format!(
            "`templates` is empty; remove it to get \"{DEFAULT_TEMPLATE}\", or name at least one"
        ));
    }
    let mut seen = BTreeSet::new();
    for (index, template) in templates.iter().enumerate() {
        let places = template.matches("{}").count();
        if places != 1 {
            refuse(format!(
                "templates[{index}]: \"{template}\" has {places} places for the label; write `{{}}` exactly once"
            ));
        }
        if !seen.insert(template) {
            refuse(format!("templates[{index}]: \"{template}\" is there twice"));
        }
    }
}

fn into_list(mut parsed: ClassFile) -> ClassList {
    parsed.classes.sort_by_key(|class| class.id);
    let class = |entry: ClassEntry| Class {
        label: entry.label.unwrap_or_else(|| label_of(&entry.name)),
        name: entry.name,
    };
    ClassList {
        classes: parsed.classes.into_iter().map(class).collect(),
        templates: parsed.templates.unwrap_or_else(|| vec![DEFAULT_TEMPLATE.to_owned()]),
    }
}
