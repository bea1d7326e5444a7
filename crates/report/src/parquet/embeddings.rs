//! Embeddings with the identity of what they embed.

use std::{io::Write, sync::Arc};

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, StringBuilder, UInt32Builder};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use orchestrator_types::{DatasetName, RunId, TrialId};

use super::{File, ROWS_PER_BATCH, WriteError};

/// What an embedding embeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingKind {
    /// A sample's image; `sample_id` is its id.
    Image,
    /// A class; `sample_id` is its name.
    Class,
    /// A caption; `sample_id` is its [`caption_id`](super::caption_id).
    Text,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a> {
    /// The trial.
    pub trial: TrialId,
    /// The model's path as in eval.yaml.
    pub model: &'a str,
    /// What it embeds.
    pub kind: EmbeddingKind,
    /// The dataset.
    pub dataset: &'a DatasetName,
    /// Which one.
    pub sample_id: &'a str,
    /// The L2-normalised embedding.
    pub values: &'a [f32],
}

/// Writes [`Embedding`]s of one run and one width, as a column of fixed-size lists.
pub struct EmbeddingWriter<W: Write + Send> {
    run: RunId,
    width: usize,
    file: File<W>,
    rows: Rows,
}

/// Rows that are not encoded yet, by column.
struct Rows {
    run: StringBuilder,
    trial: UInt32Builder,
    model: StringBuilder,
    kind: StringBuilder,
    dataset: StringBuilder,
    sample_id: StringBuilder,
    embedding: FixedSizeListBuilder<Float32Builder>,
    count: usize,
}

impl EmbeddingKind {
    /// The name in the column `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Class => "class",
            Self::Text => "text",
        }
    }
}

impl<W: Write + Send> EmbeddingWriter<W> {
    /// Starts a file of embeddings of `width` numbers in `sink`.
    pub fn new(sink: W, run: RunId, width: usize) -> Result<Self, WriteError> {
        let list = i32::try_from(width).ok().filter(|&width| width > 0);
        let list = list.ok_or(WriteError::NoWidth { width })?;
        Ok(Self { run, width, file: File::new(sink, schema(list))?, rows: Rows::new(list) })
    }

    /// Adds a row.
    pub fn push(&mut self, embedding: &Embedding<'_>) -> Result<(), WriteError> {
        let (expected, actual) = (self.width, embedding.values.len());
        if actual != expected {
            let sample_id = embedding.sample_id.to_owned();
            return Err(WriteError::Width { sample_id, expected, actual });
        }
        self.rows.push(self.run.as_str(), embedding);
        if self.rows.count < ROWS_PER_BATCH { Ok(()) } else { self.flush() }
    }

    /// Ends the file and gives the sink back. Without this the file is unreadable.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.flush()?;
        self.file.finish()
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        self.file.append(self.rows.take())
    }
}

fn schema(width: i32) -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    Arc::new(Schema::new(vec![
        text("run"),
        Field::new("trial", DataType::UInt32, false),
        text("model"),
        text("kind"),
        text("dataset"),
        text("sample_id"),
        Field::new("embedding", DataType::FixedSizeList(number_field(), width), false),
    ]))
}

fn number_field() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Float32, false))
}

impl Rows {
    fn new(width: i32) -> Self {
        Self {
            run: StringBuilder::new(),
            trial: UInt32Builder::new(),
            model: StringBuilder::new(),
            kind: StringBuilder::new(),
            dataset: StringBuilder::new(),
            sample_id: StringBuilder::new(),
            embedding: FixedSizeListBuilder::new(Float32Builder::new(), width)
                .with_field(number_field()),
            count: 0,
        }
    }

    fn push(&mut self, run: &str, embedding: &Embedding<'_>) {
        let Embedding { trial, model, kind, dataset, sample_id, values } = *embedding;
        self.run.append_value(run);
        self.trial.append_value(trial.0);
        self.model.append_value(model);
        self.kind.append_value(kind.name());
        self.dataset.append_value(dataset.as_str());
        self.sample_id.append_value(sample_id);
        self.embedding.values().append_slice(values);
        self.embedding.append(true);
        self.count += 1;
    }

    fn take(&mut self) -> Vec<arrow_array::ArrayRef> {
        self.count = 0;
        vec![
            Arc::new(self.run.finish()),
            Arc::new(self.trial.finish()),
            Arc::new(self.model.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.dataset.finish()),
            Arc::new(self.sample_id.finish()),
            Arc::new(self.embedding.finish()),
        ]
    }
}
