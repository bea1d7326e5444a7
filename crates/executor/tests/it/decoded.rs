//! The cache of decoded samples: the same results with and without it, each image decoded once by
//! executors beside each other, weights that stay.

use orchestrator_data::preprocess::Recipe;
use orchestrator_proto::domain::{self, AssignedWork, EncodeImages, ImageCounts};
use orchestrator_types::{ByteCount, FailureClass, Precision};

use crate::{
    bad_input::edge,
    bench::{Bench, account},
    fixtures::{captions, folder, images},
};

/// Files of the edge cases, five of which cannot be read.
const EDGES: u32 = 21;

fn counts(images: ImageCounts) -> (u64, u64) {
    (images.decoded, images.from_cache)
}

#[tokio::test]
async fn results_are_the_same_with_and_without_the_cache() {
    let decoded = tempfile::tempdir().unwrap();
    let limit = ByteCount::mib(16);
    let plain = Bench::start(2).await;
    let cached = Bench::with_decoded(2, decoded.path(), limit).await;
    let root = tempfile::tempdir().unwrap();
    for (dataset, start, end) in [(folder().0, 8, 71), (edge(root.path()), 0, EDGES)] {
        let work = || AssignedWork::EncodeImages(images(&dataset, start, end));
        let expected = plain.execute(work()).await.unwrap();
        let rows = u64::from(end - start);
        assert_eq!(counts(expected.images), (rows, 0));
        for again in [false, true] {
            let result = cached.execute(work()).await.unwrap();
            assert_eq!(result.blob, expected.blob);
            assert_eq!(result.samples, expected.samples);
            assert_eq!(result.quarantined, expected.quarantined);
            let ImageCounts { cache_peak_bytes, cache_limit_bytes, .. } = result.images;
            assert!(cache_peak_bytes > ByteCount::ZERO && cache_peak_bytes <= limit);
            assert_eq!(cache_limit_bytes, limit);
            if again {
                assert_eq!(counts(result.images), (0, rows));
            }
        }
    }
    // The same files in another dataset, in another order.
    let (captioned, manifest) = captions();
    let name = folder().1.samples()[8].path.file_name().unwrap().to_owned();
    let at = manifest.samples().iter().position(|it| it.path.ends_with(&name)).unwrap();
    let at = u32::try_from(at).unwrap();
    let one = AssignedWork::EncodeImages(images(&captioned, at, at + 1));
    assert_eq!(counts(cached.execute(one).await.unwrap().images), (0, 1));
}

#[tokio::test]
async fn executors_of_one_node_decode_each_image_once() {
    let decoded = tempfile::tempdir().unwrap();
    let limit = ByteCount::mib(64);
    let one = Bench::with_decoded(2, decoded.path(), limit).await;
    let other = Bench::with_decoded(1, decoded.path(), limit).await;
    let (dataset, _) = folder();
    let precisions = [Precision::Fp32, Precision::Bf16];
    let [first, second] = precisions.map(|precision| {
        let mut work = images(&dataset, 0, 128);
        work.model.precision = precision;
        AssignedWork::EncodeImages(work)
    });
    let (first, second) = tokio::join!(one.execute(first), other.execute(second));
    let (first, second) = (first.unwrap().images, second.unwrap().images);
    assert_eq!(first.decoded + second.decoded, 128);
    assert_eq!(first.from_cache + second.from_cache, 128);
}

#[tokio::test]
async fn pixels_that_are_prepared_in_another_way_than_planned_are_refused() {
    let bench = Bench::start(1).await;
    let (dataset, _) = folder();
    let work = images(&dataset, 0, 4);
    let crop = Recipe::open(&work.model.folder).unwrap().describe_crop();
    let planned = |crop: &str| Some(domain::recipe(dataset.manifest, crop));
    let right = EncodeImages { recipe: planned(&crop), ..work.clone() };
    bench.execute(AssignedWork::EncodeImages(right)).await.unwrap();
    let wrong = EncodeImages { recipe: planned("another"), ..work };
    let (class, message) = bench.execute(AssignedWork::EncodeImages(wrong)).await.unwrap_err();
    assert_eq!(class, FailureClass::Invalid);
    assert!(message.contains("preprocessor_config.json"), "{message}");
}

#[tokio::test]
async fn weights_stay_for_the_next_trial_and_the_next_run() {
    let bench = Bench::start(1).await;
    let (dataset, _) = folder();
    let mut loaded = Vec::new();
    for run in ["01first", "02second"] {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let mut work = images(&dataset, 0, 4);
            work.model.precision = precision;
            let result = bench.execute_in(run, AssignedWork::EncodeImages(work)).await.unwrap();
            let load = account(&result).phases.load.seconds;
            loaded.push((load.to_bits(), result.reading.weights_bytes));
        }
    }
    assert!(f64::from_bits(loaded[0].0) > 0.0);
    assert_ne!(loaded[0], loaded[1], "another precision is loaded");
    assert_eq!(loaded[2..], [loaded[1], loaded[1]], "nothing is loaded for the second run");
}
