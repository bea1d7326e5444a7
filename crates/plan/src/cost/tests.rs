use std::path::Path;

use orchestrator_spec::Split;
use proptest::prelude::*;

use super::*;
use crate::{Inventory, Measured, Plan, place_again, plan, tests};

fn offer(number: usize, device: &str, threads: u32, gib: u64) -> SliceOffer {
    SliceOffer {
        id: format!("n.{number}").parse().unwrap(),
        node: "n".parse().unwrap(),
        device: device.parse().unwrap(),
        threads,
        memory_bytes: ByteCount::gib(gib),
    }
}

fn planned(samples: u32, slices: &[SliceOffer], axis: &str) -> Plan {
    let inventory = Inventory { slices: slices.to_vec() };
    let (evaluation, facts) = (tests::swept(axis), tests::facts(samples, 1));
    plan(&evaluation, &facts, &inventory, Path::new("/"), &Measured::default()).unwrap()
}

/// The slices that have work.
fn used(placement: &[crate::Placement]) -> Vec<String> {
    let busy = placement.iter().filter(|slice| !slice.components.is_empty());
    busy.map(|slice| slice.slice.to_string()).collect()
}

fn why(plan: &Plan) -> String {
    let told = plan.reasons.iter().filter(|reason| reason.contains("predicted to end"));
    told.cloned().collect::<Vec<_>>().join("\n")
}

const BATCH: &str = "batch: [auto]";

#[test]
fn few_images_stay_on_one_slice_and_many_are_split() {
    let two = [offer(0, "cpu", 1, 4), offer(1, "cpu", 1, 4)];
    let light = planned(10, &two, BATCH);
    assert_eq!(used(&light.placement), ["n.0"]);
    insta::assert_snapshot!(why(&light), @"1 of 2 slices: predicted to end after 4.5 s, and after 4.4 s on 2; a slice more has to save 10 % of it");
    let heavy = planned(4_000, &two, BATCH);
    assert_eq!(used(&heavy.placement), ["n.0", "n.1"]);
    insta::assert_snapshot!(why(&heavy), @"2 of 2 slices: predicted to end after 97.1 s, and after 190.3 s on 1; a slice more has to save 10 % of it");
    assert_eq!(light.units.len(), planned(10, &two[..1], BATCH).units.len());
}

#[test]
fn who_wishes_it_gets_it_split_or_whole() {
    let two = [offer(0, "cpu", 1, 4), offer(1, "cpu", 1, 4)];
    let inventory = Inventory { slices: two.to_vec() };
    let base = Path::new("/");
    for (split, samples, expected) in
        [(Split::Always, 10, &["n.0", "n.1"][..]), (Split::Never, 4_000, &["n.1"])]
    {
        let evaluation = orchestrator_spec::Evaluation { split, ..tests::swept(BATCH) };
        let facts = tests::facts(samples, 1);
        let plan = plan(&evaluation, &facts, &inventory, base, &Measured::default()).unwrap();
        assert_eq!(used(&plan.placement), expected);
        assert_eq!(used(&place_again(&plan, &inventory, |_| true)), expected);
    }
}

#[test]
fn the_fastest_slice_does_what_is_light_and_among_equals_the_largest() {
    let mixed = [offer(0, "cpu", 1, 4), offer(1, "cpu", 4, 4), offer(2, "cpu", 2, 4)];
    assert_eq!(used(&planned(10, &mixed, BATCH).placement), ["n.1"]);
    let sizes = [offer(0, "cpu", 1, 4), offer(1, "cpu", 1, 8)];
    assert_eq!(used(&planned(10, &sizes, BATCH).placement), ["n.1"]);
    let gpu = [offer(0, "GPU-a", 4, 80), offer(1, "cpu", 4, 80)];
    let plan = planned(50_000, &gpu, BATCH);
    let texts = |slice: &&crate::Placement| slice.components.contains(&Component::Text);
    assert_eq!(plan.placement.iter().find(texts).unwrap().slice.as_str(), "n.0");
}

#[test]
fn what_is_left_decides_when_slices_come_and_go() {
    let two = [offer(0, "cpu", 1, 4), offer(1, "cpu", 1, 4)];
    let inventory = Inventory { slices: two.to_vec() };
    let plan = planned(4_000, &two[..1], BATCH);
    assert_eq!(used(&place_again(&plan, &inventory, |_| true)), ["n.0", "n.1"], "it joins");
    let last = plan.units.iter().rfind(|unit| unit.group.is_some()).unwrap().id;
    let ranks = |id| plan.unit(id).is_some_and(|unit| unit.component() == Component::Score);
    let left = |id| id == last || ranks(id);
    assert_eq!(used(&place_again(&plan, &inventory, left)), ["n.0"], "one unit is not worth it");
    assert_eq!(used(&place_again(&plan, &inventory, ranks)), ["n.0", "n.1"], "no tower is loaded");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_chosen_is_predicted_to_end_no_later_than_one_slice(
        samples in 1..3_000_u32,
        threads in prop::collection::vec(1..9_u32, 1..6),
    ) {
        let slices: Vec<SliceOffer> =
            threads.iter().enumerate().map(|(at, threads)| offer(at, "cpu", *threads, 4)).collect();
        let plan = planned(samples, &slices, BATCH);
        let left = Left::of(&plan.costs, &plan.units, |_| true);
        let (chosen, _) = choose(&left, &slices);
        let chosen: Vec<&SliceOffer> = chosen.iter().map(|at| &slices[*at]).collect();
        for one in &slices {
            prop_assert!(left.end(&chosen) <= left.end(&[one]));
        }
        let used = plan.placement.iter().filter(|slice| !slice.components.is_empty()).count();
        prop_assert_eq!(used, chosen.len());
        prop_assert_eq!(crate::check(&plan), []);
    }
}

/// What [`last_end`] says without counting: unit by unit.
fn one_by_one(pullers: &[Puller], units: usize) -> f64 {
    let mut free: Vec<f64> = pullers.iter().map(|puller| puller.free).collect();
    let mut loaded = vec![false; pullers.len()];
    let mut end = free.iter().copied().fold(0.0, f64::max);
    for _ in 0..units {
        let next = (0..free.len()).min_by(|a, b| free[*a].total_cmp(&free[*b])).unwrap();
        let load =
            if std::mem::replace(&mut loaded[next], true) { 0.0 } else { pullers[next].load };
        free[next] += load + pullers[next].unit;
        end = end.max(free[next]);
    }
    end
}

proptest! {
    #[test]
    fn the_end_is_that_of_slices_that_pull_unit_by_unit(
        // Quarters of seconds, so that some are free together.
        pullers in prop::collection::vec((0..9_u8, 0..9_u8, 1..19_u8), 1..7),
        units in 0..200_usize,
    ) {
        let quarters = |quarters| f64::from(quarters) / 4.0;
        let puller = |(free, load, unit)| Puller {
            free: quarters(free),
            load: quarters(load),
            unit: quarters(unit),
        };
        let pullers: Vec<Puller> = pullers.into_iter().map(puller).collect();
        let (counted, pulled) = (last_end(&pullers, units), one_by_one(&pullers, units));
        prop_assert!((counted - pulled).abs() < 1e-3, "{counted} and {pulled}");
    }
}

#[test]
fn a_thousand_slices_are_weighed_at_once() {
    let slices: Vec<SliceOffer> = (0..1_000).map(|number| offer(number, "cpu", 1, 4)).collect();
    let weighed = counts(1_000).collect::<Vec<_>>();
    assert!(
        weighed.is_sorted() && weighed.len() < 100 && weighed.ends_with(&[1_000]),
        "{weighed:?}"
    );
    // Pulled one by one, for every number of slices, this would take minutes.
    assert!(used(&planned(500_000, &slices, BATCH).placement).len() < 1_000);
}
