//! Memory that is refused in the middle of the work, or cannot be had at all.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use orchestrator_model::ModelFolder;
use orchestrator_proto::domain::{AssignedWork, DatasetSource, EncodeImages, ModelSource};
use orchestrator_tests::models::{Shape, Stored};
use orchestrator_torch::allocator::refuse_once;
use orchestrator_types::{ByteCount, FailureClass, MemoryTerms, OnOom, Precision};

use crate::{
    bench::{Bench, account},
    embedded::Embedded,
    fixtures::{TILE, folder, images},
};

/// Images of a shard of sixteen tiles.
const SHARD: u32 = 16 * TILE;
/// Blocks that are large enough to be refused; smaller ones are not counted.
const LARGE: ByteCount = ByteCount::kib(64);

/// What executors of this process log.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Forward passes of the unit that ended last, refused ones included.
fn passes() -> u64 {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    let line = log.lines().rfind(|line| line.contains("passes=")).expect("a unit has ended");
    let number = line.split("passes=").nth(1).unwrap();
    number.split_whitespace().next().unwrap().parse().unwrap()
}

fn keep_log() {
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log);
    // Another test of this process may have been first; the writer is the same.
    drop(subscriber.try_init());
}

fn shard(dataset: &DatasetSource) -> AssignedWork {
    AssignedWork::EncodeImages(images(dataset, 0, SHARD))
}

#[tokio::test]
async fn a_refusal_repeats_one_tile_and_changes_no_bit() {
    keep_log();
    let (dataset, _) = folder();
    let bench = Bench::alone(1).await;
    let undisturbed = bench.execute(shard(&dataset)).await.unwrap();
    assert_eq!(passes(), u64::from(SHARD / TILE));
    let mut before = (0, 0);
    // From the first tile to the last ones: a pass takes dozens of large blocks.
    for skip in [0, 3, 50, 170, 333, 501] {
        refuse_once(skip, LARGE).unwrap();
        let result = bench.execute(shard(&dataset)).await.unwrap();
        let account = account(&result);
        assert_eq!(
            (account.ooms, account.splits),
            (before.0 + 1, before.1),
            "skip {skip}: run again whole"
        );
        before = (account.ooms, account.splits);
        assert_eq!(result.rows, u64::from(SHARD));
        assert!(result.quarantined.is_empty());
        assert_eq!(result.blob.digest, undisturbed.blob.digest, "skip {skip}");
        // The refused pass, and once more its tile alone: what was finished stays finished.
        assert_eq!(passes(), u64::from(SHARD / TILE) + 1, "skip {skip}");
        assert!(account.allocated_peak_bytes <= account.quota_bytes);
    }
}

#[tokio::test]
async fn refusals_without_end_split_tiles_down_to_single_rows() {
    keep_log();
    let (dataset, _) = folder();
    let bench = Bench::alone(1).await;
    let undisturbed = bench.execute(shard(&dataset)).await.unwrap();
    // One row of tiny-clip takes blocks of 200 kB at most, two rows take more than that.
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let refusing = thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            refuse_once(0, ByteCount::kib(250)).unwrap();
        }
        // An order that nothing will meet replaces the last one.
        refuse_once(0, ByteCount::gib(64)).unwrap();
    });
    let result = bench.execute(shard(&dataset)).await;
    over.store(true, Ordering::Relaxed);
    refusing.join().unwrap();
    let result = result.unwrap();
    let account = account(&result);
    assert_eq!(result.rows, u64::from(SHARD));
    assert!(account.splits >= 2, "{} splits", account.splits);
    assert!(passes() >= u64::from(SHARD), "{} passes", passes());
    let found = Embedded::of(&bench, &result);
    let distance = found.distance(&Embedded::of(&bench, &undisturbed));
    assert!(distance <= 1e-5, "{distance}");
}

#[tokio::test]
async fn who_wants_no_splitting_gets_the_first_refusal() {
    let (dataset, _) = folder();
    let bench = Bench::alone(1).await;
    bench.execute(shard(&dataset)).await.unwrap();
    refuse_once(40, LARGE).unwrap();
    let terms = MemoryTerms { on_oom: OnOom::Fail, ..MemoryTerms::default() };
    let (class, message) = bench.execute_on(shard(&dataset), &terms).await.unwrap_err();
    assert_eq!(class, FailureClass::Resource, "{message}");
    assert!(message.contains("out of memory"), "{message}");
    bench.execute_on(shard(&dataset), &terms).await.unwrap();
}

#[tokio::test]
async fn a_quota_below_the_weights_never_fits_and_says_what_is_missing() {
    let (dataset, _) = folder();
    let bench = Bench::process(1).await;
    let terms = MemoryTerms { quota: Some(ByteCount::mib(4)), ..MemoryTerms::default() };
    let (class, message) = bench.execute_on(shard(&dataset), &terms).await.unwrap_err();
    assert_eq!(class, FailureClass::Resource, "{message}");
    let expected = "never fits: weights of tiny-clip vision fp32 asked for ";
    assert!(message.starts_with(expected), "{message}");
    assert!(message.contains("the slice's quota is 4.00 MiB; "), "{message}");
    assert!(message.contains(" missing; offer a larger slice"), "{message}");
    bench.execute(shard(&dataset)).await.unwrap();
}

#[tokio::test]
async fn two_models_take_turns_on_a_quota_that_holds_one() {
    let (dataset, _) = folder();
    let folders = [1, 2].map(|seed| {
        let folder = tempfile::tempdir().unwrap();
        Shape::vit_b32(2).write(folder.path(), Stored::Bf16, seed);
        folder
    });
    let sources = folders.each_ref().map(|folder| {
        let (path, precision) = (folder.path().to_owned(), Precision::Fp32);
        let weights = ModelFolder::open(&path).unwrap().weights_digest().unwrap();
        ModelSource { folder: path, weights, precision }
    });
    let bench = Bench::process(2).await;
    let terms = MemoryTerms { quota: Some(ByteCount::mib(120)), ..MemoryTerms::default() };
    let mut digests = Vec::new();
    for model in [&sources[0], &sources[1], &sources[0], &sources[1]] {
        let work = EncodeImages { model: model.clone(), ..images(&dataset, 0, 8) };
        let result = bench.execute_on(AssignedWork::EncodeImages(work), &terms).await.unwrap();
        let account = account(&result);
        assert!(account.allocated_peak_bytes <= account.quota_bytes);
        assert_eq!(account.ooms, 0);
        assert_eq!(account.holders.len(), 1, "{:?}", account.holders);
        assert_eq!(account.weights_bytes, account.holders[0].bytes);
        digests.push(result.blob.digest);
    }
    assert_eq!((digests[0], digests[1]), (digests[2], digests[3]));
    assert_ne!(digests[0], digests[1]);
}
