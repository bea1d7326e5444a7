//! Texts → embeddings: the text tower over a part of the distinct texts of a set.
//!
//! Invariant: a row's bits depend on the model, the set, the tile and the part's place alone; not
//! on threads, nor on whether the rows come from the cache.

use std::time::{Duration, Instant};

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
    let loading = Instant::now();
    let EncodeTexts { model: source, dataset, texts, tile, .. } = work;
    let model = residents.models.get_or_make(source.clone(), || ResidentModel::open(source))?;
    let mut load = loading.elapsed();
    let dataset_open =
        residents.datasets.get_or_make(dataset.clone(), || ResidentDataset::open(dataset))?;
    let (texts, tile) = (*texts, *tile);
    let key = TextRowsKey { model: source.clone(), dataset: dataset.clone(), texts, tile };
    let rows = residents.texts.get_or_make(key, || {
        let context = model.folder().config().text.context as usize;
        let texts = dataset_open.texts(texts);
        tokenise(&texts, &model.tokenizer()?, context, tile as usize, threads, attempt)
    })?;
    let tiles = rows.part(work.part, work.parts);
    let range = rows.rows(tiles);
    let width = model.folder().config().embedding_width as usize;
    let key = cache_key(work, model.folder(), rows, tiles);
    let known = cache.get(key, range.len(), width);
    let (cached, mut forward) = (known.is_some(), Duration::ZERO);
    let embeddings = if let Some(embeddings) = known {
        embeddings
    } else {
        let loading = Instant::now();
        let encoder = model.text()?;
        load += loading.elapsed();
        let embeddings = encode(encoder, rows, tiles, threads, attempt, &mut forward)?;
        cache.put(key, width, &embeddings);
        embeddings
    };
    let blob = TextEmbeddings {
        first_row: range.start,
        unique: rows.unique(),
        truncated: rows.truncated,
        width,
        rows: embeddings,
        row_of: rows.row_of.clone(),
    };
    let bytes = blob.to_bytes();
    Ok(Product { rows: range.len(), bytes, cached, load, forward, ..Product::default() })
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

fn encode(
    encoder: &TextEncoder,
    rows: &TextRows,
    tiles: &[TextTile],
    threads: usize,
    attempt: &Attempt,
    forward: &mut Duration,
) -> Result<Vec<f32>, ExecuteError> {
    let width = encoder.width();
    let range = rows.rows(tiles);
    let mut embeddings = vec![0.0; range.len() * width];
    let workers =
        (0..threads).map(|_| Encoder { encoder: encoder.for_thread(), ids: Vec::new() }).collect();
    let work = |worker: &mut Encoder, tile: usize| {
        let (tile, started) = (&tiles[tile], Instant::now());
        rows.padded(tile, &mut worker.ids);
        let mut out = vec![0.0; tile.rows.len() * width];
        worker.encoder.encode(&worker.ids, tile.rows.len(), tile.length, &mut out)?;
        Ok((tile.rows.start - range.start, out, started.elapsed()))
    };
    let mut done = 0;
    spread(attempt, workers, &numbers(tiles.len()), &work, |(row, tile, took)| {
        embeddings[row * width..][..tile.len()].copy_from_slice(&tile);
        *forward += took;
        done += tile.len() / width;
        attempt.progress(done as u64, range.len() as u64);
        Ok(())
    })?;
    Ok(embeddings)
}

/// Names everything that decides the bits of the part's rows.
fn cache_key(
    work: &EncodeTexts,
    folder: &ModelFolder,
    rows: &TextRows,
    tiles: &[TextTile],
) -> Digest {
    let mut hasher = blake3::Hasher::new();
    let engine = format!(
        "text embeddings {NUMERICS}, libtorch {}, {}, tiles of {}",
        libtorch_version(),
        work.model.precision,
        work.tile
    );
    hasher.update(Digest::of(engine.as_bytes()).as_bytes());
    hasher.update(folder.identity().as_bytes());
    hasher.update(rows.tokenizer.as_bytes());
    for tile in tiles {
        hasher.update(&(tile.rows.len() as u64).to_le_bytes());
        hasher.update(&(tile.length as u64).to_le_bytes());
        for row in tile.rows.clone() {
            let ids = rows.ids(row);
            hasher.update(&(ids.len() as u64).to_le_bytes());
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
    }
    hasher.finalize().into()
}
