//! The order in which a plan's units are preferred: which of those that are ready comes next.
//!
//! Image units of one recipe and shard stand next to each other over the trials, so that a node
//! decodes an image once for all of them. That needs their towers side by side: where a slice has
//! no room for all, towers would be loaded anew for every shard, and the trials go one by one.
//! Order changes no result.

use std::collections::{BTreeMap, BTreeSet};

use orchestrator_types::{ByteCount, Component, Digest};

use crate::{Block, Claim, EncodeImages, GroupId, ModelSource, Placement, Units, Work, claim::sum};

/// Models that an executor keeps open at once.
pub const MOST_TOWERS: usize = 16;

/// The vision tower of each model and precision, as it is claimed.
pub(crate) type Towers = BTreeMap<ModelSource, Claim>;

/// Gives every unit its turn and its group. Reasons are told where trials share images.
pub(crate) fn order(
    units: &mut Units,
    placement: &[Placement],
    towers: impl Fn(&Placement) -> Towers,
) -> Vec<String> {
    group(units);
    let shared: Vec<Recipe> = recipes(units).into_values().filter(Recipe::is_shared).collect();
    let lacking =
        shared.iter().find_map(|recipe| Some((recipe, lack(recipe, placement, &towers)?)));
    take_turns(units, lacking.is_some() || shared.is_empty());
    match lacking {
        Some((Recipe { dataset, passes, .. }, why)) => vec![format!(
            "images of {dataset} go through {passes} towers or batches, one after the other, because \
             {why}; what the cache of decoded samples still holds then is not decoded again",
        )],
        None => shared.iter().map(side_by_side).collect(),
    }
}

fn side_by_side(Recipe { dataset, passes, .. }: &Recipe) -> String {
    format!(
        "images of {dataset} go through {passes} towers or batches: shards run next to each other \
         over them, so that a node decodes each image once"
    )
}

/// Who decodes the same images in the same way.
struct Recipe {
    dataset: String,
    models: BTreeSet<ModelSource>,
    /// Passes over the dataset.
    passes: usize,
}

impl Recipe {
    const fn is_shared(&self) -> bool {
        self.passes > 1
    }
}

fn images(block: &Block) -> Option<(&EncodeImages, Digest)> {
    match &block.first.work {
        Work::EncodeImages(work) => Some((work, work.recipe?)),
        Work::EncodeTexts(_) | Work::Rank(_) => None,
    }
}

fn recipes(units: &Units) -> BTreeMap<Digest, Recipe> {
    let mut recipes = BTreeMap::new();
    for (work, recipe) in units.blocks().iter().filter_map(images) {
        let entry = recipes.entry(recipe).or_insert_with(|| Recipe {
            dataset: work.dataset.name.to_string(),
            models: BTreeSet::new(),
            passes: 0,
        });
        entry.models.insert(work.model.clone());
        entry.passes += usize::from(work.shard.start == 0);
    }
    recipes
}

/// Why the towers of a recipe cannot stay side by side, if they cannot.
fn lack(
    recipe: &Recipe,
    placement: &[Placement],
    towers: &impl Fn(&Placement) -> Towers,
) -> Option<String> {
    let count = recipe.models.len();
    if count > MOST_TOWERS {
        return Some(format!(
            "they have {count} models and a slice keeps at most {MOST_TOWERS} open"
        ));
    }
    let vision = placement.iter().filter(|slice| slice.components.contains(&Component::Vision));
    let needs = vision.map(|slice| (slice, together(recipe, slice, &towers(slice))));
    let small = needs.filter(|(slice, needed)| *needed > slice.quota_bytes);
    small.min_by_key(|(slice, _)| slice.quota_bytes).map(|(slice, needed)| {
        let (name, quota) = (&slice.slice, slice.quota_bytes);
        format!(
            "their {count} vision towers need {needed} side by side and slice {name} has {quota}"
        )
    })
}

/// What a slice needs for all towers of a recipe, one of them at work.
fn together(recipe: &Recipe, slice: &Placement, towers: &Towers) -> ByteCount {
    let claims = || recipe.models.iter().filter_map(|model| towers.get(model));
    let weights = sum(claims().map(|claim| claim.weights_bytes));
    let at_work = claims().map(|claim| {
        let most = claim.peak().max(claim.least_bytes);
        most.checked_sub(claim.weights_bytes).unwrap_or_default()
    });
    sum([weights, at_work.max().unwrap_or_default(), slice.runtime_bytes])
}

/// Numbers what reads the same images in the same way, in the order in which it stands in the plan.
/// All passes over a dataset are cut alike, so that its shards have one row of numbers.
fn group(units: &mut Units) {
    let (mut groups, mut next) = (BTreeMap::new(), 0);
    for block in units.blocks_mut() {
        let Some((work, recipe)) = images(block) else { continue };
        let first = *groups.entry((recipe, work.shard)).or_insert(next);
        next = next.max(first + block.count);
        block.first.group = Some(GroupId(first));
    }
}

/// By shard over all trials, recipe by recipe; or, `apart`, as the units stand in the plan.
fn take_turns(units: &mut Units, apart: bool) {
    for block in units.blocks_mut() {
        block.first.turn = match block.first.group {
            Some(GroupId(group)) if !apart => group,
            _ => block.first.id.0,
        };
    }
}

#[cfg(test)]
mod tests;
