use std::fs;

use orchestrator_data::dataset::{Manifest, Source};
use orchestrator_proto::domain::{DatasetSource, SourceKind, TextSet};
use orchestrator_types::{Digest, Shard};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::embeddings::{ImageEmbeddings, TextEmbeddings};

const IMAGES: u32 = 20;
const SHARD: u32 = 4;
const WIDTH: usize = 8;
/// Images that could not be read.
const BAD: [u32; 2] = [5, 19];

/// Twenty images with two captions each, in five blobs; random embeddings.
struct World {
    _folder: TempDir,
    blobs: BlobFolder,
    dataset: ResidentDataset,
    work: AssignedRank,
    texts: TextMatrix,
}

impl World {
    fn new(direction: Direction, queries: Shard) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, dataset) = dataset(&folder);
        let blobs = BlobFolder::open(folder.path().join("blobs")).unwrap();
        let mut random = Random(7);
        let image_blobs: Vec<(Shard, Digest)> = orchestrator_types::shards(IMAGES, SHARD)
            .map(|shard| (shard, images(&blobs, shard, &mut random)))
            .collect();
        let text_blobs = vec![texts(&blobs, &mut random)];
        let texts = TextMatrix::read(&blobs, &text_blobs).unwrap();
        let image_blobs = match direction {
            Direction::TextToImage => image_blobs,
            _ => image_blobs.into_iter().filter(|(shard, _)| *shard == queries).collect(),
        };
        let texts_set = TextSet::AllCaptions;
        let work = AssignedRank {
            dataset: source,
            texts: texts_set,
            direction,
            queries,
            depth: 3,
            text_blobs,
            image_blobs,
        };
        Self { _folder: folder, blobs, dataset, work, texts }
    }

    fn rank(&self, block_images: u32, threads: usize) -> Vec<Ranked> {
        let (updates, _listener) = mpsc::channel(1);
        let Self { blobs, dataset, work, texts, .. } = self;
        let ranking = Ranking::new(work, dataset, texts, blobs, block_images).unwrap();
        ranking.run(threads, &Attempt::new(updates)).unwrap().0
    }
}

fn dataset(folder: &TempDir) -> (DatasetSource, ResidentDataset) {
    let mut lines = Vec::new();
    for image in 0..IMAGES {
        let name = format!("{image}.jpg");
        fs::write(folder.path().join(&name), "never decoded").unwrap();
        let captions = [format!("a {image}"), format!("b {image}")];
        lines.push(serde_json::json!({ "image": name, "captions": captions }).to_string());
    }
    let file = folder.path().join("captions.jsonl");
    fs::write(&file, lines.join("\n")).unwrap();
    let manifest = Manifest::open(&Source::Captions { file: file.clone() }).unwrap().digest();
    let (name, source) = ("captions".parse().unwrap(), SourceKind::Captions { file });
    let source = DatasetSource { name, source, manifest };
    let opened = ResidentDataset::open(&source, &orchestrator_files::Files::anywhere()).unwrap();
    (source, opened)
}

fn images(blobs: &BlobFolder, shard: Shard, random: &mut Random) -> Digest {
    let mut images = ImageEmbeddings::empty(shard, WIDTH);
    for (position, row) in (shard.start..).zip(images.rows.chunks_exact_mut(WIDTH)) {
        let row_of_image = random.row();
        if !BAD.contains(&position) {
            row.copy_from_slice(&row_of_image);
            images.valid[(position - shard.start) as usize] = true;
        }
    }
    blobs.write(&images.to_bytes([].iter())).unwrap().digest
}

fn texts(blobs: &BlobFolder, random: &mut Random) -> Digest {
    let count = 2 * IMAGES;
    let texts = TextEmbeddings {
        first_row: 0,
        unique: count as usize,
        truncated: 0,
        width: WIDTH,
        rows: (0..count).flat_map(|_| random.row()).collect(),
        row_of: (0..count).rev().collect(),
    };
    blobs.write(&texts.to_bytes()).unwrap().digest
}

struct Random(u32);

impl Random {
    fn row(&mut self) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..WIDTH).map(|_| next()).collect()
    }
}

#[test]
fn blocks_and_threads_change_no_rank() {
    let world = World::new(Direction::TextToImage, Shard { start: 3, end: 37 });
    let whole = world.rank(BLOCK_IMAGES, 1);
    for (block_images, threads) in [(1, 2), (SHARD, 1), (2 * SHARD, 3)] {
        assert_eq!(world.rank(block_images, threads), whole, "{block_images}");
    }
}

#[test]
fn threads_that_no_tile_of_queries_is_left_for_are_not_started() {
    let fed = |start, end, threads| fed(Shard { start, end }, threads);
    assert_eq!([fed(0, 1, 32), fed(512, 768, 32), fed(512, 769, 32)], [1, 1, 2]);
    assert_eq!([fed(0, 2048, 32), fed(0, 2048, 3), fed(7, 7, 32)], [8, 3, 1]);
}

#[test]
fn bad_images_are_neither_queries_nor_candidates_and_their_captions_do_not_query() {
    let world = World::new(Direction::TextToImage, Shard { start: 3, end: 37 });
    let ranked = world.rank(BLOCK_IMAGES, 1);
    let queries: Vec<u32> = ranked.iter().map(|query| query.query).collect();
    let expected: Vec<u32> = (3..37).filter(|caption| !BAD.contains(&(caption / 2))).collect();
    assert_eq!(queries, expected);
    for query in &ranked {
        assert_eq!(query.best, query.query / 2);
        assert!(query.top.iter().all(|(image, _)| !BAD.contains(image)), "{query:?}");
    }
    let world = World::new(Direction::ImageToText, Shard { start: 4, end: 8 });
    let ranked = world.rank(BLOCK_IMAGES, 2);
    let queries: Vec<u32> = ranked.iter().map(|query| query.query).collect();
    assert_eq!(queries, [4, 6, 7]);
    for query in &ranked {
        assert_eq!(query.best / 2, query.query, "{query:?}");
    }
}

#[test]
fn ranks_are_those_of_all_scores_at_once() {
    let world = World::new(Direction::ImageToText, Shard { start: 0, end: 4 });
    let images = &world.work.image_blobs[0];
    let bytes = world.blobs.read(images.1).unwrap();
    let images = ImageEmbeddings::from_bytes(&bytes, images.0).unwrap();
    for query in world.rank(BLOCK_IMAGES, 1) {
        let image = &images.rows[query.query as usize * WIDTH..][..WIDTH];
        let dot = |caption: u32| -> f32 {
            let row = world.texts.row(world.texts.row_of[caption as usize]);
            row.iter().zip(image).map(|(a, b)| a * b).sum()
        };
        let beating = (0..2 * IMAGES).filter(|&caption| dot(caption) > dot(query.best)).count();
        assert_eq!(query.rank as usize, beating + 1);
        assert!((dot(query.best) - query.best_score).abs() < 1e-6);
    }
}
