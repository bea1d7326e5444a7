//! The text of an evaluation with its overrides in it: what a run's folder keeps.
//!
//! Invariant: [`parse`](crate::parse()) reads the result without overrides as it reads the original
//! with them, places aside.

use crate::{
    Override, Problems,
    parse::{read, set, unread},
};

/// The text of an eval.yaml as it is run with `overrides`.
///
/// Without any, the text itself, byte for byte. Else its document with the values put in, under
/// comments that name the overrides and `folder`, where its relative paths start; the original's
/// own comments and layout are not kept. `file_name` is how messages name the file.
///
/// # Errors
/// A text that is not YAML, and an override that has no place in it. Whether the values are right
/// is for [`parse`](crate::parse()) to say.
pub fn as_run(
    file_name: &str,
    text: &str,
    overrides: &[Override],
    folder: &str,
) -> Result<String, Problems> {
    if overrides.is_empty() {
        return Ok(text.to_owned());
    }
    let (_, mut document) = read(file_name, text)?;
    let problems = set(&mut document, overrides);
    if !problems.is_empty() {
        return Err(Problems::sorted(problems));
    }
    let yaml = serde_yaml::to_string(&document).map_err(|error| unread(file_name, &error))?;
    let flags: Vec<String> = overrides.iter().map(Override::to_string).collect();
    // Debug quotes what could end the comment's line.
    Ok(format!("# as run with: {}\n# relative paths start at {folder:?}\n{yaml}", flags.join(" ")))
}
