//! What a component asks for, predicted before anything runs.
//!
//! Activations are the walk of crate `footprint`, which an executor corrects by probes; the rest is
//! counted as the executor leases it. On a GPU what waits on the host is not part of a claim: the
//! quota is the device's.

use orchestrator_footprint::{self as footprint, Forecast, Input, Kind, Setting};
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
    /// Largest live set of a forward pass, over all passes at once.
    pub activations_bytes: ByteCount,
    /// Inputs and outputs that wait in buffers.
    pub staging_bytes: ByteCount,
    /// The least that it can run with: weights, one row at a time, and what it cannot do without.
    pub least_bytes: ByteCount,
}

impl Claim {
    /// Everything at once.
    pub fn peak(&self) -> ByteCount {
        sum([self.weights_bytes, self.activations_bytes, self.staging_bytes])
    }
}

/// How a component is called on one slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    pub kind: Kind,
    pub precision: Precision,
    /// Rows computed together on the CPU.
    pub tile: u32,
    /// Rows waiting, or computed together on a GPU.
    pub batch: u32,
    /// Compute threads.
    pub threads: u32,
}

/// The largest parts that units have, over the whole evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    /// Images of a unit.
    pub shard: u64,
    /// Images of a ranking that are in memory at once.
    pub block: u64,
    /// Queries of a ranking.
    pub queries: u64,
    /// Texts of a unit.
    pub part: u64,
    /// Texts of a set.
    pub texts: u64,
}

/// Queries in a tile of scores.
const SCORE_TILE_QUERIES: u64 = 256;
/// Candidates in a tile of scores.
const SCORE_TILE_CANDIDATES: u64 = 512;
/// Bytes of a number outside of towers.
const FLOAT: u64 = 4;

pub(crate) fn vision(name: &str, model: &ModelFacts, how: Dispatch, sizes: Sizes) -> Claim {
    let pixels = 3 * u64::from(model.image_size).pow(2);
    let tower = tower(&model.vision, Input::Pixels(pixels), model);
    // A tile waits as bytes, and is numbers while a thread works on it. The results of a unit exist
    // twice at its end: as rows and as a blob.
    let (bytes, numbers) = (pixels * u64::from(how.tile), FLOAT * pixels * u64::from(how.tile));
    let results = 2 * FLOAT * sizes.shard * u64::from(model.embedding_width);
    let ahead = u64::from((how.batch / how.tile.max(1)).max(1));
    let staging = [bytes * ahead + numbers * u64::from(how.threads), bytes + numbers];
    let staging = staging.map(|waiting| waiting + results);
    let shape = Shaped { tower, tokens: model.vision.tokens, stored: stored(model) };
    of_tower(Component::Vision, name, &shape, how, staging)
}

pub(crate) fn text(name: &str, model: &ModelFacts, how: Dispatch, sizes: Sizes) -> Claim {
    let tower = tower(&model.text, Input::Tokens, model);
    let results = 2 * FLOAT * sizes.part * u64::from(model.embedding_width);
    // Token ids of every text, with what a list of them takes.
    let ids = sizes.texts * (24 + FLOAT * u64::from(model.context) / 2 + FLOAT);
    let shape = Shaped { tower, tokens: model.text.tokens, stored: stored(model) };
    of_tower(Component::Text, name, &shape, how, [results + ids; 2])
}

/// Scores: a tile with both sides' rows for each thread, as tensors and as buffers, but for threads
/// that no tile of queries is left for; the texts; and the images that are in memory at once.
pub(crate) fn score(model: &ModelFacts, how: Dispatch, sizes: Sizes) -> Claim {
    let width = u64::from(model.embedding_width);
    let rows = (SCORE_TILE_QUERIES + SCORE_TILE_CANDIDATES) * width;
    let tile = FLOAT * (rows + SCORE_TILE_QUERIES * SCORE_TILE_CANDIDATES);
    let threads =
        sizes.queries.div_ceil(SCORE_TILE_QUERIES).clamp(1, u64::from(how.threads).max(1));
    let held = FLOAT * (width * (sizes.texts + sizes.block) + sizes.texts);
    let on_device = |bytes| match how.kind {
        Kind::Cpu => ByteCount::bytes(bytes),
        // A GPU's executor scores on the processor beside it.
        Kind::Cuda => ByteCount::ZERO,
    };
    Claim {
        component: Component::Score,
        model: String::new(),
        weights_bytes: ByteCount::ZERO,
        activations_bytes: on_device(tile * threads),
        staging_bytes: on_device(held + tile * threads),
        least_bytes: on_device(held + 2 * tile),
    }
}

/// A tower with its longest row, tokens, and the bytes of a number in its file.
struct Shaped {
    tower: footprint::Tower,
    tokens: u32,
    stored: u64,
}

fn of_tower(
    component: Component,
    name: &str,
    Shaped { tower, tokens, stored }: &Shaped,
    how: Dispatch,
    [staging, least_staging]: [u64; 2],
) -> Claim {
    let forecast = Forecast::new(*tower, Setting::new(how.kind, how.precision));
    let pass = |rows: u32| forecast.activations(rows, *tokens);
    let (activations, staging, least_staging) = match how.kind {
        Kind::Cpu => {
            let all = pass(how.tile).as_u64().saturating_mul(how.threads.into());
            (ByteCount::bytes(all), staging, least_staging)
        }
        Kind::Cuda => (pass(how.batch), 0, 0),
    };
    let weights = tower.weights(how.precision);
    let least = tower.loading(how.kind, how.precision, *stored).max(pass(1));
    Claim {
        component,
        model: name.to_owned(),
        weights_bytes: weights,
        activations_bytes: activations,
        staging_bytes: ByteCount::bytes(staging),
        least_bytes: sum([weights, least, ByteCount::bytes(least_staging)]),
    }
}

fn tower(facts: &TowerFacts, input: Input, model: &ModelFacts) -> footprint::Tower {
    footprint::Tower {
        input,
        layers: facts.layers,
        width: facts.width,
        heads: facts.heads,
        mlp: facts.mlp,
        embedding_width: model.embedding_width,
        parameters: facts.weights_bytes.as_u64() / stored(model),
    }
}

/// Bytes of a number in the file: follows from its total.
fn stored(model: &ModelFacts) -> u64 {
    (model.weights_bytes.as_u64() / model.parameters.max(1)).max(1)
}

pub(crate) fn sum(parts: impl IntoIterator<Item = ByteCount>) -> ByteCount {
    parts.into_iter().fold(ByteCount::ZERO, |total, part| {
        total.checked_add(part).unwrap_or(ByteCount::bytes(u64::MAX))
    })
}
