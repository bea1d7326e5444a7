//! Embeddings → ranks: a shard of queries against all candidates, in two passes over tiles of
//! scores.
//!
//! Invariant: every tile is computed in one shape, [`QUERIES`] × [`CANDIDATES`], filled up with
//! zeros where there are fewer rows; so equal texts get equal scores wherever they stand, and a
//! score depends on its two rows alone. One block of candidates is held at a time.
//!
//! What a quarantined image takes with it, here and nowhere else: it is no query and no candidate,
//! and its captions are no queries, because nothing right could be found for them. Its captions
//! stay *candidates* of the other images: text that people wrote is there whether or not a picture
//! can be read, and a rank must not depend on which shard of the images a unit happens to read. So
//! image → text ranks among all texts of the set, and text → image among the readable images.

mod predictions;
mod sides;
#[cfg(test)]
mod tests;
mod tiles;

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use orchestrator_footprint::Kind;
use orchestrator_ledger::Owner;
use orchestrator_proto::domain::{AssignedRank, Direction};
use orchestrator_tasks::{Direction as TaskDirection, Partial, Ranked, Ranker, Relevance};
use orchestrator_types::{ByteCount, Component, Shard};

use crate::{
    attempt::Attempt,
    blobs::BlobFolder,
    crew::{numbers, spread},
    dataset::ResidentDataset,
    error::ExecuteError,
    execute::Bench,
    product::Product,
    residents::{Keep, Leased, Residents},
    slice::{Slice, sum},
    text_matrix::TextMatrix,
};
use sides::{Candidates, Side};
use tiles::{Pass, Scratch};

/// Queries in a tile of scores.
const QUERIES: u32 = 256;
/// Candidates in a tile of scores.
const CANDIDATES: u32 = 512;
/// Images that are held at once where images are candidates: 64 MiB at a width of 512.
const BLOCK_IMAGES: u32 = 32_768;

/// Carries out `work`.
pub(crate) fn rank(
    work: &AssignedRank,
    residents: &mut Residents,
    blobs: &BlobFolder,
    bench: Bench<'_>,
) -> Result<Product, ExecuteError> {
    let Bench { slice, attempt, .. } = bench;
    if residents.matrices.get(&work.text_blobs).is_none() {
        let matrix = TextMatrix::read(blobs, &work.text_blobs)?;
        let keep = Keep { tower: None, texts: false };
        residents.make_room(slice, slice.host_bytes(matrix.bytes()), keep)?;
        let lease = slice.host_lease(Owner::Texts, matrix.bytes())?;
        let leased = Leased::new(matrix, lease);
        residents
            .matrices
            .get_or_make(work.text_blobs.clone(), || Ok::<_, ExecuteError>(leased))?;
    }
    let width = residents.matrices.get(&work.text_blobs).map_or(1, |texts| texts.value.width);
    // As the newest, it stays when room is made.
    residents.matrices.touch(&work.text_blobs);
    let images = ByteCount::bytes(held_images(work).saturating_mul(4 * width as u64));
    // A thread has its tile as tensors and as our own buffers.
    let each = scaled(tile_bytes(width), 2);
    let most = fed(work.queries, bench.threads);
    let wanted = slice.host_bytes(sum(images, scaled(each, most)));
    residents.make_room(slice, wanted, Keep { tower: None, texts: true })?;
    let threads = threads(slice, most, each, images);
    let tiles = scaled(tile_bytes(width), threads);
    // A GPU's executor scores on the processor beside it.
    let _tiles = slice.host_lease(Owner::ScoreTiles, tiles)?;
    let staging = sum(tiles, images);
    let _staging = slice.host_lease(Owner::Staging { component: Component::Score }, staging)?;
    slice.apply_limit()?;
    let Residents { files, datasets, matrices, .. } = residents;
    let dataset = datasets
        .get_or_make(work.dataset.clone(), || ResidentDataset::open(&work.dataset, files))?;
    let texts = &matrices.get(&work.text_blobs).expect("read above").value;
    let ranking = Ranking::new(work, dataset, texts, blobs, BLOCK_IMAGES)?;
    let (ranked, mut product) = ranking.run(threads, attempt)?;
    let partial = match work.direction {
        Direction::ImageToClass => Partial::zero_shot(&ranked),
        Direction::ImageToText => Partial::retrieval(TaskDirection::ImageToText, &ranked),
        Direction::TextToImage => Partial::retrieval(TaskDirection::TextToImage, &ranked),
    };
    product.partial = serde_json::to_string(&partial).expect("a partial result is valid JSON");
    product.bytes = predictions::lines(work, dataset, &ranked);
    product.rows = ranked.len();
    Ok(product)
}

/// Images whose embeddings are in memory at once.
fn held_images(work: &AssignedRank) -> u64 {
    let images: u64 = work.image_blobs.iter().map(|(shard, _)| u64::from(shard.len())).sum();
    let largest = work.image_blobs.iter().map(|(shard, _)| u64::from(shard.len())).max();
    images.min(u64::from(BLOCK_IMAGES).max(largest.unwrap_or(0)))
}

/// One thread's tile of scores with the rows of both sides.
fn tile_bytes(width: usize) -> ByteCount {
    let (queries, candidates) = (u64::from(QUERIES), u64::from(CANDIDATES));
    ByteCount::bytes(4 * ((queries + candidates) * width as u64 + queries * candidates))
}

fn scaled(bytes: ByteCount, times: usize) -> ByteCount {
    ByteCount::bytes(bytes.as_u64() * times as u64)
}

/// Of so many threads those that get a tile of `queries`, at least one: others would only have their
/// buffers made.
fn fed(queries: Shard, threads: usize) -> usize {
    query_tiles(queries).count().clamp(1, threads.max(1))
}

/// As many threads as there is room for, at least one.
fn threads(slice: &Slice, most: usize, each: ByteCount, images: ByteCount) -> usize {
    if slice.kind() == Kind::Cuda {
        return most;
    }
    let free = slice.ledger().free().as_u64().saturating_sub(images.as_u64());
    usize::try_from(free / each.as_u64().max(1)).unwrap_or(most).clamp(1, most)
}

/// Queries, candidates and what belongs to what.
struct Ranking<'a> {
    shard: Shard,
    queries: Side<'a>,
    candidates: Candidates<'a>,
    /// One per tile of queries.
    rankers: Vec<Mutex<Ranker>>,
}

impl<'a> Ranking<'a> {
    fn new(
        work: &'a AssignedRank,
        dataset: &ResidentDataset,
        texts: &'a TextMatrix,
        blobs: &'a BlobFolder,
        block_images: u32,
    ) -> Result<Self, ExecuteError> {
        let (queries, candidates, excluded) =
            sides::sides(work, dataset, texts, blobs, block_images)?;
        let shard = work.queries;
        let rankers = query_tiles(shard)
            .map(|tile| {
                let relevance = relevance(work, dataset, tile)?;
                Ok(Mutex::new(Ranker::new(relevance, excluded.clone(), work.depth)))
            })
            .collect::<Result<_, ExecuteError>>()?;
        Ok(Self { shard, queries, candidates, rankers })
    }

    fn run(
        self,
        threads: usize,
        attempt: &Attempt,
    ) -> Result<(Vec<Ranked>, Product), ExecuteError> {
        let mut product = Product::default();
        // For all blocks and both passes: megabytes each, which the kernel gives page by page.
        let mut scratches: Vec<Scratch> =
            (0..threads).map(|_| Scratch::new(self.queries.width())).collect();
        let blocks = self.candidates.blocks();
        let steps = (2 * blocks * self.rankers.len()).max(1);
        let mut done = 0;
        for pass in [Pass::Observe, Pass::Count] {
            for block in 0..blocks {
                self.candidates.with_block(block, |block| {
                    self.pass(pass, block, &mut scratches, attempt, |took| {
                        product.forward += took;
                        done += 1;
                        let rows = self.shard.len() as usize;
                        attempt.progress((rows * done / steps) as u64, rows as u64);
                    })
                })?;
            }
        }
        let mut ranked = Vec::with_capacity(self.shard.len() as usize);
        for ranker in self.rankers {
            ranked.extend(ranker.into_inner().unwrap_or_else(PoisonError::into_inner).finish()?);
        }
        Ok((ranked, product))
    }

    /// All tiles of queries against one block of candidates.
    fn pass(
        &self,
        pass: Pass,
        block: &Side<'_>,
        scratches: &mut [Scratch],
        attempt: &Attempt,
        mut done: impl FnMut(Duration),
    ) -> Result<(), ExecuteError> {
        if block.width() != self.queries.width() {
            return Err(ExecuteError::Mismatch(format!(
                "cannot rank: embeddings of {} numbers against embeddings of {}",
                self.queries.width(),
                block.width()
            )));
        }
        let workers: Vec<&mut Scratch> = scratches.iter_mut().collect();
        spread(
            attempt,
            workers,
            &numbers(self.rankers.len()),
            &|scratch, tile| self.tile(pass, tile, block, scratch, attempt),
            |took| {
                done(took);
                Ok(())
            },
        )
    }

    /// One tile of queries against one block of candidates.
    fn tile(
        &self,
        pass: Pass,
        number: usize,
        block: &Side<'_>,
        scratch: &mut Scratch,
        attempt: &Attempt,
    ) -> Result<Duration, ExecuteError> {
        let started = Instant::now();
        let queries = query_tiles(self.shard).nth(number).expect("there is a ranker for it");
        // Nobody else works on this tile; a thread that panicked has ended the attempt.
        let mut ranker = self.rankers[number].lock().unwrap_or_else(PoisonError::into_inner);
        scratch.take_queries(&self.queries, queries);
        for candidates in block.tiles(CANDIDATES) {
            if attempt.is_stopped() {
                return Err(ExecuteError::Cancelled);
            }
            scratch.score(pass, &mut ranker, queries, block, candidates)?;
        }
        Ok(started.elapsed())
    }
}

/// Tiles of a shard of queries, from its start.
fn query_tiles(shard: Shard) -> impl Iterator<Item = Shard> {
    orchestrator_types::shards(shard.len(), QUERIES)
        .map(move |tile| Shard { start: shard.start + tile.start, end: shard.start + tile.end })
}

fn relevance(
    work: &AssignedRank,
    dataset: &ResidentDataset,
    queries: Shard,
) -> Result<Relevance, ExecuteError> {
    let counts = || dataset.caption_counts(work.texts);
    Ok(match work.direction {
        Direction::ImageToClass => {
            let samples = &dataset.manifest().samples()[queries.range()];
            let labels = samples.iter().map(|sample| sample.label).collect::<Option<Vec<_>>>();
            let labels = labels.ok_or_else(|| {
                ExecuteError::Mismatch(format!("dataset `{}` has no classes", work.dataset.name))
            })?;
            let classes = u32::try_from(dataset.manifest().classes().len())
                .map_err(|_| orchestrator_tasks::RelevanceError::TooMany)?;
            Relevance::labels(queries, classes, &labels)?
        }
        Direction::ImageToText => Relevance::captions_of_images(queries, &counts())?,
        Direction::TextToImage => Relevance::images_of_captions(queries, &counts())?,
    })
}
