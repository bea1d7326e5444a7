//! `report.json`.

use crate::report::Report;

/// Name and version of the layout. A field may be added under the same version; one that changes
/// its meaning or goes makes a new version.
pub const SCHEMA: &str = "orchestrator.report/1";

/// Text that is not a report.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not JSON, or not these fields.
    #[error("not a report")]
    Json(#[from] serde_json::Error),
    /// Another layout.
    #[error("the report has the schema `{found}`; this version reads `{SCHEMA}`")]
    Schema {
        /// The schema named there.
        found: String,
    },
}

/// The report as indented JSON, with a line feed at the end.
pub fn write(report: &Report) -> String {
    let mut text = serde_json::to_string_pretty(report)
        .expect("a report's maps have text keys, and nothing in it fails to serialise");
    text.push('\n');
    text
}

/// Reads what [`write()`] wrote.
pub fn read(text: &str) -> Result<Report, ReadError> {
    /// The schema alone, so that another version is named instead of its first unknown field.
    #[derive(serde::Deserialize)]
    struct Header {
        schema: String,
    }
    let Header { schema } = serde_json::from_str(text)?;
    if schema != SCHEMA {
        return Err(ReadError::Schema { found: schema });
    }
    Ok(serde_json::from_str(text)?)
}
