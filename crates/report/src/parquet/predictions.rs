//! `predictions.parquet`: what was predicted for each query.

use std::{io::Write, sync::Arc};

use arrow_array::builder::{
    BooleanBuilder, Float32Builder, ListBuilder, StringBuilder, UInt32Builder,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use orchestrator_tasks::Direction;
use orchestrator_types::{CaptionChoice, DatasetName, RunId, SampleId, TrialId};

use super::{File, ROWS_PER_BATCH, WriteError};

/// One row.
///
/// | task, direction | `captions` | row per | `sample_id` | `label` | `top_ids` |
/// | --- | --- | --- | --- | --- | --- |
/// | `zero_shot` | null | image | the image's id | name of its class | class names |
/// | `retrieval`, `image_to_text` | `first` or `all` | image | the image's id | its best-ranked caption, as [`caption_id`] | caption ids |
/// | `retrieval`, `text_to_image` | `first` or `all` | caption | [`caption_id`] | the image's id | image ids |
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// The trial.
    pub trial: TrialId,
    /// The task's name.
    pub task: &'a str,
    /// Null for zero-shot.
    pub direction: Option<Direction>,
    /// The dataset.
    pub dataset: &'a DatasetName,
    /// Which captions take part; null for zero-shot.
    pub captions: Option<CaptionChoice>,
    /// The query.
    pub sample_id: &'a str,
    /// What is right.
    pub label: &'a str,
    /// The best candidates with their scores, best first.
    pub top: &'a [(&'a str, f32)],
    /// Rank of what is right, from 1; `correct` is rank 1.
    pub rank: u32,
}

/// Identity of a caption: its sample and its position among the sample's captions, from 0.
pub fn caption_id(sample: &SampleId, caption: u32) -> String {
    format!("{sample}#{caption}")
}

/// Writes [`Prediction`]s of one run.
pub struct PredictionWriter<W: Write + Send> {
    run: RunId,
    file: File<W>,
    rows: Rows,
}

/// Rows that are not encoded yet, by column.
struct Rows {
    run: StringBuilder,
    trial: UInt32Builder,
    task: StringBuilder,
    direction: StringBuilder,
    dataset: StringBuilder,
    captions: StringBuilder,
    sample_id: StringBuilder,
    label: StringBuilder,
    top_ids: ListBuilder<StringBuilder>,
    top_scores: ListBuilder<Float32Builder>,
    correct: BooleanBuilder,
    rank: UInt32Builder,
    count: usize,
}

impl<W: Write + Send> PredictionWriter<W> {
    /// Starts a file in `sink`.
    pub fn new(sink: W, run: RunId) -> Result<Self, WriteError> {
        Ok(Self { run, file: File::new(sink, schema())?, rows: Rows::new() })
    }

    /// Adds a row.
    pub fn push(&mut self, prediction: &Prediction<'_>) -> Result<(), WriteError> {
        self.rows.push(self.run.as_str(), prediction);
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

fn schema() -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    let list =
        |name: &str, item: DataType| Field::new(name, DataType::List(item_field(item)), false);
    Arc::new(Schema::new(vec![
        text("run"),
        Field::new("trial", DataType::UInt32, false),
        text("task"),
        Field::new("direction", DataType::Utf8, true),
        text("dataset"),
        Field::new("captions", DataType::Utf8, true),
        text("sample_id"),
        text("label"),
        list("top_ids", DataType::Utf8),
        list("top_scores", DataType::Float32),
        Field::new("correct", DataType::Boolean, false),
        Field::new("rank", DataType::UInt32, false),
    ]))
}

fn item_field(item: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", item, false))
}

const fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::ImageToText => "image_to_text",
        Direction::TextToImage => "text_to_image",
    }
}

impl Rows {
    fn new() -> Self {
        Self {
            run: StringBuilder::new(),
            trial: UInt32Builder::new(),
            task: StringBuilder::new(),
            direction: StringBuilder::new(),
            dataset: StringBuilder::new(),
            captions: StringBuilder::new(),
            sample_id: StringBuilder::new(),
            label: StringBuilder::new(),
            top_ids: ListBuilder::new(StringBuilder::new()).with_field(item_field(DataType::Utf8)),
            top_scores: ListBuilder::new(Float32Builder::new())
                .with_field(item_field(DataType::Float32)),
            correct: BooleanBuilder::new(),
            rank: UInt32Builder::new(),
            count: 0,
        }
    }

    fn push(&mut self, run: &str, prediction: &Prediction<'_>) {
        let Prediction { trial, task, direction, dataset, captions, sample_id, label, top, rank } =
            *prediction;
        self.run.append_value(run);
        self.trial.append_value(trial.0);
        self.task.append_value(task);
        self.direction.append_option(direction.map(direction_name));
        self.dataset.append_value(dataset.as_str());
        self.captions.append_option(captions.map(CaptionChoice::name));
        self.sample_id.append_value(sample_id);
        self.label.append_value(label);
        for &(id, score) in top {
            self.top_ids.values().append_value(id);
            self.top_scores.values().append_value(score);
        }
        self.top_ids.append(true);
        self.top_scores.append(true);
        self.correct.append_value(rank == 1);
        self.rank.append_value(rank);
        self.count += 1;
    }

    fn take(&mut self) -> Vec<arrow_array::ArrayRef> {
        self.count = 0;
        vec![
            Arc::new(self.run.finish()),
            Arc::new(self.trial.finish()),
            Arc::new(self.task.finish()),
            Arc::new(self.direction.finish()),
            Arc::new(self.dataset.finish()),
            Arc::new(self.captions.finish()),
            Arc::new(self.sample_id.finish()),
            Arc::new(self.label.finish()),
            Arc::new(self.top_ids.finish()),
            Arc::new(self.top_scores.finish()),
            Arc::new(self.correct.finish()),
            Arc::new(self.rank.finish()),
        ]
    }
}
