//! How somebody's text and guesses appear in messages.
//!
//! Invariant: what is repeated here is short and cannot drive a terminal.

/// Longest piece of somebody's text that a message repeats, in characters.
pub const SHOWN_LIMIT: usize = 60;

/// Text as a message can repeat it: short, and with control characters escaped.
pub fn shown(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    let mut short: String = text.chars().take(SHOWN_LIMIT).map(escape).collect();
    if text.chars().nth(SHOWN_LIMIT).is_some() {
        short.push('…');
    }
    short
}

/// The candidate that was probably meant: the same but for case, for a letter in three, or for an
/// ending.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase();
    let distance = |candidate: &str| strsim::damerau_levenshtein(&word, candidate);
    let near = |candidate: &&&str| {
        let shared = word.len().min(candidate.len());
        distance(candidate) <= word.chars().count().div_ceil(3)
            || shared >= 3 && (word.starts_with(**candidate) || candidate.starts_with(&word))
    };
    candidates.iter().filter(near).min_by_key(|candidate| distance(candidate)).copied()
}
