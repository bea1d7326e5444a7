//! Images → embeddings: the vision tower over a shard of a dataset.
//!
//! Decoding threads fill tiles, compute threads empty them. Invariant: on the CPU a tile's place and
//! shape follow from positions in the dataset alone, and a bad sample leaves a hole in its tile
//! instead of a shorter one; so an embedding has the same bits for any number of threads, any batch,
//! and whatever else is broken. A GPU computes several tiles at once, whichever are ready, and equals
//! that up to rounding.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, bounded};
use orchestrator_data::{dataset::Sample, preprocess::Recipe};
use orchestrator_engine::{Pixels, VisionEncoder};
use orchestrator_files::Files;
use orchestrator_footprint::Kind;
use orchestrator_ledger::Owner;
use orchestrator_model::VisionTower;
use orchestrator_proto::domain::{self, EncodeImages, QuarantinedSample};
use orchestrator_types::{ByteCount, Component, Digest, Shard};

use crate::{
    crew::{numbers, spread},
    dataset::ResidentDataset,
    decode::{DecodedTile, Decoder, Permits},
    decoded::{DecodedCache, Shelf},
    embeddings::ImageEmbeddings,
    error::ExecuteError,
    execute::Bench,
    passes::Passes,
    product::Product,
    residents::{ResidentModel, Residents},
    roots,
    tower::{Loaded, State},
};

/// Carries out `work`.
pub(crate) fn encode_images(
    work: &EncodeImages,
    residents: &mut Residents,
    cache: Option<&DecodedCache>,
    bench: Bench<'_>,
) -> Result<Product, ExecuteError> {
    let loading = Instant::now();
    let slice = bench.slice;
    let files = residents.files.clone();
    // The CPU computes tiles, one a thread; a GPU computes batches, one at a time.
    let at_once = match slice.kind() {
        Kind::Cpu => (work.tile, u32::try_from(bench.threads).unwrap_or(u32::MAX)),
        Kind::Cuda => (work.batch, 1),
    };
    let config = residents
        .models
        .get_or_make(work.model.clone(), || ResidentModel::open(&work.model, &files))?
        .folder()
        .config();
    let sizes = Sizes::of(work, &config.vision, config.embedding_width);
    let beside = slice.host_bytes(sizes.staging(sizes.ahead_planned(), at_once.1 as usize));
    residents.make_room_for_tower(slice, &work.model, Component::Vision, at_once, beside)?;
    let model = residents
        .models
        .get_or_make(work.model.clone(), || ResidentModel::open(&work.model, &files))?;
    let recipe = model.recipe()?;
    check_recipe(work, &recipe)?;
    let shelf = Shelf::new(cache, &recipe);
    let tower = model.vision(slice, at_once.0)?;
    let load = loading.elapsed();
    let dataset = residents
        .datasets
        .get_or_make(work.dataset.clone(), || ResidentDataset::open(&work.dataset, &files))?;
    let samples = dataset.manifest().samples();
    if work.shard.end as usize > samples.len() {
        return Err(ExecuteError::Mismatch(format!(
            "shard {} lies outside of a dataset of {} samples",
            work.shard,
            samples.len()
        )));
    }
    roots::require(&files, &samples[work.shard.range()])?;
    let shares = Shares::of(&sizes, tower, bench);
    let _staging = slice.host_lease(
        Owner::Staging { component: Component::Vision },
        sizes.staging(shares.ahead, shares.passes),
    )?;
    slice.apply_limit()?;
    let mut gathered = Gathered::new(work.shard, tower.encoder.width());
    let source = Images { files: &files, samples, recipe: &recipe, shelf: &shelf };
    run(work, tower, source, &shares, bench, &mut gathered)?;
    let product = gathered.into_product(&samples[work.shard.range()]);
    Ok(Product { load, dispatch: shares.rows, images: shelf.counts(), ..product })
}

/// Pixels that are prepared in another way than planned would make other results.
fn check_recipe(work: &EncodeImages, recipe: &Recipe) -> Result<(), ExecuteError> {
    let found = domain::recipe(work.dataset.manifest, &recipe.describe_crop());
    let planned = work.recipe.unwrap_or(found);
    if found == planned {
        return Ok(());
    }
    let place = work.model.folder.join("preprocessor_config.json");
    Err(ExecuteError::OtherBytes { what: "preprocessing", place, found, planned })
}

/// Where a unit's images come from.
#[derive(Clone, Copy)]
struct Images<'a> {
    files: &'a Files,
    samples: &'a [Sample],
    recipe: &'a Recipe,
    shelf: &'a Shelf<'a>,
}

/// How much is in work at once.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// Images of a pass.
    rows: u32,
    /// Passes at once.
    passes: usize,
    /// Tiles decoded and not yet taken over.
    ahead: usize,
}

impl Shares {
    /// What was planned, or as much of it as there is room for.
    fn of(sizes: &Sizes, tower: &Loaded<VisionEncoder>, bench: Bench<'_>) -> Self {
        let slice = bench.slice;
        if slice.kind() == Kind::Cuda {
            // Whole tiles, so that no pass is left over; the next batch is decoded meanwhile.
            let rows = tower.state.rows(slice, sizes.batch);
            let rows = if rows < sizes.tile { rows } else { rows / sizes.tile * sizes.tile };
            return Self { rows, passes: 1, ahead: 2 * rows.div_ceil(sizes.tile) as usize };
        }
        let free = slice.ledger().free().as_u64();
        let rows = tower.state.rows(slice, sizes.tile);
        let each = sizes.numbers() + tower.state.longest(rows).as_u64();
        let base = sizes.results + sizes.crops();
        let passes = free.saturating_sub(base) / each.max(1);
        let passes = usize::try_from(passes).unwrap_or(usize::MAX).clamp(1, bench.threads);
        let left = free.saturating_sub(base + each * passes as u64) / sizes.crops().max(1);
        let ahead = usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1);
        Self { rows, passes, ahead: ahead.min(sizes.ahead_planned()) }
    }
}

/// Bytes on the host, and what was planned.
struct Sizes {
    tile: u32,
    batch: u32,
    /// Numbers of an image.
    pixels: u64,
    /// The embeddings of the shard, and the copy that becomes its blob.
    results: u64,
}

impl Sizes {
    fn of(work: &EncodeImages, vision: &VisionTower, width: u32) -> Self {
        let pixels = u64::from(vision.channels) * u64::from(vision.image_size).pow(2);
        let results = 2 * 4 * u64::from(work.shard.len()) * u64::from(width);
        Self { tile: work.tile.max(1), batch: work.batch.max(1), pixels, results }
    }

    /// Tiles to be decoded ahead.
    fn ahead_planned(&self) -> usize {
        (self.batch / self.tile).max(1) as usize
    }

    /// A tile as bytes.
    fn crops(&self) -> u64 {
        self.pixels * u64::from(self.tile)
    }

    /// A tile as numbers.
    fn numbers(&self) -> u64 {
        4 * self.crops()
    }

    /// Decoded tiles, numbers on their way into the tower, and results.
    fn staging(&self, ahead: usize, passes: usize) -> ByteCount {
        let waiting = self.crops() * ahead as u64 + self.numbers() * passes as u64;
        ByteCount::bytes(waiting + self.results)
    }
}

fn run(
    work: &EncodeImages,
    tower: &Loaded<VisionEncoder>,
    Images { files, samples, recipe, shelf }: Images<'_>,
    shares: &Shares,
    bench: Bench<'_>,
    gathered: &mut Gathered,
) -> Result<(), ExecuteError> {
    let Bench { attempt, threads, .. } = bench;
    let tiles = tiles(work.shard, work.tile);
    let permits = Permits::new(shares.ahead);
    let decoder = Decoder {
        attempt,
        files,
        samples,
        recipe,
        shelf,
        permits: &permits,
        quarantine: work.quarantine_bad_samples,
    };
    let next = numbers(tiles.len());
    let next_tile = || next().map(|number| tiles[number]);
    let workers = (0..shares.passes)
        .map(|_| Encoder {
            tower: tower.encoder.for_thread(),
            state: &tower.state,
            bench,
            crops: Vec::new(),
            numbers: Vec::new(),
        })
        .collect();
    let encode = |worker: &mut Encoder<'_>, tiles: Result<Vec<DecodedTile>, ExecuteError>| {
        worker.encode(tiles?, recipe)
    };
    let batch = match bench.slice.kind() {
        Kind::Cpu => 1,
        Kind::Cuda => shares.rows as usize,
    };
    // Room for every permit's tile and for each thread's last words: sending never waits, not even
    // when nobody receives any more.
    let (sender, ready) = bounded(shares.ahead + threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (decoder, next_tile, sender) = (&decoder, &next_tile, sender.clone());
            scope.spawn(move || decoder.run(next_tile, &sender));
        }
        drop(sender);
        spread(attempt, workers, &|| gather(&ready, batch), &encode, |tile| {
            gathered.place(tile);
            attempt.progress(gathered.done as u64, u64::from(work.shard.len()));
            Ok(())
        })
    })
}

/// Tiles of at least `rows` images together, unless there are no more; `None` after the last one.
fn gather(
    ready: &Receiver<Result<DecodedTile, ExecuteError>>,
    rows: usize,
) -> Option<Result<Vec<DecodedTile>, ExecuteError>> {
    let mut tiles = Vec::new();
    let mut count = 0;
    while count < rows {
        match ready.recv() {
            Ok(Ok(tile)) => {
                count += tile.images.len();
                tiles.push(tile);
            }
            Ok(Err(error)) => return Some(Err(error)),
            Err(_) => break,
        }
    }
    (!tiles.is_empty()).then_some(Ok(tiles))
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
struct Encoder<'a> {
    tower: VisionEncoder,
    state: &'a State,
    bench: Bench<'a>,
    /// Images as bytes, where the device normalises them.
    crops: Vec<u8>,
    /// Images as numbers, where we do.
    numbers: Vec<f32>,
}

/// Tiles that are done.
struct EncodedTiles {
    tiles: Vec<Shard>,
    embeddings: Vec<f32>,
    files: Vec<Digest>,
    /// Why an image has no embedding.
    reasons: Vec<Option<String>>,
    decode: Duration,
    forward: Duration,
}

impl Encoder<'_> {
    fn encode(
        &mut self,
        tiles: Vec<DecodedTile>,
        recipe: &Recipe,
    ) -> Result<EncodedTiles, ExecuteError> {
        let started = Instant::now();
        let count: usize = tiles.iter().map(|tile| tile.images.len()).sum();
        let mut done = EncodedTiles {
            tiles: Vec::with_capacity(tiles.len()),
            embeddings: vec![0.0; count * self.tower.width()],
            files: Vec::with_capacity(count),
            reasons: Vec::with_capacity(count),
            decode: Duration::ZERO,
            forward: Duration::ZERO,
        };
        self.take_over(tiles, count, recipe, &mut done);
        self.forward(count, recipe, &mut done.embeddings)?;
        done.forward = started.elapsed();
        Ok(done)
    }

    /// Copies the images into one piece and lets the tiles go. A bad one is zeros.
    fn take_over(
        &mut self,
        tiles: Vec<DecodedTile>,
        count: usize,
        recipe: &Recipe,
        done: &mut EncodedTiles,
    ) {
        let (pixels, as_bytes) = (self.tower.pixels(), self.tower.takes_bytes());
        let (crops, numbers) = if as_bytes { (count * pixels, 0) } else { (0, count * pixels) };
        self.crops.clear();
        self.crops.resize(crops, 0);
        self.numbers.clear();
        self.numbers.resize(numbers, 0.0);
        let mut at = 0;
        for DecodedTile { positions, images, took, permit } in tiles {
            done.tiles.push(positions);
            done.decode += took;
            for image in images {
                let place = at * pixels..(at + 1) * pixels;
                done.files.push(image.file);
                done.reasons.push(match image.crop {
                    Ok(crop) if as_bytes => {
                        self.crops[place].copy_from_slice(crop.pixels());
                        None
                    }
                    Ok(crop) => {
                        recipe.normalise(&crop, &mut self.numbers[place]);
                        None
                    }
                    Err(reason) => Some(reason),
                });
                at += 1;
            }
            drop(permit);
        }
    }

    fn forward(&self, count: usize, recipe: &Recipe, out: &mut [f32]) -> Result<(), ExecuteError> {
        let Bench { slice, attempt, on_oom, .. } = self.bench;
        let passes = Passes { slice, state: self.state, attempt, on_oom };
        let tokens = self.state.known().tokens;
        let (pixels, width) = (self.tower.pixels(), self.tower.width());
        let (scale, shift) = recipe.affine();
        passes.run(0..count, tokens, &mut |rows| {
            let place = rows.start * pixels..rows.end * pixels;
            let pixels = if self.tower.takes_bytes() {
                Pixels::Bytes { crops: &self.crops[place], scale, shift }
            } else {
                Pixels::Numbers(&self.numbers[place])
            };
            let out = &mut out[rows.start * width..rows.end * width];
            self.tower.encode(pixels, rows.len(), out)
        })
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

    fn place(&mut self, done: EncodedTiles) {
        let (width, start) = (self.embeddings.width, self.embeddings.shard.start);
        let rows = done.embeddings.chunks_exact(width);
        let places = done.tiles.iter().flat_map(|tile| tile.range()).map(|at| at - start as usize);
        for (at, ((row, file), reason)) in places.zip(rows.zip(done.files).zip(done.reasons)) {
            self.files[at] = file;
            self.embeddings.valid[at] = reason.is_none();
            if reason.is_none() {
                self.embeddings.rows[at * width..][..width].copy_from_slice(row);
            }
            self.reasons[at] = reason;
            self.done += 1;
        }
        self.decode += done.decode;
        self.forward += done.forward;
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
