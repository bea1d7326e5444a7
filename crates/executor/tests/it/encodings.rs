//! Encodings: the same bits in every way of computing them; caches and their damage.

use orchestrator_proto::domain::{AssignedWork, EncodeImages, EncodeTexts, TextSet};
use orchestrator_types::{ByteCount, Digest};
use safetensors::SafeTensors;

use crate::{
    bench::Bench,
    fixtures::{captions, folder, images, texts},
};

#[tokio::test]
async fn images_have_the_same_bits_for_any_threads_and_batch() {
    let (dataset, manifest) = folder();
    let mut blobs: Vec<(usize, u32, Digest, Option<Digest>)> = Vec::new();
    for threads in [1, 2, 3] {
        let bench = Bench::start(threads).await;
        for batch in [1, 7, 256] {
            let work = EncodeImages { batch, ..images(&dataset, 8, 71) };
            let result = bench.execute(AssignedWork::EncodeImages(work)).await.unwrap();
            assert_eq!(result.rows, 63);
            assert!(result.quarantined.is_empty());
            assert!(result.timing.decode_us > 0 && result.timing.forward_us > 0);
            assert!(result.reading.host_peak_bytes > ByteCount::ZERO);
            assert!(result.reading.weights_bytes > ByteCount::ZERO);
            if blobs.is_empty() {
                let bytes = bench.blob(result.blob.digest);
                assert_eq!(result.blob.size_bytes, ByteCount::bytes(bytes.len() as u64));
                let tensors = SafeTensors::deserialize(&bytes).unwrap();
                assert_eq!(tensors.tensor("embeddings").unwrap().shape(), [63, 256]);
                assert_eq!(tensors.tensor("valid").unwrap().data(), [1; 63]);
                let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
                let notes = header.metadata().clone().unwrap();
                assert_eq!(notes["first"], "8");
                let ids: Vec<String> = serde_json::from_str(&notes["samples"]).unwrap();
                assert_eq!(ids[0], manifest.samples()[8].id.0);
                assert_eq!(ids.len(), 63);
            }
            blobs.push((threads, batch, result.blob.digest, result.samples));
        }
    }
    for blob in &blobs {
        assert_eq!((blob.2, blob.3), (blobs[0].2, blobs[0].3), "{blob:?}");
    }
}

#[tokio::test]
async fn a_shard_has_the_same_rows_as_the_shards_it_is_cut_into() {
    let (dataset, _) = folder();
    let bench = Bench::start(2).await;
    let mut rows = Vec::new();
    for (start, end) in [(0, 32), (0, 8), (8, 32)] {
        let work = AssignedWork::EncodeImages(images(&dataset, start, end));
        let blob = bench.blob(bench.execute(work).await.unwrap().blob.digest);
        let tensors = SafeTensors::deserialize(&blob).unwrap();
        rows.push(tensors.tensor("embeddings").unwrap().data().to_vec());
    }
    assert_eq!(rows[0], rows[1..].concat());
}

#[tokio::test]
async fn texts_have_the_same_bits_for_any_threads_and_from_the_cache() {
    let (dataset, manifest) = folder();
    let work = texts(&dataset, TextSet::Prompts);
    let mut blobs = Vec::new();
    for threads in [1, 2, 3] {
        let bench = Bench::start(threads).await;
        for (batch, cached) in [(512, false), (7, true)] {
            let work = EncodeTexts { batch, ..work.clone() };
            let result = bench.execute(AssignedWork::EncodeTexts(work)).await.unwrap();
            assert_eq!(result.cached, cached);
            blobs.push((result.blob, result.rows));
        }
        // A cut file and one with a changed number are as good as none.
        let kept = std::fs::read_dir(bench.cache()).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&kept).unwrap();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        for damage in [&whole[..whole.len() / 2], &changed] {
            std::fs::write(&kept, damage).unwrap();
            let result = bench.execute(AssignedWork::EncodeTexts(work.clone())).await.unwrap();
            assert!(!result.cached);
            blobs.push((result.blob, result.rows));
            assert_eq!(std::fs::read(&kept).unwrap(), whole, "written again");
        }
        let blob = bench.blob(result_digest(&blobs));
        let tensors = SafeTensors::deserialize(&blob).unwrap();
        let texts = manifest.prompts().len();
        assert_eq!(tensors.tensor("row_of").unwrap().shape(), [texts]);
    }
    assert!(blobs.iter().all(|blob| *blob == blobs[0]), "{blobs:?}");
}

fn result_digest(blobs: &[(orchestrator_proto::domain::Blob, u64)]) -> Digest {
    blobs.last().unwrap().0.digest
}

#[tokio::test]
async fn parts_of_a_set_add_up_to_the_whole() {
    let (dataset, _) = captions();
    let bench = Bench::start(2).await;
    let mut rows: Vec<Vec<u8>> = Vec::new();
    for (part, parts) in [(0, 1), (0, 3), (1, 3), (2, 3)] {
        let work = EncodeTexts { part, parts, ..texts(&dataset, TextSet::FirstCaptions) };
        let result = bench.execute(AssignedWork::EncodeTexts(work)).await.unwrap();
        let blob = bench.blob(result.blob.digest);
        let tensors = SafeTensors::deserialize(&blob).unwrap();
        rows.push(tensors.tensor("embeddings").unwrap().data().to_vec());
        assert_eq!(tensors.tensor("row_of").unwrap().shape(), [1593]);
    }
    assert_eq!(rows[0], rows[1..].concat());
}
