//! Named invariants of plans, and one plan to read.

use std::path::Path;

use orchestrator_spec::{DatasetFacts, Evaluation, Facts, ModelFacts, TowerFacts};
use orchestrator_types::{ByteCount, Component, DeviceId, Digest};
use proptest::prelude::*;

use crate::{
    EncodeTexts, Inventory, Measured, MeasuredRows, Plan, PlanError, SliceOffer, TextSet, Work,
    check, plan,
};

fn evaluation(batch: &str) -> Evaluation {
    swept(&format!("batch: {batch}"))
}

/// The evaluation with one axis besides its model.
pub(crate) fn swept(axis: &str) -> Evaluation {
    let text = format!(
        "version: 1\nname: test\nmodels: [{{path: m}}]\ndatasets:\n  a: {{format: imagefolder, path: \
         a}}\n  b: {{format: captions, path: b.jsonl}}\ntasks:\n  - zero_shot: {{dataset: a}}\n  - \
         retrieval: {{dataset: b}}\n  - retrieval: {{dataset: b, captions: all}}\nsweep: {{{axis}}}\n"
    );
    orchestrator_spec::parse("eval.yaml", &text, &[]).unwrap()
}

pub(crate) fn facts(samples: u32, captions: u32) -> Facts {
    let tower = |tokens, width| TowerFacts {
        layers: 6,
        width,
        heads: 4,
        mlp: 4 * width,
        tokens,
        weights_bytes: ByteCount::mib(7),
    };
    let model = ModelFacts {
        architecture: "CLIPModel".into(),
        weights_bytes: ByteCount::bytes(15_280_000),
        parameters: 7_640_000,
        weights_blake3: Digest::of(b"weights"),
        tokenizer_blake3: Digest::of(b"tokenizer"),
        preprocess: "bicubic 112".into(),
        crop: "112".into(),
        image_size: 112,
        context: 32,
        embedding_width: 256,
        vision: tower(50, 256),
        text: tower(32, 192),
    };
    let labelled = DatasetFacts {
        samples,
        labelled: true,
        classes: 95,
        templates: 6,
        captions_first: 0,
        captions_all: 0,
        manifest_digest: Digest::of(b"a"),
        templates_digest: Some(Digest::of(b"templates")),
        warnings: Vec::new(),
    };
    let captioned = DatasetFacts {
        labelled: false,
        classes: 0,
        templates: 0,
        captions_first: samples,
        captions_all: samples * captions,
        manifest_digest: Digest::of(b"b"),
        templates_digest: None,
        ..labelled.clone()
    };
    let datasets =
        [("a", labelled), ("b", captioned)].map(|(name, facts)| (name.parse().unwrap(), Ok(facts)));
    Facts { models: vec![Ok(model)], datasets: datasets.into() }
}

fn inventory(slices: u32, memory: ByteCount) -> Inventory {
    let offer = |index| SliceOffer {
        id: format!("laptop.{index}").parse().unwrap(),
        node: "laptop".parse().unwrap(),
        device: DeviceId::Cpu,
        threads: 2,
        memory_bytes: memory,
    };
    Inventory { slices: (0..slices).map(offer).collect() }
}

fn none() -> Measured {
    Measured::default()
}

fn planned(samples: u32, captions: u32, slices: u32, batch: &str) -> Plan {
    let inventory = inventory(slices, ByteCount::gib(4));
    plan(&evaluation(batch), &facts(samples, captions), &inventory, Path::new("/data"), &none())
        .unwrap()
}

/// Two axes: the model and `axis`, on one slice of so much memory.
pub(crate) fn sweep(axis: &str, samples: u32, memory: ByteCount) -> Plan {
    let inventory = inventory(1, memory);
    let base = Path::new("/data");
    plan(&swept(axis), &facts(samples, 1), &inventory, base, &none()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_plan_passes_the_checker(
        samples in 1..20_000_u32,
        captions in 1..6_u32,
        slices in 1..5_u32,
        batch in prop::sample::select(vec!["[auto]", "[1]", "[7, 256]"]),
    ) {
        prop_assert_eq!(check(&planned(samples, captions, slices, batch)), []);
    }

    #[test]
    fn every_plan_on_mixed_slices_passes_the_checker(
        offers in prop::collection::vec((any::<bool>(), 1..3_000_u64), 1..6),
    ) {
        let mut inventory = inventory(u32::try_from(offers.len()).unwrap(), ByteCount::ZERO);
        for (offer, (gpu, amount)) in inventory.slices.iter_mut().zip(offers) {
            // About half of either kind are too small.
            offer.memory_bytes = ByteCount::mib(if gpu { amount } else { amount / 100 });
            offer.device = if gpu { "GPU-a".parse().unwrap() } else { DeviceId::Cpu };
        }
        let base = Path::new("/data");
        let planned = plan(&evaluation("[auto]"), &facts(600, 2), &inventory, base, &none());
        match planned {
            Ok(plan) => {
                prop_assert_eq!(check(&plan), []);
                prop_assert_eq!(check(&Plan { placement: crate::place_again(&plan, &inventory, |_| true), ..plan }), []);
            }
            Err(error) => prop_assert!(matches!(error, PlanError::NeverFits { .. }), "{error}"),
        }
    }

    #[test]
    fn work_does_not_depend_on_the_slices(samples in 1..5_000_u32, slices in 2..6_u32) {
        let (one, many) = (planned(samples, 2, 1, "[auto]"), planned(samples, 2, slices, "[auto]"));
        prop_assert_eq!(one.units, many.units);
    }

    #[test]
    fn tiles_and_shards_do_not_depend_on_the_batch(samples in 1..5_000_u32, batch in 1..600_u32) {
        let cuts = |plan: &Plan| -> Vec<_> {
            plan.units
                .iter()
                .filter_map(|unit| match &unit.work {
                    Work::EncodeImages(work) => Some((work.shard, work.tile)),
                    Work::EncodeTexts(_) | Work::Rank(_) => None,
                })
                .collect()
        };
        let fixed = planned(samples, 2, 1, &format!("[{batch}]"));
        prop_assert_eq!(cuts(&planned(samples, 2, 1, "[auto]")), cuts(&fixed));
    }
}

/// The parts of a set of `texts` of which `distinct` are distinct, in tiles that are full only
/// where `full` says so, as an executor cuts them.
fn part_rows(work: &EncodeTexts, distinct: u32, full: impl Fn(u32) -> bool) -> u32 {
    let starts = work.starts(distinct);
    let (mut row, mut rows) = (0, 0);
    while row < distinct {
        let tile = if full(row) { work.tile } else { 1 }.min(distinct - row);
        rows += if starts.contains(&row) { tile } else { 0 };
        row += tile;
    }
    rows
}

fn text_units(plan: &Plan) -> Vec<(EncodeTexts, u32)> {
    let texts = |unit: crate::Unit| match unit.work {
        Work::EncodeTexts(work) if work.texts == TextSet::AllCaptions => Some((work, unit.rows)),
        _ => None,
    };
    plan.units.iter().filter_map(texts).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_part_of_the_texts_has_more_rows_than_planned(
        texts in 1..70_000_u32,
        doubles in 0..40_000_u32,
        uneven in 1..50_u32,
    ) {
        let distinct = texts.saturating_sub(doubles).max(1);
        let parts = text_units(&planned(texts, 1, 1, "[auto]"));
        let full = |row: u32| !(row / 7).is_multiple_of(uneven);
        let rows: Vec<u32> =
            parts.iter().map(|(work, _)| part_rows(work, distinct, full)).collect();
        prop_assert_eq!(rows.iter().sum::<u32>(), distinct);
        for (rows, (_, most)) in rows.iter().zip(&parts) {
            prop_assert!(rows <= most, "{rows} of at most {most}");
        }
    }
}

#[test]
fn twenty_thousand_texts_are_two_parts_of_whole_tiles() {
    let parts = text_units(&planned(20_000, 1, 1, "[auto]"));
    let rows: Vec<u32> = parts.iter().map(|(work, _)| part_rows(work, 20_000, |_| true)).collect();
    assert_eq!(rows, [10_016, 9_984]);
    assert!(parts.iter().all(|(_, most)| *most == 10_031));
}

#[test]
fn only_the_last_of_several_slices_loads_the_text_tower() {
    let plan = planned(4_000, 1, 3, "[auto]");
    let holders: Vec<bool> =
        plan.placement.iter().map(|slice| slice.components.contains(&Component::Text)).collect();
    assert_eq!(holders, [false, false, true]);
    let weights = |index: usize| -> u64 {
        plan.placement[index].claims.iter().map(|claim| claim.weights_bytes.as_u64()).sum()
    };
    assert!(weights(0) < weights(2));
}

#[test]
fn trials_that_differ_by_batch_share_their_texts() {
    let plan = planned(1593, 5, 1, "[1, 256]");
    assert_eq!(plan.trials[0].tasks[0].texts, plan.trials[1].tasks[0].texts);
    assert_ne!(plan.trials[0].tasks[0].images, plan.trials[1].tasks[0].images);
    assert_ne!(plan.trials[0].batch, plan.trials[1].batch);
}

#[test]
fn scores_claim_tiles_for_the_threads_that_a_unit_can_feed() {
    let tile = 4 * ((256 + 512) * 256 + 256 * 512);
    // The longest units have 200 captions, 1,200, and 2,048 of 20,000.
    for (samples, captions, most) in [(200, 1, 1), (600, 2, 5), (10_000, 2, 8)] {
        for threads in [1, 2, 5, 32] {
            let mut inventory = inventory(1, ByteCount::gib(4));
            inventory.slices[0].threads = threads;
            let facts = facts(samples, captions);
            let plan = plan(&evaluation("[auto]"), &facts, &inventory, Path::new("/"), &none());
            let plan = plan.unwrap();
            let mut claims = plan.placement[0].claims.iter();
            let score = claims.find(|claim| claim.component == Component::Score).unwrap();
            let claimed = score.activations_bytes.as_u64() / tile;
            assert_eq!(
                claimed,
                u64::from(threads.min(most)),
                "{samples} samples, {threads} threads"
            );
        }
    }
}

#[test]
fn a_plan_reads_well() {
    let plan = planned(600, 2, 2, "[auto]");
    insta::assert_snapshot!(serde_json::to_string_pretty(&plan).unwrap());
}

#[test]
fn what_cannot_fit_is_refused_with_the_sums() {
    let refuse = |inventory| {
        let base = Path::new("/data");
        plan(&evaluation("[auto]"), &facts(10, 1), &inventory, base, &none()).unwrap_err()
    };
    let small = refuse(inventory(1, ByteCount::mib(12)));
    insta::assert_snapshot!(small.to_string());
    assert!(matches!(refuse(Inventory::default()), PlanError::NoSlice));
}

#[test]
fn the_tighter_of_quota_and_offer_is_the_ceiling() {
    let offered = inventory(1, ByteCount::gib(1));
    let asked = |quota| {
        let mut evaluation = evaluation("[auto]");
        evaluation.memory.quota = quota;
        let plan = plan(&evaluation, &facts(10, 1), &offered, Path::new("/"), &none());
        plan.map(|plan| {
            let again = crate::place_again(&plan, &offered, |_| true);
            assert_eq!(again[0].quota_bytes, plan.placement[0].quota_bytes, "resumed under it too");
            plan.placement[0].quota_bytes
        })
    };
    assert_eq!(asked(None).unwrap(), ByteCount::gib(1));
    assert_eq!(asked(Some(ByteCount::gib(2))).unwrap(), ByteCount::gib(1));
    assert_eq!(asked(Some(ByteCount::mib(500))).unwrap(), ByteCount::mib(500));
    let refused = asked(Some(ByteCount::mib(2)));
    assert!(
        matches!(refused, Err(PlanError::NeverFits { quota, .. }) if quota == ByteCount::mib(2))
    );
}

pub(crate) fn on_gpus(gpus: &[&str], batch: &str, measured: &Measured) -> Plan {
    let devices = gpus.iter().map(|gpu| gpu.parse().unwrap());
    let mut inventory = inventory(u32::try_from(gpus.len()).unwrap(), ByteCount::gib(80));
    inventory.slices.iter_mut().zip(devices).for_each(|(slice, device)| slice.device = device);
    plan(&evaluation(batch), &facts(10_000, 1), &inventory, Path::new("/"), measured).unwrap()
}

fn measured(component: Component, device: &str, rows: u32) -> MeasuredRows {
    MeasuredRows {
        device: device.parse().unwrap(),
        weights: Digest::of(b"weights"),
        precision: orchestrator_types::Precision::Fp32,
        component,
        rows,
    }
}

/// Batches of images and texts, and the reasons for them.
fn batches(plan: &Plan) -> (u32, u32, String) {
    assert_eq!(check(plan), []);
    let reasons = plan.reasons.iter().filter(|reason| reason.starts_with("batch")).cloned();
    let batch = plan.trials[0].batch;
    (batch.vision, batch.text, reasons.collect::<Vec<_>>().join("\n"))
}

#[test]
fn what_was_measured_on_every_device_replaces_the_prior() {
    use Component::{Text, Vision};
    let both = [measured(Vision, "GPU-a", 130), measured(Text, "GPU-a", 4096)];
    let one = Measured::new(both.to_vec()).unwrap();
    let (images, texts, why) = batches(&on_gpus(&["GPU-a"], "[auto]", &one));
    assert_eq!((images, texts), (132, 4096), "whole tiles");
    insta::assert_snapshot!(why, @"batch auto → 132 images, 4096 texts: the smallest that are as fast as any, as `orchestrator profile` measured on every device");
    let work = on_gpus(&["GPU-a"], "[auto]", &one).units.iter().find_map(|unit| match unit.work {
        Work::EncodeImages(work) => Some(work.batch),
        _ => None,
    });
    assert_eq!(work, Some(132), "executors are told so");

    let prior = batches(&on_gpus(&["GPU-a"], "[auto]", &none()));
    insta::assert_snapshot!(prior.2, @"batch auto → 1000 images, 1568 texts: a GPU's rate is flat from about 50000 tokens on, and more would only hold more memory");
    assert_eq!(
        batches(&on_gpus(&["GPU-a", "GPU-b"], "[auto]", &one)),
        prior,
        "one was not measured"
    );
    assert_eq!(
        batches(&on_gpus(&["GPU-a", "cpu"], "[auto]", &one)),
        prior,
        "a processor beside it"
    );
    let more = [measured(Vision, "GPU-b", 600)];
    let two = Measured::new([&both[..], &more].concat()).unwrap();
    let (images, texts, why) = batches(&on_gpus(&["GPU-a", "GPU-b"], "[auto]", &two));
    assert_eq!((images, texts), (600, prior.1), "the larger, and texts were not measured on both");
    insta::assert_snapshot!(why, @r"
    batch auto → 600 images: the smallest that are as fast as any, as `orchestrator profile` measured on every device
    batch auto → 1568 texts: a GPU's rate is flat from about 50000 tokens on, and more would only hold more memory
    ");
}

#[test]
fn what_was_measured_of_something_else_counts_for_nothing() {
    let prior = batches(&on_gpus(&["GPU-a"], "[auto]", &none()));
    let right = measured(Component::Vision, "GPU-a", 130);
    let other = |entry| Measured::new(vec![entry]).unwrap();
    let weights = other(MeasuredRows { weights: Digest::of(b"other"), ..right.clone() });
    assert_eq!(batches(&on_gpus(&["GPU-a"], "[auto]", &weights)), prior);
    let precision = orchestrator_types::Precision::Bf16;
    let precision = other(MeasuredRows { precision, ..right.clone() });
    assert_eq!(batches(&on_gpus(&["GPU-a"], "[auto]", &precision)), prior);
    let right = other(right);
    assert_eq!(batches(&on_gpus(&["GPU-a"], "[64]", &right)).0, 64, "the user's own is kept");
    let cpu = other(measured(Component::Vision, "cpu", 8));
    assert_eq!(on_gpus(&["cpu"], "[auto]", &cpu), on_gpus(&["cpu"], "[auto]", &none()));
}

#[test]
fn rows_out_of_range_are_refused_however_they_arrive() {
    let error = Measured::new(vec![measured(Component::Text, "GPU-a", 0)]).unwrap_err();
    insta::assert_snapshot!(error.to_string(), @"0 rows of text on GPU-a: measured rows are from 1 to 1000000; profile again");
    let many = serde_json::json!([measured(Component::Text, "GPU-a", u32::MAX)]);
    assert!(serde_json::from_value::<Measured>(many).is_err());
    let right = Measured::new(vec![measured(Component::Text, "GPU-a", 7)]).unwrap();
    let json = serde_json::to_string(&right).unwrap();
    assert_eq!(serde_json::from_str::<Measured>(&json).unwrap(), right);
}

#[test]
fn allocator_settings_that_change_nothing_are_said_to() {
    let mut evaluation = evaluation("[auto]");
    let inventory = inventory(1, ByteCount::gib(4));
    let reasons = |evaluation: &Evaluation| {
        let (facts, measured) = (facts(10, 1), Measured::default());
        plan(evaluation, &facts, &inventory, Path::new("/data"), &measured).unwrap().reasons
    };
    let about = |reasons: Vec<String>| reasons.iter().any(|it| it.contains("memory.allocator"));
    assert!(!about(reasons(&evaluation)));
    evaluation.memory.allocator = Some("expandable_segments:True".parse().unwrap());
    assert!(about(reasons(&evaluation)));
}

#[test]
fn paths_below_data_roots_reach_the_workers_as_they_are() {
    let mut evaluation = evaluation("[auto]");
    evaluation.models[0].path = "root:m".to_owned();
    for dataset in evaluation.datasets.values_mut() {
        let (orchestrator_spec::Dataset::ImageFolder { path, .. }
        | orchestrator_spec::Dataset::Captions { path }) = dataset;
        *path = format!("root:{path}");
    }
    let inventory = inventory(1, ByteCount::gib(4));
    let plan = plan(&evaluation, &facts(10, 1), &inventory, Path::new("/data"), &none()).unwrap();
    let units = serde_json::to_string(&plan.units).unwrap();
    for path in ["\"root:m\"", "\"root:a\"", "\"root:b.jsonl\""] {
        assert!(units.contains(path), "{path} in {units}");
    }
    assert!(!units.contains("/data"), "{units}");
}
