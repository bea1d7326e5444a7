//! Text, words and numbers: what stands in one place of the file.

use orchestrator_types::{
    AllocatorSettings, ByteCount, DatasetName,
    wording::{nearest, shown},
};
use serde_yaml::Value;

use super::Walk;
use crate::{
    grammar::find_not_built,
    key_path::KeyPath,
    shape::{COUNT_LIMIT, Shape, TEXT_LIMIT, Topic, VERSION, join},
};

impl Walk<'_> {
    pub(super) fn text(&mut self, path: &KeyPath, text: &str) {
        if text.is_empty() {
            self.wrong(path, "expected text, found nothing between the quotes".to_owned(), None);
        } else if text.chars().any(char::is_control) {
            let message = "expected one line of text, found a line break or a control character";
            self.wrong(path, message.to_owned(), None);
        } else if text.chars().count() > TEXT_LIMIT {
            self.wrong(path, format!("the text has more than {TEXT_LIMIT} characters"), None);
        }
    }

    pub(super) fn path(&mut self, path: &KeyPath, text: &str, endings: Option<Topic>) {
        self.text(path, text);
        if let Some(scheme) = scheme(text) {
            self.unbuilt_or(path, Topic::Scheme, scheme, || {
                let message = format!("`{}` is not a path", shown(scheme));
                (message, Some("give a file or folder on this machine".to_owned()))
            });
        } else if let Some((topic, (start, _))) = endings.zip(text.rsplit_once('.')) {
            let row = find_not_built(topic, &text[start.len()..]);
            if let Some(row) = row {
                self.unbuilt_or(path, topic, row.word, Default::default);
            }
        }
    }

    /// Reports `word` as not built if the table says so, and as `otherwise` says if not.
    fn unbuilt_or(
        &mut self,
        path: &KeyPath,
        topic: Topic,
        word: &str,
        otherwise: impl FnOnce() -> (String, Option<String>),
    ) {
        let (message, hint) = match find_not_built(topic, word) {
            Some(row) => {
                let hint = row.instead.map(str::to_owned).or_else(|| otherwise().1);
                (format!("`{word}` is not built yet"), hint)
            }
            None => otherwise(),
        };
        self.wrong(path, message, hint);
    }

    pub(super) fn bytes(&mut self, path: &KeyPath, text: &str) {
        // As shown, so that a message about hostile text is short and safe too.
        let text = shown(text);
        match text.parse::<ByteCount>() {
            Ok(ByteCount::ZERO) => {
                let hint = Some("leave the key out to use what each slice offers".to_owned());
                self.wrong(path, format!("`{text}` leaves no memory at all"), hint);
            }
            Ok(_) => {}
            Err(error) => self.wrong(path, error.to_string(), None),
        }
    }

    pub(super) fn allocator(&mut self, path: &KeyPath, text: &str) {
        let before = self.problems.len();
        self.text(path, text);
        if self.problems.len() == before {
            for mistake in AllocatorSettings::examine(text).err().into_iter().flatten() {
                self.wrong(path, mistake.to_string(), None);
            }
        }
    }

    pub(super) fn dataset_name(&mut self, path: &KeyPath, text: &str) {
        if let Err(error) = text.parse::<DatasetName>() {
            self.wrong(path, error.to_string(), None);
        }
    }

    pub(super) fn word(
        &mut self,
        path: &KeyPath,
        text: &str,
        topic: Topic,
        words: &[&str],
        expected: &str,
    ) {
        if words.contains(&text) {
            return;
        }
        if find_not_built(topic, text).is_some() {
            let verb = if words.len() == 1 { "is" } else { "are" };
            let built = format!("{} {verb}", join(words, "and"));
            return self.unbuilt_or(path, topic, text, || (String::new(), Some(built)));
        }
        let hint = nearest(text, words).map(|word| format!("did you mean `{word}`?"));
        self.wrong(path, format!("expected {expected}, found `{}`", shown(text)), hint);
    }

    pub(super) fn number(&mut self, path: &KeyPath, value: &mut Value, shape: &Shape) {
        let whole = whole(value);
        match (shape, whole) {
            (Shape::Version, Some(VERSION)) => {}
            (Shape::Version, _) => {
                let message = format!("version {} is not known here", shown_number(value));
                self.wrong(path, message, Some(format!("this program reads version {VERSION}")));
            }
            (_, Some(1..=COUNT_LIMIT)) => {}
            _ => {
                let message =
                    format!("expected {}, found {}", shape.expected(), shown_number(value));
                self.wrong(path, message, None);
            }
        }
        if let Some(whole) = whole {
            *value = Value::Number(whole.into());
        }
    }
}

/// A number without fraction; `1.0` is one, as in JSON Schema.
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    value.as_u64().or_else(|| number.and_then(|number| format!("{number:.0}").parse().ok()))
}

/// `s3://` of `s3://bucket/key`.
fn scheme(text: &str) -> Option<&str> {
    let end = text.find("://")?;
    let name = &text[..end];
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-');
    (starts_well && name.chars().all(allowed)).then(|| &text[..end + 3])
}

fn shown_number(value: &Value) -> String {
    shown_scalar(value).unwrap_or_default()
}

/// A scalar as it can stand in a message; `None` for lists, mappings and nothing.
pub(super) fn shown_scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(shown(text)),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => None,
    }
}
