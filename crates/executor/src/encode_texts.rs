//! Texts → embeddings: the text tower over a part of the distinct texts of a set.
//!
//! Invariant: a row's bits depend on the model, the set, the tile and the part's place alone; not
//! on threads, nor on whether the rows come from the cache.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use orchestrator_data::tokenizer::{Tokenizer, Tokens};
use orchestrator_engine::{TextEncoder, libtorch_version};
use orchestrator_model::ModelFolder;
use orchestrator_proto::domain::EncodeTexts;
use orchestrator_types::Digest;

use crate::{
    attempt::Attempt,
    crew::{numbers, spread},
    dataset::ResidentDataset,
    embeddings::TextEmbeddings,
    error::ExecuteError,
    product::Product,
    residents::{ResidentModel, Residents},
    text_cache::TextCache,
    text_rows::{TextRows, TextRowsKey, TextTile},
};

/// Raised when a change of the engine changes the bits of an embedding.
const NUMERICS: u32 = 1;
/// Texts that one thread tokenises at a time.
const TOKENISE_CHUNK: usize = 256;

/// Carries out `work`.
pub(crate) fn encode_texts(
    work: &EncodeTexts,
    residents: &mut Residents,
    cache: &TextCache,
    threads: usize,
    attempt: &Attempt,
) -> Result<Product, ExecuteError> {
    let started = Instant::now();
    let Residents { models, datasets, texts, .. } = residents;
    let model = models.get_or_make(work.model.clone(), || ResidentModel::open(&work.model))?;
    let opening = started.elapsed();
    let dataset =
        datasets.get_or_make(work.dataset.clone(), || ResidentDataset::open(&work.dataset))?;
    let rows = texts.get_or_make(TextRowsKey::new(work), || {
        let context = model.folder().config().text.context as usize;
        let texts = dataset.texts(work.texts);
        tokenise(&texts, &model.tokenizer()?, context, work.tile as usize, threads, attempt)
    })?;
    let tiles = rows.part(work.starts(rows.all().end));
    let width = model.folder().config().embedding_width as usize;
    let part = Part { rows, tiles, range: rows.rows(tiles), width };
    let mut product = part.product(work, model, cache, threads, attempt)?;
    product.load += opening;
    Ok(product)
}

/// A part of the distinct texts of a set.
struct Part<'a> {
    rows: &'a TextRows,
    tiles: &'a [TextTile],
    /// The rows of those tiles.
    range: Range<usize>,
    /// Numbers in an embedding.
    width: usize,
}

fn tokenise(
    texts: &[String],
    tokenizer: &Tokenizer,
    context: usize,
    tile: usize,
    threads: usize,
    attempt: &Attempt,
) -> Result<TextRows, ExecuteError> {
    if tokenizer.context() > context {
        return Err(ExecuteError::Mismatch(format!(
            "the tokenizer makes up to {} tokens, config.json says that the text tower reads \
             {context}; correct `model_max_length` in tokenizer_config.json",
            tokenizer.context()
        )));
    }
    let chunks: Vec<&[String]> = texts.chunks(TOKENISE_CHUNK).collect();
    let mut tokens: Vec<Vec<Tokens>> = vec![Vec::new(); chunks.len()];
    let source = numbers(chunks.len());
    let work = |(): &mut (), chunk: usize| Ok((chunk, tokenizer.encode_batch(chunks[chunk])?));
    spread(attempt, vec![(); threads], &source, &work, |(chunk, done)| {
        tokens[chunk] = done;
        Ok(())
    })?;
    let tokens = tokens.into_iter().flatten().collect();
    Ok(TextRows::new(tokens, context, tile, tokenizer.digest()))
}

struct Encoder {
    encoder: TextEncoder,
    ids: Vec<i64>,
}

impl Part<'_> {
    /// From the cache, or computed and then kept there.
    fn product(
        &self,
        work: &EncodeTexts,
        model: &mut ResidentModel,
        cache: &TextCache,
        threads: usize,
        attempt: &Attempt,
    ) -> Result<Product, ExecuteError> {
        let key = self.cache_key(work, model.folder());
        let mut product = Product { rows: self.range.len(), ..Product::default() };
        let known = cache.get(key, self.range.len(), self.width);
        product.cached = known.is_some();
        let embeddings = if let Some(embeddings) = known {
            embeddings
        } else {
            let started = Instant::now();
            let encoder = model.text()?;
            product.load = started.elapsed();
            let embeddings = self.encode(encoder, threads, attempt, &mut product.forward)?;
            cache.put(key, self.width, &embeddings);
            embeddings
        };
        product.bytes = self.blob(embeddings);
        Ok(product)
    }

    fn encode(
        &self,
        encoder: &TextEncoder,
        threads: usize,
        attempt: &Attempt,
        forward: &mut Duration,
    ) -> Result<Vec<f32>, ExecuteError> {
        let (width, first) = (self.width, self.range.start);
        let mut embeddings = vec![0.0; self.range.len() * width];
        let worker = |_| Encoder { encoder: encoder.for_thread(), ids: Vec::new() };
        let work = |worker: &mut Encoder, tile: usize| {
            let (tile, started) = (&self.tiles[tile], Instant::now());
            self.rows.padded(tile, &mut worker.ids);
            let mut out = vec![0.0; tile.rows.len() * width];
            worker.encoder.encode(&worker.ids, tile.rows.len(), tile.length, &mut out)?;
            Ok((tile.rows.start - first, out, started.elapsed()))
        };
        let (source, mut done) = (numbers(self.tiles.len()), 0);
        let workers = (0..threads).map(worker).collect();
        spread(attempt, workers, &source, &work, |(row, tile, took)| {
            embeddings[row * width..][..tile.len()].copy_from_slice(&tile);
            *forward += took;
            done += tile.len() / width;
            attempt.progress(done as u64, self.range.len() as u64);
            Ok(())
        })?;
        Ok(embeddings)
    }

    fn blob(&self, rows: Vec<f32>) -> Vec<u8> {
        let blob = TextEmbeddings {
            first_row: self.range.start,
            unique: self.rows.unique(),
            truncated: self.rows.truncated,
            width: self.width,
            rows,
            row_of: self.rows.row_of.clone(),
        };
        blob.to_bytes()
    }

    /// Names everything that decides the bits of the part's rows.
    fn cache_key(&self, work: &EncodeTexts, folder: &ModelFolder) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let (libtorch, precision, tile) = (libtorch_version(), work.model.precision, work.tile);
        let engine = format!("texts {NUMERICS}, libtorch {libtorch}, {precision}, tiles of {tile}");
        hasher.update(Digest::of(engine.as_bytes()).as_bytes());
        hasher.update(folder.identity().as_bytes());
        hasher.update(self.rows.tokenizer.as_bytes());
        for tile in self.tiles {
            hasher.update(&(tile.rows.len() as u64).to_le_bytes());
            hasher.update(&(tile.length as u64).to_le_bytes());
            for row in tile.rows.clone() {
                let ids = self.rows.ids(row);
                hasher.update(&(ids.len() as u64).to_le_bytes());
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                hasher.update(&bytes);
            }
        }
        hasher.finalize().into()
    }
}
