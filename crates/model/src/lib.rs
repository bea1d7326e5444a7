//! What a model folder says: its architecture, its tensors, its size. No libtorch, so that `check`
//! and `plan` work on a machine that has none.
//!
//! Invariant: a [`ModelFolder`] is checked. Its configuration is one that we can build, each tensor
//! that the configuration calls for is in the file with the right shape and a type we read, and
//! each byte range lies inside the file. Whoever holds one may load it without further checks.
//!
//! Absent on purpose: pickle (`pytorch_model.bin` runs code when it is read), tokenizers and
//! preprocessing (crate `data`), and everything that computes (crate `engine`).

mod config;
mod error;
mod folder;
mod inventory;
mod weights;

pub use config::{Activation, Blocks, ClipConfig, TextPooling, TextTower, VisionTower};
pub use error::{HeaderProblem, ModelError, TensorProblem, TensorProblems};
pub use folder::ModelFolder;
pub use inventory::{LayerKey, TensorSpec};
pub use weights::{Element, StoredTensor};
