//! Renderings of a [`Profile`]: a table, a JSON document and a timeline.
//!
//! Invariant: a figure stands under the same name in all three, and what was not measured is a
//! dash or `null`, never zero.

mod axis;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use orchestrator_ledger::{ComponentProfile, PROFILE_SCHEMA, Profile};
use orchestrator_types::ByteCount;

use crate::rows::printable;

/// The profile as tables for a terminal, at most [`WIDTH`](crate::text::WIDTH) columns wide but
/// for sentences. No line feed at the end.
pub fn profile_text(profile: &Profile) -> String {
    text::render(profile)
}

/// The profile as indented JSON, with a line feed at the end.
pub fn profile_json(profile: &Profile) -> String {
    let mut text = serde_json::to_string_pretty(profile)
        .expect("a profile has no map, and nothing in it fails to serialise");
    text.push('\n');
    text
}

/// Live bytes over one forward pass, one picture below the other for each component: an SVG
/// document that needs nothing else, readable on a light and on a dark ground.
pub fn profile_svg(profile: &Profile) -> String {
    svg::render(profile)
}

/// Text that is not a profile.
#[derive(Debug, thiserror::Error)]
pub enum ReadProfileError {
    /// Not JSON, or not these fields.
    #[error("not a profile")]
    Json(#[from] serde_json::Error),
    /// Another layout.
    #[error("the profile has the schema `{found}`; this version reads `{PROFILE_SCHEMA}`")]
    Schema {
        /// The schema named there.
        found: String,
    },
}

/// Reads what [`profile_json`] wrote.
///
/// # Errors
/// See [`ReadProfileError`].
pub fn read_profile(text: &str) -> Result<Profile, ReadProfileError> {
    #[derive(serde::Deserialize)]
    struct Header {
        schema: String,
    }
    let Header { schema } = serde_json::from_str(text)?;
    if schema != PROFILE_SCHEMA {
        return Err(ReadProfileError::Schema { found: schema });
    }
    Ok(serde_json::from_str(text)?)
}

/// `models/tiny-clip vision fp32 on cpu: 64 rows of 50 tokens`.
/// `GPU-` and eight digits.
const SHORT_DEVICE: usize = 12;

fn title(profile: &ComponentProfile) -> String {
    let ComponentProfile { model, component, precision, device, rows, tokens, .. } = profile;
    // The first group of a UUID tells devices apart and leaves room in a heading.
    let device = device.to_string();
    let short: String = device.chars().take(SHORT_DEVICE).collect();
    let what = format!("{model} {component} {precision} on {short}");
    printable(&format!("{what}: {rows} rows of {tokens} tokens"))
}

/// How far the prediction is above the measurement, in per cent of it.
fn error_percent(predicted: ByteCount, measured: ByteCount) -> Option<f64> {
    let (predicted, measured) = (predicted.as_u64() as f64, measured.as_u64() as f64);
    (measured > 0.0).then(|| (predicted - measured) / measured * 100.0)
}
