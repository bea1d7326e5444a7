//! How values and guesses appear in messages.

use serde_yaml::Value;

/// Longest piece of somebody's text that a message repeats, in characters.
pub(crate) const SHOWN_LIMIT: usize = 60;

/// Text as a message can repeat it: short, and with control characters escaped, so that it cannot
/// drive a terminal.
pub(crate) fn shown(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    let mut short: String = text.chars().take(SHOWN_LIMIT).map(escape).collect();
    if text.chars().nth(SHOWN_LIMIT).is_some() {
        short.push('…');
    }
    short
}

/// A value as it appears after "found".
pub(crate) fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(truth) => format!("the truth value `{truth}`"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text `{}`", shown(text)),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
        Value::Tagged(_) => "a tag".to_owned(),
    }
}

/// The candidate that was probably meant: the same but for case, for a letter in three, or for an
/// ending.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase();
    let distance = |candidate: &str| strsim::damerau_levenshtein(&word, candidate);
    let near = |candidate: &&&str| {
        let shared = word.len().min(candidate.len());
        distance(candidate) <= word.chars().count().div_ceil(3)
            || shared >= 3 && (word.starts_with(**candidate) || candidate.starts_with(&word))
    };
    candidates.iter().filter(near).min_by_key(|candidate| distance(candidate)).copied()
}
