use proptest::prelude::*;

use super::*;
use crate::{Plan, Unit, tests::sweep};

/// Image units in the order in which they are preferred: trial and group of each.
fn preferred(plan: &Plan) -> Vec<(u32, u32)> {
    let trial = |unit: &Unit| {
        let holds = |trial: &&crate::TrialPlan| {
            trial.tasks.iter().any(|task| task.images.contains(unit.id))
        };
        plan.trials.iter().find(holds).unwrap().id.0
    };
    let mut images: Vec<Unit> = plan.units.iter().filter(|it| it.group.is_some()).collect();
    images.sort_by_key(|unit| (unit.turn, unit.id));
    images.iter().map(|unit| (trial(unit), unit.group.unwrap().0)).collect()
}

fn reason(plan: &Plan) -> &str {
    let shared = plan.reasons.iter().find(|reason| reason.starts_with("images of a "));
    shared.map_or("", |reason| reason)
}

#[test]
fn trials_that_share_images_take_turns_at_every_shard() {
    let plan = sweep("precision: [fp32, bf16]", 600, ByteCount::gib(1));
    let expected = [0, 1, 2].into_iter().flat_map(|shard| [(0, shard), (1, shard)]);
    assert_eq!(preferred(&plan)[..6], expected.collect::<Vec<_>>());
    insta::assert_snapshot!(reason(&plan), @"images of a go through 2 towers or batches: shards run next to each other over them, so that a node decodes each image once");
}

#[test]
fn where_towers_have_no_room_beside_each_other_trials_go_one_by_one() {
    let small = ByteCount::mib(24);
    let plan = sweep("precision: [fp32, bf16]", 600, small);
    let trials: Vec<u32> = preferred(&plan).iter().map(|(trial, _)| *trial).collect();
    assert!(trials.is_sorted(), "{trials:?}");
    insta::assert_snapshot!(reason(&plan), @"images of a go through 2 towers or batches, one after the other, because their 2 vision towers need 27.62 MiB side by side and slice laptop.0 has 24.00 MiB; what the cache of decoded samples still holds then is not decoded again");
    let batches = sweep("batch: [4, 8]", 600, small);
    assert_eq!(preferred(&batches)[..2], [(0, 0), (1, 0)], "one tower serves both");
}

#[test]
fn what_nothing_shares_has_the_order_of_the_plan() {
    let plan = sweep("precision: [fp32]", 600, ByteCount::gib(1));
    assert!(plan.units.iter().is_sorted_by_key(|unit| unit.turn));
    assert_eq!(reason(&plan), "");
}

#[test]
fn gpus_of_all_batches_share_their_shards() {
    let plan = crate::tests::on_gpus(&["GPU-a"], "[100, 1200]", &crate::Measured::default());
    let first = |trial: usize| plan.unit(plan.trials[trial].tasks[0].images.iter().next().unwrap());
    assert_eq!(first(0).unwrap().group, first(1).unwrap().group);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_image_unit_has_its_shard_in_common_with_its_group_alone(
        samples in 1..3_000_u32,
        mib in 32..80_u64,
    ) {
        let plan = sweep("precision: [fp32, bf16, fp16]", samples, ByteCount::mib(mib));
        let mut shards = BTreeMap::new();
        for unit in plan.units.iter() {
            match &unit.work {
                Work::EncodeImages(work) => {
                    let what = (work.recipe.unwrap(), work.shard);
                    let known = shards.entry(unit.group.unwrap()).or_insert(what);
                    prop_assert_eq!(*known, what);
                }
                Work::EncodeTexts(_) | Work::Rank(_) => prop_assert_eq!(unit.group, None),
            }
        }
        let distinct: BTreeSet<_> = shards.values().collect();
        prop_assert_eq!(distinct.len(), shards.len());
    }
}
