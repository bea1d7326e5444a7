//! Compares a parsed document with the shapes of the grammar, collects every mistake, and writes
//! the defaults in.
//!
//! Invariant: a document without a mistake here has every key that the typed reader needs.

mod scalar;

use orchestrator_types::{DatasetName, wording::nearest};
use serde_yaml::{Mapping, Value};

use crate::{
    grammar::find_not_built,
    key_path::KeyPath,
    problem::{Places, Problem},
    shape::{Field, LIST_LIMIT, Need, Shape, Topic, Variant, either, join, keys},
    wording::found,
};
use scalar::shown_scalar;

/// Every mistake in `document`, whose absent keys are filled in.
pub(crate) fn walk(document: &mut Value, shape: &Shape, places: &Places) -> Vec<Problem> {
    let mut walk = Walk { places, problems: Vec::new() };
    walk.visit(&KeyPath::default(), document, shape);
    walk.problems
}

struct Walk<'a> {
    places: &'a Places,
    problems: Vec<Problem>,
}

impl Walk<'_> {
    fn visit(&mut self, path: &KeyPath, value: &mut Value, shape: &Shape) {
        match (shape, &mut *value) {
            (Shape::Text, Value::String(text)) => self.text(path, text),
            (Shape::Path { endings }, Value::String(text)) => self.path(path, text, *endings),
            (Shape::DatasetName, Value::String(text)) => self.dataset_name(path, text),
            (Shape::Bytes, Value::String(text)) => self.bytes(path, text),
            (Shape::Bytes, Value::Number(number)) => self.bytes(path, &number.to_string()),
            (Shape::Allocator, Value::String(text)) => self.allocator(path, text),
            (Shape::Word { topic, words, .. }, Value::String(text)) => {
                self.word(path, text, *topic, words, &shape.expected());
            }
            (
                Shape::Version | Shape::Count | Shape::Word { or_count: true, .. },
                Value::Number(_),
            ) => self.number(path, value, shape),
            (Shape::List(of), Value::Sequence(items)) => self.list(path, items, of),
            (Shape::Record(fields), Value::Mapping(entries)) => {
                self.record(path, entries, fields, None);
            }
            (Shape::Datasets(of), Value::Mapping(entries)) => self.datasets(path, entries, of),
            (Shape::Format(variants), Value::Mapping(entries)) => {
                self.format(path, entries, variants);
            }
            (Shape::Task(variants), Value::Mapping(entries)) => self.task(path, entries, variants),
            _ => self.mismatch(path, value, shape),
        }
    }

    fn wrong(&mut self, path: &KeyPath, message: String, hint: Option<String>) {
        self.problems.push(self.places.value(path, message, hint));
    }

    fn mismatch(&mut self, path: &KeyPath, value: &Value, shape: &Shape) {
        let plain = shown_scalar(value);
        let hint = match (shape, plain) {
            (Shape::List(of), Some(plain)) if of.is_scalar() => Some(format!("write `[{plain}]`")),
            (Shape::List(_), _) if value.is_mapping() => {
                Some("begin each entry with `- `".to_owned())
            }
            (Shape::Text | Shape::Path { .. } | Shape::DatasetName, Some(plain)) => {
                Some(format!("write `\"{plain}\"` if that is meant"))
            }
            (Shape::Version | Shape::Count, Some(_)) if value.is_string() => {
                Some("write it without quotes or a unit".to_owned())
            }
            (Shape::Task(_), Some(plain)) => Some(format!("write `{plain}: {{ dataset: NAME }}`")),
            _ if value.is_null() && !path.0.is_empty() => {
                Some("give it a value, or remove the key".to_owned())
            }
            _ => None,
        };
        self.wrong(path, format!("expected {}, found {}", shape.expected(), found(value)), hint);
    }

    fn list(&mut self, path: &KeyPath, items: &mut [Value], of: &Shape) {
        if items.is_empty() {
            let hint = Some("give at least one entry".to_owned());
            return self.wrong(path, "the list is empty".to_owned(), hint);
        }
        if items.len() > LIST_LIMIT {
            let message = format!("{} entries; at most {LIST_LIMIT} are read", items.len());
            return self.wrong(path, message, None);
        }
        for (index, item) in items.iter_mut().enumerate() {
            self.visit(&path.index(index), item, of);
        }
        for (index, item) in items.iter().enumerate() {
            if let Some(first) = items[..index].iter().position(|earlier| earlier == item) {
                let message = match shown_scalar(item) {
                    Some(plain) => format!("`{plain}` stands here twice"),
                    None => format!("the same entry as {}", path.index(first)),
                };
                self.wrong(&path.index(index), message, Some("keep one of them".to_owned()));
            }
        }
    }

    /// `tag` is the key that was read already, and its value.
    fn record(
        &mut self,
        path: &KeyPath,
        entries: &mut Mapping,
        fields: &[Field],
        tag: Option<(&str, &str)>,
    ) {
        let mut guesses = Vec::new();
        for (key, value) in entries.iter_mut() {
            let Some(key) = self.key(path, key) else { continue };
            let at = path.key(key);
            if let Some(field) = fields.iter().find(|field| field.key == key) {
                self.visit(&at, value, &field.shape);
            } else if tag.is_none_or(|(tag, _)| tag != key) {
                guesses.extend(self.unknown(&at, key, fields, tag));
            }
        }
        for field in fields {
            if entries.contains_key(field.key) {
                continue;
            }
            if let Need::Default(default) = field.need {
                let mut value = literal(default);
                self.visit(&path.key(field.key), &mut value, &field.shape);
                entries.insert(field.key.into(), value);
            } else if matches!(field.need, Need::Required) && !guesses.contains(&field.key) {
                self.missing(path, field.key, field.example);
            }
        }
    }

    /// The text of a key; anything else is reported.
    fn key<'k>(&mut self, path: &KeyPath, key: &'k Value) -> Option<&'k str> {
        if key.as_str().is_none() {
            let hint = shown_scalar(key).map(|plain| format!("write `\"{plain}\"`"));
            self.wrong(path, format!("expected a word as key, found {}", found(key)), hint);
        }
        key.as_str()
    }

    /// Reports an unknown key, and returns the known one that was probably meant.
    fn unknown(
        &mut self,
        at: &KeyPath,
        key: &str,
        fields: &[Field],
        tag: Option<(&str, &str)>,
    ) -> Option<&'static str> {
        if let Some(row) = find_not_built(Topic::Key, &at.to_string()) {
            let message = format!("`{key}` is not built yet");
            self.problems.push(self.places.key(at, message, row.instead.map(str::to_owned)));
            return None;
        }
        let known: Vec<&'static str> = fields.iter().map(|field| field.key).collect();
        let guess = nearest(key, &known);
        let hint = match (guess, tag) {
            (Some(guess), _) => format!("did you mean `{guess}`?"),
            (None, Some((tag, form))) => {
                format!("{tag} {form} has {}", keys(fields))
            }
            (None, None) => format!("known here: {}", keys(fields)),
        };
        self.problems.push(self.places.key(at, "unknown key".to_owned(), Some(hint)));
        guess
    }

    fn missing(&mut self, path: &KeyPath, key: &str, example: &str) {
        let message = format!("`{key}` is missing");
        let hint = Some(format!("for example `{key}: {example}`"));
        self.problems.push(self.places.key(path, message, hint));
    }

    fn datasets(&mut self, path: &KeyPath, entries: &mut Mapping, of: &Shape) {
        if entries.is_empty() {
            let hint = Some("declare at least one dataset".to_owned());
            return self.wrong(path, "the mapping is empty".to_owned(), hint);
        }
        for (key, value) in entries.iter_mut() {
            let Some(name) = self.key(path, key) else { continue };
            let at = path.key(name);
            match name.parse::<DatasetName>() {
                Ok(_) => self.visit(&at, value, of),
                Err(error) => self.problems.push(self.places.key(&at, error.to_string(), None)),
            }
        }
    }

    fn format(&mut self, path: &KeyPath, entries: &mut Mapping, variants: &'static [Variant]) {
        let names: Vec<_> = variants.iter().map(|variant| variant.name).collect();
        let Some(format) = entries.get_mut("format") else {
            let hint = Some(format!("formats are {}", join(&names, "and")));
            let problem = self.places.key(path, "`format` is missing".to_owned(), hint);
            return self.problems.push(problem);
        };
        if let Some(variant) =
            format.as_str().and_then(|name| variants.iter().find(|variant| variant.name == name))
        {
            return self.record(path, entries, variant.fields, Some(("format", variant.name)));
        }
        let at = path.key("format");
        match format {
            Value::String(text) => self.word(&at, text, Topic::Format, &names, &either(&names)),
            other => {
                let message = format!("expected {}, found {}", either(&names), found(other));
                self.wrong(&at, message, None);
            }
        }
    }

    fn task(&mut self, path: &KeyPath, entries: &mut Mapping, variants: &'static [Variant]) {
        let names: Vec<_> = variants.iter().map(|variant| variant.name).collect();
        let known = |key: &Value| {
            key.as_str().and_then(|key| variants.iter().find(|variant| variant.name == key))
        };
        let Some(first) = entries.keys().find_map(known) else {
            return self.no_task(path, entries, &names);
        };
        let alone = entries.len() == 1;
        for (key, value) in entries.iter_mut() {
            let Some(name) = self.key(path, key) else { continue };
            let at = path.key(name);
            match known(key) {
                // Its keys stand beside it: they are reported, and say more.
                Some(_) if value.is_null() && !alone => {}
                Some(variant) if variant.name == first.name => {
                    self.task_body(&at, value, variant);
                }
                Some(_) => {
                    let hint = Some(format!("begin a new entry with `- {name}:`"));
                    self.problems.push(self.places.key(&at, TWO_TASKS.to_owned(), hint));
                }
                None => {
                    let message = format!("stands beside `{}`, not inside it", first.name);
                    let hint = Some("indent it further".to_owned());
                    self.problems.push(self.places.key(&at, message, hint));
                }
            }
        }
    }

    fn task_body(&mut self, at: &KeyPath, value: &mut Value, variant: &'static Variant) {
        match value {
            Value::Mapping(entries) => self.record(at, entries, variant.fields, None),
            other => self.mismatch(at, other, &Shape::Record(variant.fields)),
        }
    }

    fn no_task(&mut self, path: &KeyPath, entries: &Mapping, names: &[&'static str]) {
        if entries.is_empty() {
            let message = format!("expected a task: {}; found nothing", either(names));
            return self.wrong(path, message, None);
        }
        for key in entries.keys() {
            let Some(name) = self.key(path, key) else { continue };
            let hint = match nearest(name, names) {
                Some(guess) => format!("did you mean `{guess}`?"),
                None => format!("tasks are {}", join(names, "and")),
            };
            let problem = self.places.key(&path.key(name), "unknown task".to_owned(), Some(hint));
            self.problems.push(problem);
        }
    }
}

const TWO_TASKS: &str = "a second task in one entry";

fn literal(yaml: &str) -> Value {
    serde_yaml::from_str(yaml).expect("defaults of the grammar are YAML")
}
