//! What a component asks for, predicted before anything runs.
//!
//! First version: weights exactly, activations from the widest live set of one tile, decoded
//! samples by their count. It is an estimate of what *we* allocate; the allocator's own rounding
//! and the process itself come with the ledger.

use orchestrator_spec::{ModelFacts, TowerFacts};
use orchestrator_types::{ByteCount, Component, Precision};
use serde::{Deserialize, Serialize};

/// Bytes that one component asks for on one slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Which component of which model.
    pub component: Component,
    /// The model's folder as written in eval.yaml; empty for `score`, which has no weights.
    pub model: String,
    /// Weights in the precision of the trial.
    pub weights_bytes: ByteCount,
    /// Largest live set of a forward pass, over all compute threads.
    pub activations_bytes: ByteCount,
    /// Inputs and outputs that wait in buffers.
    pub staging_bytes: ByteCount,
}

impl Claim {
    /// Everything at once.
    pub fn peak(&self) -> ByteCount {
        sum([self.weights_bytes, self.activations_bytes, self.staging_bytes])
    }

    pub(crate) fn vision(
        name: &str,
        model: &ModelFacts,
        precision: Precision,
        shape: Dispatch,
    ) -> Self {
        let pixels = 3 * u64::from(model.image_size).pow(2);
        // A waiting image is kept as the 8-bit crop; a tile in work as floats too.
        let waiting = pixels * u64::from(shape.batch.max(shape.tile));
        let tile = pixels * 4 * u64::from(shape.tile) * u64::from(shape.threads);
        Self {
            component: Component::Vision,
            model: name.to_owned(),
            weights_bytes: weights(&model.vision, model, precision),
            activations_bytes: activations(&model.vision, precision, shape),
            staging_bytes: ByteCount::bytes(waiting + tile),
        }
    }

    pub(crate) fn text(
        name: &str,
        model: &ModelFacts,
        precision: Precision,
        shape: Dispatch,
    ) -> Self {
        let ids = u64::from(model.context) * 8 * u64::from(shape.tile) * u64::from(shape.threads);
        Self {
            component: Component::Text,
            model: name.to_owned(),
            weights_bytes: weights(&model.text, model, precision),
            activations_bytes: activations(&model.text, precision, shape),
            staging_bytes: ByteCount::bytes(ids),
        }
    }

    /// Scores: one tile of queries × candidates and both sides' rows, per thread.
    pub(crate) fn score(embedding_width: u32, threads: u32) -> Self {
        let rows = (SCORE_TILE_QUERIES + SCORE_TILE_CANDIDATES) * u64::from(embedding_width);
        let tile = SCORE_TILE_QUERIES * SCORE_TILE_CANDIDATES;
        Self {
            component: Component::Score,
            model: String::new(),
            weights_bytes: ByteCount::ZERO,
            activations_bytes: ByteCount::bytes(4 * (rows + tile) * u64::from(threads)),
            staging_bytes: ByteCount::ZERO,
        }
    }
}

/// Queries in a tile of scores.
pub(crate) const SCORE_TILE_QUERIES: u64 = 256;
/// Candidates in a tile of scores.
pub(crate) const SCORE_TILE_CANDIDATES: u64 = 512;

/// How a component is called: rows computed together, rows waiting, calls at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    pub tile: u32,
    pub batch: u32,
    pub threads: u32,
}

fn weights(tower: &TowerFacts, model: &ModelFacts, precision: Precision) -> ByteCount {
    // The file's own element size follows from its total.
    let stored = (model.weights_bytes.as_u64() / model.parameters.max(1)).max(1);
    ByteCount::bytes(tower.weights_bytes.as_u64() / stored * precision.element_bytes())
}

/// Largest live set of a pre-norm transformer layer: residual, normalised input and either the
/// feed-forward's inner state or query, key, value and their mix.
fn activations(tower: &TowerFacts, precision: Precision, shape: Dispatch) -> ByteCount {
    let (width, mlp) = (u64::from(tower.width), u64::from(tower.mlp));
    let per_token = (2 * width + mlp).max(6 * width);
    let tokens = u64::from(tower.tokens) * u64::from(shape.tile) * u64::from(shape.threads);
    ByteCount::bytes(tokens * per_token * precision.element_bytes())
}

pub(crate) fn sum(parts: impl IntoIterator<Item = ByteCount>) -> ByteCount {
    parts.into_iter().fold(ByteCount::ZERO, |total, part| {
        total.checked_add(part).unwrap_or(ByteCount::bytes(u64::MAX))
    })
}
