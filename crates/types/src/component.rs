//! Named parts of a model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of a model with weights, inputs and outputs of its own. A slice loads only the
/// components that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// Text tower: token ids → text embeddings.
    Text,
    /// Vision tower: pixels → image embeddings.
    Vision,
    /// Similarity of embeddings, ranked; no weights.
    Score,
}

impl Component {
    /// The name used in plans, reports and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Vision => "vision",
            Self::Score => "score",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
