//! Who holds bytes.

use std::fmt;

use orchestrator_types::{Component, Precision};
use serde::{Deserialize, Serialize};

/// The holder of a lease, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Owner {
    /// Weights of one component of one model.
    Weights {
        /// The model's folder, last part.
        model: String,
        /// The component.
        component: Component,
        /// Its number format.
        precision: Precision,
    },
    /// Hidden states and temporaries of one forward pass.
    Activations {
        /// The component.
        component: Component,
        /// Rows that pass together.
        rows: u32,
    },
    /// A tile of scores with both sides' rows.
    ScoreTiles,
    /// Samples decoded and not yet encoded; results not yet handed over.
    Staging {
        /// Whose inputs or outputs.
        component: Component,
    },
    /// Text embeddings or tokenised texts that stay for the next units.
    Texts,
    /// What the device's runtime takes for itself: context, kernels, handles.
    Runtime,
}

impl Owner {
    /// Whether its bytes stay taken as long as the process lives, so that nobody can wait for them.
    pub(crate) const fn never_returns(&self) -> bool {
        match self {
            Self::Runtime => true,
            Self::Weights { .. }
            | Self::Activations { .. }
            | Self::ScoreTiles
            | Self::Staging { .. }
            | Self::Texts => false,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weights { model, component, precision } => {
                write!(f, "weights of {model} {component} {precision}")
            }
            Self::Activations { component, rows } => {
                write!(f, "activations of {component}, {rows} rows")
            }
            Self::ScoreTiles => f.write_str("score tiles"),
            Self::Staging { component } => write!(f, "staging of {component}"),
            Self::Texts => f.write_str("texts"),
            Self::Runtime => f.write_str("device runtime"),
        }
    }
}

/// An owner and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Who.
    pub owner: Owner,
    /// How much, over all its leases.
    pub bytes: orchestrator_types::ByteCount,
}
