//! [`plan`]: the decisions.

mod shape;
mod units;

use std::path::Path;

use orchestrator_spec::{Evaluation, Facts};
use orchestrator_types::{ByteCount, DatasetName, SliceId};

use self::{
    shape::{Shape, claims},
    units::Builder,
};
use crate::{Claim, Inventory, PLAN_SCHEMA, Plan, placement::place};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing to run on.
    #[error("the inventory holds no slice; start a worker or pass a slice in the inventory file")]
    NoSlice,
    /// A slice can never hold what it would have to.
    #[error(
        "slice {slice} never fits: {needed} needed, {quota} offered{}; offer a larger slice or a \
         smaller batch", describe(.largest.as_deref())
    )]
    NeverFits {
        /// The slice.
        slice: SliceId,
        /// Predicted peak.
        needed: ByteCount,
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

fn describe(largest: Option<&Claim>) -> String {
    largest.map_or_else(String::new, |claim| {
        format!(
            " ({} weights {}, activations {}, staging {})",
            claim.component, claim.weights_bytes, claim.activations_bytes, claim.staging_bytes
        )
    })
}

/// Decides everything that a run of `evaluation` will do on `inventory`. Relative paths of the
/// evaluation start at `base`.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    evaluation: &Evaluation,
    facts: &Facts,
    inventory: &Inventory,
    base: &Path,
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
    let shapes: Vec<Shape> =
        trials.iter().map(|trial| Shape::of(trial, models[trial.model])).collect();
    let inventory = inventory.within(evaluation.memory.quota);
    let (placement, mut reasons) = place(&inventory, |offer, components| {
        claims(evaluation, &models, &trials, &shapes, offer, components)
    })?;
    let mut builder = Builder::new(evaluation, facts, base);
    let planned = trials
        .iter()
        .zip(&shapes)
        .map(|(trial, shape)| builder.trial(trial, models[trial.model], shape))
        .collect::<Result<Vec<_>, _>>()?;
    reasons.extend(shapes.iter().flat_map(|shape| shape.reasons.iter().cloned()));
    reasons.dedup();
    Ok(Plan {
        schema: PLAN_SCHEMA.to_owned(),
        name: evaluation.name.clone(),
        placement,
        trials: planned,
        units: builder.into_units(),
        reasons,
        memory: evaluation.memory.clone(),
    })
}
