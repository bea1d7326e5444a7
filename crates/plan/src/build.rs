//! [`plan`]: the decisions.

mod shape;
mod units;

use std::path::Path;

use orchestrator_spec::{Evaluation, Facts, ModelFacts, Trial};
use orchestrator_types::{ByteCount, Component, DatasetName, DeviceId, SliceId};

use self::{
    shape::{Shape, claims, towers},
    units::{Builder, sizes},
};
use crate::{
    Claim, Inventory, Measured, ModelSource, PLAN_SCHEMA, Plan, TowerCost, cost::Left,
    order::order, placement::place,
};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing to run on.
    #[error("the inventory holds no slice; start a worker or pass a slice in the inventory file")]
    NoSlice,
    /// A slice can never hold what it would have to.
    #[error(
        "slice {slice} never fits: at least {needed} needed, {quota} offered, {missing} missing{}; \
         raise memory.quota or offer a larger slice, or lower the precision",
        describe(.largest.as_deref(), *.runtime)
    )]
    NeverFits {
        /// The slice.
        slice: SliceId,
        /// The least that its largest component needs, one row at a time.
        needed: ByteCount,
        /// What it lacks.
        missing: ByteCount,
        /// Kept apart for the device's runtime.
        runtime: ByteCount,
        /// What it offers.
        quota: ByteCount,
        /// The largest single claim.
        largest: Option<Box<Claim>>,
    },
    /// The facts do not belong to the evaluation, or name something unusable.
    #[error("no facts about {what}; check the evaluation before planning it")]
    NoFacts {
        /// The model or dataset.
        what: String,
    },
    /// More rows than positions can count.
    #[error("dataset `{dataset}` has too many texts: {texts}, at most {} can be planned", u32::MAX)]
    TooManyTexts {
        /// The dataset.
        dataset: DatasetName,
        /// Its texts.
        texts: u64,
    },
}

fn describe(largest: Option<&Claim>, runtime: ByteCount) -> String {
    let runtime = if runtime == ByteCount::ZERO {
        String::new()
    } else {
        format!(", {runtime} for the device's runtime")
    };
    largest.map_or_else(String::new, |claim| {
        let beside = claim.least_bytes.as_u64().saturating_sub(claim.weights_bytes.as_u64());
        format!(
            " ({}: weights {}, {} beside them for one row at a time{runtime})",
            claim.component,
            claim.weights_bytes,
            ByteCount::bytes(beside)
        )
    })
}

/// Decides everything that a run of `evaluation` will do on `inventory`. Relative paths of the
/// evaluation start at `base`. Batches that are the planner's choice are those that were `measured`
/// where that was done on every device.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    evaluation: &Evaluation,
    facts: &Facts,
    inventory: &Inventory,
    base: &Path,
    measured: &Measured,
) -> Result<Plan, PlanError> {
    let models = evaluation
        .models
        .iter()
        .zip(&facts.models)
        .map(|(model, facts)| {
            let known = facts.as_ref().ok();
            known.ok_or_else(|| PlanError::NoFacts { what: format!("model `{}`", model.path) })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let trials = evaluation.trials();
    let inventory = inventory.within(evaluation.memory.quota);
    let shape = |trial: &Trial| Shape::of(trial, models[trial.model], &inventory, measured);
    let mut shapes: Vec<Shape> = trials.iter().map(shape).collect();
    // One cut for all trials, so that they share what is decoded of a shard.
    let least_shard = shapes.iter().map(|shape| shape.least_shard).max().unwrap_or(1);
    for shape in &mut shapes {
        shape.least_shard = least_shard;
    }
    let sizes = sizes(evaluation, facts, &shapes);
    let mut builder = Builder::new(evaluation, facts, base);
    let planned = trials
        .iter()
        .zip(&shapes)
        .map(|(trial, shape)| builder.trial(trial, models[trial.model], shape))
        .collect::<Result<Vec<_>, _>>()?;
    let mut units = builder.into_units();
    let costs = costs(evaluation, &models, &trials, base);
    let left = Left::of(&costs, &units, |_| true);
    let (placement, mut reasons) =
        place(&inventory, &left, evaluation.split, |offer, components| {
            claims(evaluation, &models, &trials, &shapes, sizes, offer, components)
        })?;
    reasons.extend(order(&mut units, &placement, |slice| {
        towers(evaluation, &models, &trials, &shapes, sizes, base, slice)
    }));
    if evaluation.memory.allocator.is_some()
        && inventory.slices.iter().all(|slice| slice.device == DeviceId::Cpu)
    {
        reasons.push(
            "memory.allocator: a processor's allocator counts bytes and has no settings; it \
             changes nothing on these slices"
                .to_owned(),
        );
    }
    reasons.extend(shapes.iter().flat_map(|shape| shape.reasons.iter().cloned()));
    reasons.dedup();
    Ok(Plan {
        schema: PLAN_SCHEMA.to_owned(),
        name: evaluation.name.clone(),
        placement,
        trials: planned,
        units,
        reasons,
        memory: evaluation.memory.clone(),
        split: evaluation.split,
        costs,
    })
}

/// The cost of every tower of the sweep.
fn costs(
    evaluation: &Evaluation,
    models: &[&ModelFacts],
    trials: &[Trial],
    base: &Path,
) -> Vec<TowerCost> {
    let mut costs: Vec<TowerCost> = Vec::new();
    for trial in trials {
        let facts = models[trial.model];
        let path = &evaluation.models[trial.model].path;
        for component in [Component::Text, Component::Vision] {
            let model = ModelSource::of(base, path, facts, trial.precision);
            if !costs.iter().any(|known| known.component == component && known.model == model) {
                costs.push(TowerCost::of(component, model, facts));
            }
        }
    }
    costs
}
