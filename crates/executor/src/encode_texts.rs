//! Texts → embeddings: the text tower over a part of the distinct texts of a set.
//!
//! Invariant: on the CPU a row's bits depend on the model, the set, the tile and the part's place
//! alone; not on threads, nor on whether the rows come from the cache. Where a quota is too small for a
//! tile, or on a GPU, rows equal those up to rounding.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use orchestrator_data::tokenizer::{Tokenizer, Tokens};
use orchestrator_engine::{TextEncoder, libtorch_version};
use orchestrator_footprint::Kind;
use orchestrator_ledger::Owner;
use orchestrator_proto::domain::EncodeTexts;
use orchestrator_types::{ByteCount, Component, Digest};

use crate::{
    attempt::Attempt,
    crew::{numbers, spread},
    dataset::ResidentDataset,
    embeddings::TextEmbeddings,
    error::ExecuteError,
    execute::Bench,
    passes::Passes,
    product::Product,
    residents::{Keep, Leased, ResidentModel, Residents},
    slice::Slice,
    text_cache::TextCache,
    text_rows::{TextRows, TextRowsKey, TextTile},
    tower::Loaded,
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
    bench: Bench<'_>,
) -> Result<Product, ExecuteError> {
    let started = Instant::now();
    let slice = bench.slice;
    let key = TextRowsKey::new(work);
    if residents.texts.get(&key).is_none() {
        let rows = tokenised(work, residents, bench)?;
        let keep = Keep { tower: None, texts: false };
        residents.make_room(slice, slice.host_bytes(rows.bytes()), keep)?;
        let lease = slice.host_lease(Owner::Texts, rows.bytes())?;
        let leased = Leased::new(rows, lease);
        residents.texts.get_or_make(key.clone(), || Ok::<_, ExecuteError>(leased))?;
    }
    // As the newest, it stays when room is made.
    residents.texts.touch(&key);
    let opening = started.elapsed();
    let (cache_key, rows, width) = {
        let part = Part::of(work, residents, &key)?;
        (part.cache_key(work, residents, slice)?, part.range.len(), part.width)
    };
    let results = ByteCount::bytes(2 * 4 * (rows * width) as u64);
    let known = cache.get(cache_key, rows, width);
    let mut product = Product { rows, cached: known.is_some(), ..Product::default() };
    let at_once = match slice.kind() {
        Kind::Cpu => (work.tile, u32::try_from(bench.threads).unwrap_or(u32::MAX)),
        Kind::Cuda => (work.batch, 1),
    };
    if known.is_none() {
        let beside = slice.host_bytes(results);
        residents.make_room_for_tower(slice, &work.model, Component::Text, at_once, beside)?;
    }
    // The embeddings, and the copy that becomes the blob.
    let _staging = slice.host_lease(Owner::Staging { component: Component::Text }, results)?;
    slice.apply_limit()?;
    let embeddings = match known {
        Some(embeddings) => embeddings,
        None => computed(work, residents, &key, bench, at_once.0, &mut product)
            .inspect(|embeddings| cache.put(cache_key, width, embeddings))?,
    };
    product.bytes = Part::of(work, residents, &key)?.blob(embeddings);
    product.load += opening;
    Ok(product)
}

/// The tokens of the whole set.
fn tokenised(
    work: &EncodeTexts,
    residents: &mut Residents,
    bench: Bench<'_>,
) -> Result<TextRows, ExecuteError> {
    let Residents { files, models, datasets, .. } = residents;
    let model =
        models.get_or_make(work.model.clone(), || ResidentModel::open(&work.model, files))?;
    let dataset = datasets
        .get_or_make(work.dataset.clone(), || ResidentDataset::open(&work.dataset, files))?;
    let context = model.folder().config().text.context as usize;
    let (texts, tokenizer) = (dataset.texts(work.texts), model.tokenizer()?);
    tokenise(&texts, &tokenizer, context, work.tile as usize, bench.threads, bench.attempt)
}

/// The part's embeddings, computed.
fn computed(
    work: &EncodeTexts,
    residents: &mut Residents,
    key: &TextRowsKey,
    bench: Bench<'_>,
    most: u32,
    product: &mut Product,
) -> Result<Vec<f32>, ExecuteError> {
    let started = Instant::now();
    let Residents { files, models, texts, .. } = residents;
    let model =
        models.get_or_make(work.model.clone(), || ResidentModel::open(&work.model, files))?;
    let width = model.folder().config().embedding_width as usize;
    let tower = model.text(bench.slice, most)?;
    product.load = started.elapsed();
    product.dispatch = tower.state.rows(bench.slice, most);
    let rows = &texts.get(key).expect("its texts were tokenised").value;
    let part = Part::new(work, rows, width);
    part.encode(tower, bench, product.dispatch, &mut product.forward)
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

impl<'a> Part<'a> {
    fn new(work: &EncodeTexts, rows: &'a TextRows, width: usize) -> Self {
        let tiles = rows.part(work.starts(rows.all().end));
        Self { rows, tiles, range: rows.rows(tiles), width }
    }

    fn of(
        work: &EncodeTexts,
        residents: &'a Residents,
        key: &TextRowsKey,
    ) -> Result<Self, ExecuteError> {
        let rows = &residents.texts.get(key).expect("its texts were tokenised").value;
        let width = residents.open_model(&work.model)?.folder().config().embedding_width;
        Ok(Self::new(work, rows, width as usize))
    }
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

/// Tiles of one padded length that are computed together: one on the CPU, as many as pass on a GPU.
fn dispatches(tiles: &[TextTile], kind: Kind, most: u32, longest: usize) -> Vec<TextTile> {
    let mut dispatches: Vec<TextTile> = Vec::new();
    for tile in tiles {
        // A pass of short texts holds more of them.
        let room = most as usize * longest / tile.length.max(1);
        match dispatches.last_mut() {
            Some(last)
                if kind == Kind::Cuda
                    && last.length == tile.length
                    && last.rows.end == tile.rows.start
                    && last.rows.len() + tile.rows.len() <= room =>
            {
                last.rows.end = tile.rows.end;
            }
            _ => dispatches.push(tile.clone()),
        }
    }
    dispatches
}

impl Part<'_> {
    fn encode(
        &self,
        tower: &Loaded<TextEncoder>,
        bench: Bench<'_>,
        most: u32,
        forward: &mut Duration,
    ) -> Result<Vec<f32>, ExecuteError> {
        let Bench { slice, threads, attempt, on_oom } = bench;
        let (width, first) = (self.width, self.range.start);
        let mut embeddings = vec![0.0; self.range.len() * width];
        let worker = |_| Encoder { encoder: tower.encoder.for_thread(), ids: Vec::new() };
        let kind = slice.kind();
        let longest = tower.encoder.context();
        let tiles = dispatches(self.tiles, kind, most, longest);
        let state = &*tower.state;
        let passes = Passes { slice, state, attempt, on_oom };
        let work = |worker: &mut Encoder, tile: usize| {
            let (tile, started) = (&tiles[tile], Instant::now());
            let Encoder { encoder, ids } = worker;
            self.rows.padded(tile, ids);
            let mut out = vec![0.0; tile.rows.len() * width];
            let tokens = u32::try_from(tile.length).unwrap_or(u32::MAX);
            passes.run(0..tile.rows.len(), tokens, &mut |rows| {
                let ids = &ids[rows.start * tile.length..rows.end * tile.length];
                let out = &mut out[rows.start * width..rows.end * width];
                encoder.encode(ids, rows.len(), tile.length, out)
            })?;
            Ok((tile.rows.start - first, out, started.elapsed()))
        };
        let (source, mut done) = (numbers(tiles.len()), 0);
        let at_once = if kind == Kind::Cpu { threads } else { 1 };
        let workers = (0..at_once).map(worker).collect();
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
    fn cache_key(
        &self,
        work: &EncodeTexts,
        residents: &Residents,
        slice: &Slice,
    ) -> Result<Digest, ExecuteError> {
        let folder = residents.open_model(&work.model)?.folder();
        let mut hasher = blake3::Hasher::new();
        let (libtorch, precision, tile) = (libtorch_version(), work.model.precision, work.tile);
        // A GPU rounds in its own way, whatever the processor beside it.
        let on = match slice.kind() {
            Kind::Cpu => String::new(),
            Kind::Cuda => format!(", {}", slice.id()),
        };
        let engine =
            format!("texts {NUMERICS}, libtorch {libtorch}, {precision}, tiles of {tile}{on}");
        hasher.update(Digest::of(engine.as_bytes()).as_bytes());
        hasher.update(folder.identity()?.as_bytes());
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
        Ok(hasher.finalize().into())
    }
}
