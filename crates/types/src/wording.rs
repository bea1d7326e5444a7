//! How somebody's text and guesses appear in messages.
//!
//! Invariant: what is repeated here is short and cannot drive a terminal.

/// Longest piece of somebody's text that a message repeats, in characters.
pub const SHOWN_LIMIT: usize = 60;

/// Text as a message can repeat it: short, and with control characters escaped.
pub fn shown(text: &str) -> String {
    let escape = |c: char| if steers(c) { c.escape_default().to_string() } else { c.into() };
    let mut short: String = text.chars().take(SHOWN_LIMIT).map(escape).collect();
    if text.chars().nth(SHOWN_LIMIT).is_some() {
        short.push('…');
    }
    short
}

/// Longest message of another process that is kept, in bytes.
pub const TOLD_LIMIT: usize = 4_096;

/// Text of others as part of one line: control characters, line feeds included, are escaped, and what
/// is longer than [`TOLD_LIMIT`] is cut.
pub fn one_line(text: &str) -> String {
    cleaned(text, |_| false)
}

/// Text of others as a message of its own: as [`one_line`], but line feeds and tabs stay.
pub fn told(text: &str) -> String {
    cleaned(text, |c| matches!(c, '\n' | '\t'))
}

fn cleaned(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut clean = String::new();
    for (at, c) in text.char_indices() {
        if clean.len() >= TOLD_LIMIT {
            return format!("{clean}… ({} more bytes)", text.len() - at);
        }
        if steers(c) && !stays(c) {
            clean.extend(c.escape_default());
        } else {
            clean.push(c);
        }
    }
    clean
}

/// Whether a character moves the cursor, begins a command to the terminal, ends a line, or turns the
/// direction of the text around it.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_short_and_steers_nothing() {
        let hostile = "a\u{1b}[2J\rb\nc\u{202e}d\te\u{9b}\u{2028}é";
        assert_eq!(one_line(hostile), "a\\u{1b}[2J\\rb\\nc\\u{202e}d\\te\\u{9b}\\u{2028}é");
        assert_eq!(told(hostile), "a\\u{1b}[2J\\rb\nc\\u{202e}d\te\\u{9b}\\u{2028}é");
        assert_eq!(shown(hostile), one_line(hostile));
        for text in ["é".repeat(TOLD_LIMIT), "\u{1b}".repeat(TOLD_LIMIT)] {
            let short = told(&text);
            assert!(short.len() < TOLD_LIMIT + 40, "{} bytes", short.len());
            assert!(short.ends_with(" more bytes)"), "{short}");
        }
        let whole = "x".repeat(TOLD_LIMIT);
        assert_eq!(told(&whole), whole);
    }
}
