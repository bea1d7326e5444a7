//! Images → embeddings: the vision tower over a shard of a dataset.
//!
//! Decoding threads fill tiles, compute threads empty them. Invariant: a tile's place and shape
//! follow from positions in the dataset alone, and a bad sample leaves a hole in its tile instead
//! of a shorter one; so an embedding has the same bits for any number of threads, any batch, and
//! whatever else is broken.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;
use orchestrator_data::{dataset::Sample, preprocess::Recipe};
use orchestrator_engine::VisionEncoder;
use orchestrator_proto::domain::{EncodeImages, QuarantinedSample};
use orchestrator_types::{Digest, Shard};

use crate::{
    attempt::Attempt,
    crew::{numbers, spread},
    dataset::ResidentDataset,
    decode::{DecodedTile, Decoder, Permits},
    embeddings::ImageEmbeddings,
    error::ExecuteError,
    product::Product,
    residents::{ResidentModel, Residents},
};

/// Carries out `work`.
pub(crate) fn encode_images(
    work: &EncodeImages,
    residents: &mut Residents,
    threads: usize,
    attempt: &Attempt,
) -> Result<Product, ExecuteError> {
    let loading = Instant::now();
    let model =
        residents.models.get_or_make(work.model.clone(), || ResidentModel::open(&work.model))?;
    let recipe = model.recipe()?;
    let encoder = model.vision()?;
    let load = loading.elapsed();
    let dataset = residents
        .datasets
        .get_or_make(work.dataset.clone(), || ResidentDataset::open(&work.dataset))?;
    let samples = dataset.manifest().samples();
    if work.shard.end as usize > samples.len() {
        return Err(ExecuteError::Mismatch(format!(
            "shard {} lies outside of a dataset of {} samples",
            work.shard,
            samples.len()
        )));
    }
    let mut gathered = Gathered::new(work.shard, encoder.width());
    run(work, encoder, &recipe, samples, threads, attempt, &mut gathered)?;
    Ok(Product { load, ..gathered.into_product(&samples[work.shard.range()]) })
}

fn run(
    work: &EncodeImages,
    encoder: &VisionEncoder,
    recipe: &Recipe,
    samples: &[Sample],
    threads: usize,
    attempt: &Attempt,
    gathered: &mut Gathered,
) -> Result<(), ExecuteError> {
    let tiles = tiles(work.shard, work.tile);
    let ahead = (work.batch / work.tile).max(1) as usize;
    let permits = Permits::new(ahead);
    let decoder = Decoder {
        attempt,
        samples,
        recipe,
        permits: &permits,
        quarantine: work.quarantine_bad_samples,
    };
    let next = numbers(tiles.len());
    let next_tile = || next().map(|number| tiles[number]);
    let workers = (0..threads)
        .map(|_| Encoder { encoder: encoder.for_thread(), pixels: Vec::new() })
        .collect();
    let encode = |worker: &mut Encoder, tile| worker.encode(tile?, recipe);
    // Room for every permit's tile and for each thread's last words: sending never waits, not even
    // when nobody receives any more.
    let (sender, ready) = bounded(ahead + threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (decoder, next_tile, sender) = (&decoder, &next_tile, sender.clone());
            scope.spawn(move || decoder.run(next_tile, &sender));
        }
        drop(sender);
        spread(attempt, workers, &|| ready.recv().ok(), &encode, |tile| {
            gathered.place(tile);
            attempt.progress(gathered.done as u64, u64::from(work.shard.len()));
            Ok(())
        })
    })
}

/// The tiles of a shard: multiples of `tile` in the dataset, cut at the shard's edges.
fn tiles(shard: Shard, tile: u32) -> Vec<Shard> {
    let mut tiles = Vec::new();
    let mut start = shard.start;
    while start < shard.end {
        let end = (start / tile + 1).saturating_mul(tile).min(shard.end);
        tiles.push(Shard { start, end });
        start = end;
    }
    tiles
}

/// What one compute thread owns.
struct Encoder {
    encoder: VisionEncoder,
    pixels: Vec<f32>,
}

/// A tile that is done.
struct EncodedTile {
    positions: Shard,
    embeddings: Vec<f32>,
    files: Vec<Digest>,
    /// Why an image has no embedding.
    reasons: Vec<Option<String>>,
    decode: Duration,
    forward: Duration,
}

impl Encoder {
    fn encode(&mut self, tile: DecodedTile, recipe: &Recipe) -> Result<EncodedTile, ExecuteError> {
        let DecodedTile { positions, images, took: decode, permit } = tile;
        let started = Instant::now();
        let (count, pixels) = (images.len(), self.encoder.pixels());
        self.pixels.clear();
        self.pixels.resize(count * pixels, 0.0);
        let (mut files, mut reasons) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (image, place) in images.into_iter().zip(self.pixels.chunks_exact_mut(pixels)) {
            files.push(image.file);
            reasons.push(image.crop.map(|crop| recipe.normalise(&crop, place)).err());
        }
        drop(permit);
        let mut embeddings = vec![0.0; count * self.encoder.width()];
        self.encoder.encode(&self.pixels, count, &mut embeddings)?;
        let forward = started.elapsed();
        Ok(EncodedTile { positions, embeddings, files, reasons, decode, forward })
    }
}

/// Results in the order of the samples.
struct Gathered {
    embeddings: ImageEmbeddings,
    files: Vec<Digest>,
    reasons: Vec<Option<String>>,
    done: usize,
    decode: Duration,
    forward: Duration,
}

impl Gathered {
    fn new(shard: Shard, width: usize) -> Self {
        let count = shard.len() as usize;
        Self {
            embeddings: ImageEmbeddings::empty(shard, width),
            files: vec![Digest::of(b""); count],
            reasons: vec![None; count],
            done: 0,
            decode: Duration::ZERO,
            forward: Duration::ZERO,
        }
    }

    fn place(&mut self, tile: EncodedTile) {
        let width = self.embeddings.width;
        let first = (tile.positions.start - self.embeddings.shard.start) as usize;
        let rows = tile.embeddings.chunks_exact(width);
        for (at, ((row, file), reason)) in (first..).zip(rows.zip(tile.files).zip(tile.reasons)) {
            self.files[at] = file;
            self.embeddings.valid[at] = reason.is_none();
            if reason.is_none() {
                self.embeddings.rows[at * width..][..width].copy_from_slice(row);
            }
            self.reasons[at] = reason;
            self.done += 1;
        }
        self.decode += tile.decode;
        self.forward += tile.forward;
    }

    fn into_product(self, samples: &[Sample]) -> Product {
        let mut hasher = blake3::Hasher::new();
        for (sample, file) in samples.iter().zip(&self.files) {
            hasher.update(&(sample.id.0.len() as u64).to_le_bytes());
            hasher.update(sample.id.0.as_bytes());
            hasher.update(file.as_bytes());
        }
        let positions = self.embeddings.shard.start..;
        let quarantined = positions
            .zip(samples)
            .zip(self.reasons)
            .filter_map(|((position, sample), reason)| {
                Some(QuarantinedSample { position, sample: sample.id.clone(), reason: reason? })
            })
            .collect();
        Product {
            rows: samples.len(),
            bytes: self.embeddings.to_bytes(samples.iter().map(|sample| &sample.id)),
            quarantined,
            samples: Some(hasher.finalize().into()),
            decode: self.decode,
            forward: self.forward,
            ..Product::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_aligned_to_the_dataset() {
        let cut = |start, end, tile| -> Vec<(u32, u32)> {
            let tiles = tiles(Shard { start, end }, tile);
            tiles.into_iter().map(|tile| (tile.start, tile.end)).collect()
        };
        assert_eq!(cut(0, 9, 4), [(0, 4), (4, 8), (8, 9)]);
        assert_eq!(cut(6, 12, 4), [(6, 8), (8, 12)]);
        assert_eq!(cut(5, 5, 4), []);
        assert_eq!(cut(u32::MAX - 1, u32::MAX, 8), [(u32::MAX - 1, u32::MAX)]);
    }
}
