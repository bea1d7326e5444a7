//! How each component is called, and what that makes it claim.

use std::{collections::BTreeMap, path::Path};

use orchestrator_footprint::{KNEE_TOKENS, Kind, prior_rows};
use orchestrator_spec::{Batch, Evaluation, ModelFacts, Trial};
use orchestrator_types::{Component, DeviceId};

use crate::{
    BatchPlan, Claim, Inventory, Measured, MeasuredRows, ModelSource, Placement, SliceOffer,
    claim::{self, Dispatch, Sizes},
    order::Towers,
};

/// Tokens that a tile of images aims at. Small tiles stay in a core's cache: on two kinds of
/// machine 4 images of 50 tokens were the fastest, and larger ones slower.
const TILE_TOKENS: u32 = 256;
/// Texts in a tile: enough to keep short sequences busy, small enough for a core's cache.
pub(super) const TEXT_TILE: u32 = 32;
/// Images decoded ahead when the batch is the planner's choice.
const AUTO_VISION_BATCH: u32 = 64;
/// Texts per dispatch when the batch is the planner's choice.
const AUTO_TEXT_BATCH: u32 = 512;

/// Rows computed together and rows per dispatch, of one trial.
pub(super) struct Shape {
    pub vision_tile: u32,
    pub batch: BatchPlan,
    /// Images that a unit has at least: a batch of a GPU, so that a unit fills one.
    pub least_shard: u32,
    pub reasons: Vec<String>,
}

impl Shape {
    pub(super) fn of(
        trial: &Trial,
        model: &ModelFacts,
        inventory: &Inventory,
        measured: &Measured,
    ) -> Self {
        let vision_tile = previous_power_of_two(TILE_TOKENS / model.vision.tokens.max(1));
        let mut reasons = vec![format!(
            "tiles: {vision_tile} images of {} tokens, {TEXT_TILE} texts; fixed by the model, so \
             that results do not depend on batch or slices",
            model.vision.tokens
        )];
        let mut whole_tiles = |component: Component, batch: u32, tile: u32| {
            let rounded = batch.div_ceil(tile) * tile;
            if rounded != batch {
                reasons.push(format!("{component} batch {batch} → {rounded}: whole tiles"));
            }
            rounded
        };
        let gpu = inventory.slices.iter().any(|slice| slice.device != DeviceId::Cpu);
        let batch = match trial.batch {
            Batch::Auto if gpu => {
                let rows = |component, tokens| {
                    let of = |entry: &MeasuredRows| {
                        (entry.weights, entry.precision, entry.component)
                            == (model.weights_blake3, trial.precision, component)
                    };
                    Rows::of(measured.rows_for(inventory, of), tokens)
                };
                let vision = rows(Component::Vision, model.vision.tokens).whole(vision_tile);
                let text = rows(Component::Text, model.text.tokens).whole(TEXT_TILE);
                reasons.extend(why(vision, text));
                BatchPlan { vision: vision.rows, text: text.rows }
            }
            Batch::Auto => BatchPlan { vision: AUTO_VISION_BATCH, text: AUTO_TEXT_BATCH },
            Batch::Fixed(rows) => BatchPlan {
                vision: whole_tiles(Component::Vision, rows.get(), vision_tile),
                text: whole_tiles(Component::Text, rows.get(), TEXT_TILE),
            },
        };
        let least_shard = if gpu { batch.vision } else { 1 };
        Self { vision_tile, batch, least_shard, reasons }
    }
}

/// Rows of a GPU's dispatch, and where they come from.
#[derive(Clone, Copy)]
struct Rows {
    rows: u32,
    measured: bool,
}

impl Rows {
    fn of(measured: Option<u32>, tokens: u32) -> Self {
        let rows = measured.unwrap_or_else(|| prior_rows(Kind::Cuda, tokens));
        Self { rows, measured: measured.is_some() }
    }

    fn whole(self, tile: u32) -> Self {
        Self { rows: self.rows.next_multiple_of(tile), ..self }
    }
}

/// A line for what was measured, and one for what was not.
fn why(vision: Rows, text: Rows) -> impl Iterator<Item = String> {
    [true, false].into_iter().filter_map(move |measured| {
        let of = [(vision, "images"), (text, "texts")].into_iter();
        let of = of.filter(|(rows, _)| rows.measured == measured);
        let parts: Vec<String> = of.map(|(rows, what)| format!("{} {what}", rows.rows)).collect();
        let reason = if measured {
            "the smallest that are as fast as any, as `orchestrator profile` measured on every device"
                .to_owned()
        } else {
            format!(
                "a GPU's rate is flat from about {KNEE_TOKENS} tokens on, and more would only hold \
                 more memory"
            )
        };
        (!parts.is_empty()).then(|| format!("batch auto → {}: {reason}", parts.join(", ")))
    })
}

fn previous_power_of_two(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

/// The largest claim of every component and model over all trials, for one slice.
pub(super) fn claims(
    evaluation: &Evaluation,
    models: &[&ModelFacts],
    trials: &[Trial],
    shapes: &[Shape],
    sizes: Sizes,
    offer: &SliceOffer,
    components: &[Component],
) -> Vec<Claim> {
    let kind = kind(&offer.device);
    let mut largest: BTreeMap<(Component, usize), Claim> = BTreeMap::new();
    for (trial, shape) in trials.iter().zip(shapes) {
        let (model, name) = (models[trial.model], &evaluation.models[trial.model].path);
        let (threads, precision) = (offer.threads, trial.precision);
        let how = |tile, batch| Dispatch { kind, precision, tile, batch, threads };
        for &component in components {
            let (key, claim) = match component {
                Component::Text => {
                    let how = how(TEXT_TILE, shape.batch.text);
                    (trial.model, claim::text(name, model, how, sizes))
                }
                Component::Vision => {
                    let how = how(shape.vision_tile, shape.batch.vision);
                    (trial.model, claim::vision(name, model, how, sizes))
                }
                Component::Score => (0, claim::score(model, how(1, 1), sizes)),
            };
            let entry = largest.entry((component, key)).or_insert_with(|| claim.clone());
            if claim.peak() > entry.peak() {
                *entry = claim;
            }
        }
    }
    largest.into_values().collect()
}

/// What the vision tower of every model and precision claims on a slice.
pub(super) fn towers(
    evaluation: &Evaluation,
    models: &[&ModelFacts],
    trials: &[Trial],
    shapes: &[Shape],
    sizes: Sizes,
    base: &Path,
    slice: &Placement,
) -> Towers {
    let (kind, threads) = (kind(&slice.device), slice.threads);
    let mut towers = Towers::new();
    for (trial, shape) in trials.iter().zip(shapes) {
        let (model, name) = (models[trial.model], &evaluation.models[trial.model].path);
        let (tile, batch, precision) = (shape.vision_tile, shape.batch.vision, trial.precision);
        let how = Dispatch { kind, precision, tile, batch, threads };
        let claim = claim::vision(name, model, how, sizes);
        let entry = towers.entry(ModelSource::of(base, name, model, precision));
        let known = entry.or_insert_with(|| claim.clone());
        if claim.peak() > known.peak() {
            *known = claim;
        }
    }
    towers
}

const fn kind(device: &DeviceId) -> Kind {
    match device {
        DeviceId::Cpu => Kind::Cpu,
        DeviceId::Gpu(_) | DeviceId::Mig(_) => Kind::Cuda,
    }
}
