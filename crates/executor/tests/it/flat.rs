//! Memory over thousands of batches of varying size.

use std::{env, fs};

use orchestrator_ledger::Sample;
use orchestrator_proto::domain::{AssignedWork, EncodeImages, EncodeTexts, TextSet, UnitResult};
use orchestrator_tests::models::Random;
use orchestrator_types::ByteCount;

use crate::{
    bench::{Bench, account},
    fixtures::{folder, images, texts},
};

/// Most rows of a batch.
const ROWS: u32 = 8;
/// Parts of the prompts; one is a batch or two.
const PARTS: u32 = 72;

/// A line through readings: bytes for each batch.
struct Slope {
    bytes: f64,
    error: f64,
}

impl Slope {
    /// Least squares; the error takes readings for independent of each other.
    fn of(readings: &[f64]) -> Self {
        let count = readings.len() as f64;
        let middle = (count - 1.0) / 2.0;
        let mean = readings.iter().sum::<f64>() / count;
        let places = (0_u32..).map(f64::from);
        let spread: f64 = places.clone().take(readings.len()).map(|x| (x - middle).powi(2)).sum();
        let together: f64 =
            places.clone().zip(readings).map(|(x, y)| (x - middle) * (y - mean)).sum();
        let bytes = together / spread;
        let left: f64 =
            places.zip(readings).map(|(x, y)| (y - mean - bytes * (x - middle)).powi(2)).sum();
        Self { bytes, error: (left / (count - 2.0) / spread).sqrt() }
    }

    fn is_flat(&self, enough: f64) -> bool {
        self.bytes.abs() <= 2.0 * self.error || self.bytes.abs() < enough
    }
}

fn last(result: &UnitResult) -> Sample {
    *account(result).samples.last().expect("an account takes a reading")
}

/// Its name, the slope in bytes that counts as none, and how it is read.
type Reading = (&'static str, f64, fn(&Sample) -> ByteCount);

#[tokio::test]
#[ignore = "takes minutes; `cargo xtask bench memory --flat N` runs it"]
async fn memory_stays_flat_over_batches_of_varying_size() {
    let batches = env::var("ORCHESTRATOR_BENCH_BATCHES").map_or(10_000, |n| n.parse().unwrap());
    let (dataset, manifest) = folder();
    let bench = Bench::process(1).await;
    let mut random = Random(3);
    let mut samples: Vec<Sample> = Vec::new();
    for batch in 0..batches {
        let work = if batch % 2 == 0 {
            let rows = 1 + u32::try_from(random.below(ROWS as usize)).unwrap();
            let last = manifest.samples().len() - ROWS as usize;
            // At the start of a tile: the whole shard is one pass.
            let start = u32::try_from(random.below(last)).unwrap() / ROWS * ROWS;
            let work = images(&dataset, start, start + rows);
            AssignedWork::EncodeImages(EncodeImages { tile: ROWS, batch: ROWS, ..work })
        } else {
            let part = u32::try_from(random.below(PARTS as usize)).unwrap();
            // What is cached is not computed.
            drop(fs::remove_dir_all(bench.cache()));
            fs::create_dir_all(bench.cache()).unwrap();
            let work = texts(&dataset, TextSet::Prompts);
            AssignedWork::EncodeTexts(EncodeTexts { part, parts: PARTS, tile: ROWS, ..work })
        };
        let result = bench.execute(work).await.unwrap();
        assert!(!result.cached);
        fs::remove_file(bench.blob_path(result.blob.digest)).unwrap();
        samples.push(last(&result));
    }
    assert!(bench.pid().is_some());
    let warm = &samples[samples.len() / 10..];
    let mut flat = true;
    let kinds: [Reading; 3] = [
        ("allocated", 1.0, |sample| sample.allocated_bytes),
        ("reserved", 1.0, |sample| sample.reserved_bytes),
        ("resident", 64.0, |sample| sample.resident_bytes),
    ];
    for (name, enough, of) in kinds {
        let readings: Vec<f64> = warm.iter().map(|sample| of(sample).as_u64() as f64).collect();
        let slope = Slope::of(&readings);
        let is_flat = slope.is_flat(enough);
        println!(
            "BENCH | {batches} batches, {name} | {:.2} ± {:.2} bytes a batch, from {} to {} | {} |",
            slope.bytes,
            slope.error,
            of(&warm[0]),
            of(&warm[warm.len() - 1]),
            if is_flat { "flat" } else { "NOT FLAT" }
        );
        flat &= is_flat;
    }
    assert!(flat, "memory grows");
}
