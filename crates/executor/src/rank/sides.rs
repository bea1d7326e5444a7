//! The two sides of a ranking, as rows.

use std::sync::Arc;

use orchestrator_proto::domain::{AssignedRank, Direction};
use orchestrator_tasks::Excluded;
use orchestrator_types::{Digest, Shard, shards};

use crate::{
    blobs::BlobFolder, dataset::ResidentDataset, embeddings::ImageEmbeddings, error::ExecuteError,
    text_matrix::TextMatrix,
};

/// Rows by position, all in memory.
pub(super) struct Side<'a> {
    /// The positions that have a row.
    positions: Shard,
    width: usize,
    rows: Rows<'a>,
}

enum Rows<'a> {
    /// One row per position.
    Images(Vec<f32>),
    /// One row per position.
    Classes(Arc<[f32]>),
    /// Equal texts share a row.
    Texts(&'a TextMatrix),
}

impl<'a> Side<'a> {
    fn texts(texts: &'a TextMatrix) -> Self {
        let end = u32::try_from(texts.row_of.len()).expect("positions are 32-bit numbers");
        let positions = Shard { start: 0, end };
        Self { positions, width: texts.width, rows: Rows::Texts(texts) }
    }

    fn images(images: ImageEmbeddings) -> Self {
        let ImageEmbeddings { shard: positions, width, rows, valid: _ } = images;
        Self { positions, width, rows: Rows::Images(rows) }
    }

    fn classes(rows: Arc<[f32]>, count: u32, width: usize) -> Self {
        Self { positions: Shard { start: 0, end: count }, width, rows: Rows::Classes(rows) }
    }

    pub(super) const fn width(&self) -> usize {
        self.width
    }

    /// All positions, cut into ranges of `length` from the first on.
    pub(super) fn tiles(&self, length: u32) -> impl Iterator<Item = Shard> + use<> {
        let first = self.positions.start;
        shards(self.positions.len(), length)
            .map(move |tile| Shard { start: first + tile.start, end: first + tile.end })
    }

    /// Writes the rows of some positions to the start of `out`, and zeros after them.
    pub(super) fn gather(&self, positions: Shard, out: &mut [f32]) {
        let first = (positions.start - self.positions.start) as usize;
        let range = first..first + positions.len() as usize;
        let (taken, rest) = out.split_at_mut(range.len() * self.width);
        rest.fill(0.0);
        let numbers = range.start * self.width..range.end * self.width;
        match &self.rows {
            Rows::Images(rows) => taken.copy_from_slice(&rows[numbers]),
            Rows::Classes(rows) => taken.copy_from_slice(&rows[numbers]),
            Rows::Texts(texts) => {
                let places = taken.chunks_exact_mut(self.width);
                for (place, &row) in places.zip(&texts.row_of[range]) {
                    place.copy_from_slice(texts.row(row));
                }
            }
        }
    }
}

/// What is looked up, block by block.
pub(super) enum Candidates<'a> {
    /// One block, in memory all the time.
    Held(Side<'a>),
    /// Blocks of images that are read when their turn comes.
    Stored { blobs: &'a BlobFolder, blocks: Vec<Vec<(Shard, Digest)>> },
}

impl Candidates<'_> {
    pub(super) const fn blocks(&self) -> usize {
        match self {
            Self::Held(_) => 1,
            Self::Stored { blocks, .. } => blocks.len(),
        }
    }

    /// Does something with block number `number` while it is in memory.
    pub(super) fn with_block<T>(
        &self,
        number: usize,
        work: impl FnOnce(&Side<'_>) -> Result<T, ExecuteError>,
    ) -> Result<T, ExecuteError> {
        match self {
            Self::Held(side) => work(side),
            Self::Stored { blobs, blocks } => {
                work(&Side::images(read_images(blobs, &blocks[number])?))
            }
        }
    }
}

/// Queries, candidates and what takes no part. Where images are candidates, about `block_images` of
/// them are held at once.
pub(super) fn sides<'a>(
    work: &AssignedRank,
    dataset: &ResidentDataset,
    texts: &'a TextMatrix,
    blobs: &'a BlobFolder,
    block_images: u32,
) -> Result<(Side<'a>, Candidates<'a>, Excluded), ExecuteError> {
    check_texts(work, dataset, texts)?;
    match work.direction {
        Direction::ImageToClass => {
            let (images, bad) = query_images(work, blobs)?;
            let templates = dataset.manifest().templates().len();
            let count = texts.row_of.len() / templates.max(1);
            let count = u32::try_from(count).expect("fewer classes than prompts");
            let classes = Side::classes(texts.classes(templates)?, count, texts.width);
            Ok((images, Candidates::Held(classes), Excluded::new(bad, [])))
        }
        Direction::ImageToText => {
            let (images, bad) = query_images(work, blobs)?;
            Ok((images, Candidates::Held(Side::texts(texts)), Excluded::new(bad, [])))
        }
        Direction::TextToImage => {
            let (images, bad) = candidate_images(work, dataset, blobs, block_images)?;
            // A text whose only image takes no part is not ranked either: the ranker sees to that.
            Ok((Side::texts(texts), images, Excluded::new([], bad)))
        }
    }
}

fn query_images(
    work: &AssignedRank,
    blobs: &BlobFolder,
) -> Result<(Side<'static>, Vec<u32>), ExecuteError> {
    let images = read_images(blobs, &work.image_blobs)?;
    if images.shard != work.queries {
        return Err(mismatch(&format!("images {}, queries {}", images.shard, work.queries)));
    }
    let bad = invalid(&images).collect();
    Ok((Side::images(images), bad))
}

fn candidate_images<'a>(
    work: &AssignedRank,
    dataset: &ResidentDataset,
    blobs: &'a BlobFolder,
    block_images: u32,
) -> Result<(Candidates<'a>, Vec<u32>), ExecuteError> {
    let samples = dataset.manifest().samples().len();
    let mut blocks: Vec<Vec<(Shard, Digest)>> = Vec::new();
    let (mut end, mut held) = (0, 0);
    for &(shard, digest) in &work.image_blobs {
        if shard.start != end {
            return Err(mismatch(&format!("images end at {end} and go on at {}", shard.start)));
        }
        match blocks.last_mut() {
            Some(block) if held + shard.len() <= block_images => block.push((shard, digest)),
            _ => {
                blocks.push(vec![(shard, digest)]);
                held = 0;
            }
        }
        held += shard.len();
        end = shard.end;
    }
    if end as usize != samples {
        return Err(mismatch(&format!("images 0..{end} of a dataset of {samples}")));
    }
    if let [block] = &blocks[..] {
        let images = read_images(blobs, block)?;
        let bad = invalid(&images).collect();
        return Ok((Candidates::Held(Side::images(images)), bad));
    }
    let mut bad = Vec::new();
    for block in &blocks {
        bad.extend(invalid(&read_images(blobs, block)?));
    }
    Ok((Candidates::Stored { blobs, blocks }, bad))
}

/// Neighbouring shards as one.
fn read_images(
    blobs: &BlobFolder,
    shards: &[(Shard, Digest)],
) -> Result<ImageEmbeddings, ExecuteError> {
    let mut whole: Option<ImageEmbeddings> = None;
    for &(shard, digest) in shards {
        let wrong = |problem| ExecuteError::Blob { digest, problem };
        let part = ImageEmbeddings::from_bytes(&blobs.read(digest)?, shard).map_err(wrong)?;
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.append(part).map_err(wrong)?,
        }
    }
    whole.ok_or_else(|| mismatch("no image embeddings are given"))
}

fn invalid(images: &ImageEmbeddings) -> impl Iterator<Item = u32> {
    let positions = images.shard.start..images.shard.end;
    positions.zip(&images.valid).filter(|(_, valid)| !**valid).map(|(position, _)| position)
}

fn check_texts(
    work: &AssignedRank,
    dataset: &ResidentDataset,
    texts: &TextMatrix,
) -> Result<(), ExecuteError> {
    let manifest = dataset.manifest();
    let captions = dataset.caption_counts(work.texts).iter().map(|&count| count as usize).sum();
    let (expected, queries) = match work.direction {
        Direction::ImageToClass => {
            (manifest.classes().len() * manifest.templates().len(), manifest.samples().len())
        }
        Direction::ImageToText => (captions, manifest.samples().len()),
        Direction::TextToImage => (captions, captions),
    };
    if texts.row_of.len() != expected {
        let found = texts.row_of.len();
        return Err(mismatch(&format!(
            "embeddings of {found} texts, the dataset here has {expected}; submit again if its \
             class list or captions have changed"
        )));
    }
    if work.queries.end as usize > queries {
        return Err(mismatch(&format!("queries {} of {queries}", work.queries)));
    }
    Ok(())
}

fn mismatch(problem: &str) -> ExecuteError {
    ExecuteError::Mismatch(format!("cannot rank: {problem}"))
}
