//! The algebra of partial results, and the metrics of a worked example.

use orchestrator_types::CaptionChoice;
use proptest::prelude::*;

use super::*;
use crate::TaskKind;

fn ranked(rank: u32, class: u32) -> Ranked {
    Ranked { query: 0, rank, best: class, best_score: 0.0, top: Vec::new() }
}

fn queries() -> impl Strategy<Value = Vec<Ranked>> {
    prop::collection::vec(
        (1..40_u32, 0..5_u32).prop_map(|(rank, class)| ranked(rank, class)),
        0..60,
    )
}

fn directed() -> impl Strategy<Value = (Vec<Ranked>, Vec<Ranked>)> {
    (queries(), queries())
}

fn both(images: &[Ranked], texts: &[Ranked]) -> Partial {
    Partial::retrieval(Direction::ImageToText, images)
        .merge(Partial::retrieval(Direction::TextToImage, texts))
        .unwrap()
}

fn zero_shot() -> TaskKind {
    TaskKind::ZeroShot { top_k: vec![1, 5] }
}

fn retrieval() -> TaskKind {
    TaskKind::Retrieval { recall_at: vec![1, 5], captions: CaptionChoice::First }
}

proptest! {
    #[test]
    fn merge_is_a_commutative_monoid(a in directed(), b in directed(), c in directed()) {
        for (kind, [a, b, c]) in [
            (zero_shot(), [&a, &b, &c].map(|(images, _)| Partial::zero_shot(images))),
            (retrieval(), [&a, &b, &c].map(|(images, texts)| both(images, texts))),
        ] {
            let left = a.clone().merge(b.clone()).unwrap().merge(c.clone()).unwrap();
            let right = a.clone().merge(b.clone().merge(c).unwrap()).unwrap();
            prop_assert_eq!(left, right);
            prop_assert_eq!(a.clone().merge(b.clone()).unwrap(), b.merge(a.clone()).unwrap());
            prop_assert_eq!(kind.empty().merge(a.clone()).unwrap(), a);
        }
    }

    #[test]
    fn any_sharding_gives_the_metrics_of_one_shard(
        queries in queries(),
        length in 1..20_usize,
        backwards: bool,
    ) {
        let mut partials: Vec<_> = queries.chunks(length).map(Partial::zero_shot).collect();
        if backwards {
            partials.reverse();
        }
        let kind = zero_shot();
        let merged = partials.into_iter().try_fold(kind.empty(), Partial::merge).unwrap();
        let whole = Partial::zero_shot(&queries);
        // Compared as text: equal to the last bit.
        let bits = |partial| format!("{:?}", kind.metrics(partial).unwrap());
        prop_assert_eq!(bits(&merged), bits(&whole));
    }

    #[test]
    fn json_keeps_a_partial(a in directed()) {
        for partial in [Partial::zero_shot(&a.0), both(&a.0, &a.1)] {
            let text = serde_json::to_string(&partial).unwrap();
            prop_assert_eq!(serde_json::from_str::<Partial>(&text).unwrap(), partial);
        }
    }
}

#[test]
fn zero_shot_metrics_are_named_and_counted() {
    let partial = Partial::zero_shot(&[ranked(1, 0), ranked(2, 0), ranked(1, 3), ranked(9, 0)]);
    let metrics = zero_shot().metrics(&partial).unwrap();
    assert_eq!(
        serde_json::to_string(&metrics).unwrap(),
        r#"{"acc1":0.5,"acc5":0.75,"mean_per_class_recall":0.6666666666666666}"#
    );
}

#[test]
fn retrieval_metrics_are_named_and_counted() {
    let partial = both(&[ranked(1, 0), ranked(4, 0)], &[ranked(7, 0), ranked(7, 0), ranked(1, 0)]);
    let metrics = retrieval().metrics(&partial).unwrap();
    let expected = [
        ("image_to_text_r1", 0.5),
        ("image_to_text_r5", 1.0),
        ("text_to_image_r1", 1.0 / 3.0),
        ("text_to_image_r5", 1.0 / 3.0),
        ("image_to_text_median_rank", 2.5),
        ("text_to_image_median_rank", 7.0),
        ("text_retrieval_recall@1", 0.5),
        ("text_retrieval_recall@5", 1.0),
        ("image_retrieval_recall@1", 1.0 / 3.0),
        ("image_retrieval_recall@5", 1.0 / 3.0),
    ];
    let found: Vec<_> = metrics.0.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(found, expected.map(|(name, value)| (name, Some(value))));
    assert_eq!(partial.evaluated(), 2);
}

#[test]
fn a_figure_over_nothing_is_null() {
    for kind in [zero_shot(), retrieval()] {
        let metrics = kind.metrics(&kind.empty()).unwrap();
        assert!(metrics.0.values().all(Option::is_none));
    }
}

#[test]
fn results_of_two_tasks_do_not_mix() {
    let mixed = zero_shot().empty().merge(retrieval().empty()).unwrap_err();
    assert_eq!(
        mixed.to_string(),
        "a partial result of retrieval cannot be merged into one of zero_shot"
    );
    assert!(retrieval().metrics(&zero_shot().empty()).is_err());
}
