//! `embeddings.parquet`: the encoding units' blobs with the identities of what they embed.
//!
//! A file holds embeddings of one width; where models differ, each further width has a file
//! `embeddings-<width>.parquet`. Class embeddings are not written: their names are known to the
//! executors only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::BufWriter,
    path::Path,
};

use orchestrator_plan::{Direction, TaskPlan, TrialPlan, UnitRange};
use orchestrator_report::parquet::{Embedding, EmbeddingKind, EmbeddingWriter};
use orchestrator_types::{DatasetName, RunId, UnitId};
use safetensors::SafeTensors;

use super::{Ended, ResultsError, create, finish, predictions};
use crate::blobs::Blobs;

/// Writes the embeddings of every trial.
pub(super) async fn write(ended: &Ended, blobs: &Blobs, folder: &Path) -> Result<(), ResultsError> {
    let mut files = Files { run: &ended.summary.id, folder, by_width: BTreeMap::new() };
    let source = Source { ended, blobs };
    for trial in &ended.documents.plan.trials {
        let mut written = BTreeSet::new();
        for task in &trial.tasks {
            if written.insert(task.images) {
                source.images(trial, task, &mut files).await?;
            }
            if written.insert(task.texts) {
                source.texts(trial, task, &mut files).await?;
            }
        }
    }
    files.by_width.into_values().try_for_each(|file| finish(file.finish()?))
}

struct Files<'a> {
    run: &'a RunId,
    folder: &'a Path,
    by_width: BTreeMap<usize, EmbeddingWriter<BufWriter<File>>>,
}

impl Files<'_> {
    fn push(&mut self, embedding: &Embedding<'_>) -> Result<(), ResultsError> {
        let width = embedding.values.len();
        if !self.by_width.contains_key(&width) {
            let name = if self.by_width.is_empty() {
                "embeddings.parquet".to_owned()
            } else {
                format!("embeddings-{width}.parquet")
            };
            let sink = create(self.folder, &name)?;
            self.by_width.insert(width, EmbeddingWriter::new(sink, self.run.clone(), width)?);
        }
        let writer = self.by_width.get_mut(&width).expect("it was just inserted");
        Ok(writer.push(embedding)?)
    }
}

struct Source<'a> {
    ended: &'a Ended,
    blobs: &'a Blobs,
}

impl Source<'_> {
    /// Every image that could be read.
    async fn images(
        &self,
        trial: &TrialPlan,
        task: &TaskPlan,
        files: &mut Files<'_>,
    ) -> Result<(), ResultsError> {
        for unit in task.images.iter() {
            let Some(blob) = self.blob(unit).await? else { continue };
            let ids: Vec<String> = blob.samples()?;
            let (matrix, valid) = (blob.matrix()?, blob.bytes("valid")?);
            let rows = matrix.rows().zip(valid).zip(&ids);
            for ((values, _), id) in rows.filter(|((_, valid), _)| *valid != 0) {
                files.push(&embedding(
                    trial,
                    EmbeddingKind::Image,
                    task.task.dataset(),
                    id,
                    values,
                ))?;
            }
        }
        Ok(())
    }

    /// Every caption, if the texts are captions whose identities are known.
    async fn texts(
        &self,
        trial: &TrialPlan,
        task: &TaskPlan,
        files: &mut Files<'_>,
    ) -> Result<(), ResultsError> {
        let Some(ids) = self.caption_ids(task).await? else { return Ok(()) };
        let Some((matrix, row_of)) = self.whole_texts(task.texts).await? else { return Ok(()) };
        for (id, row) in ids.iter().zip(row_of) {
            let values = &matrix.values[row as usize * matrix.width..][..matrix.width];
            files.push(&embedding(trial, EmbeddingKind::Text, task.task.dataset(), id, values))?;
        }
        Ok(())
    }

    /// The captions are the queries of text → image, in order; none for a task without that, or
    /// where some of them were not ranked.
    async fn caption_ids(&self, task: &TaskPlan) -> Result<Option<Vec<String>>, ResultsError> {
        let ranked = task.rankings.iter().find(|one| one.direction == Direction::TextToImage);
        let Some(ranking) = ranked else { return Ok(None) };
        let mut ids = Vec::new();
        for unit in ranking.units.iter() {
            let lines = predictions::lines(self.ended, self.blobs, unit).await?;
            let planned = self.ended.documents.plan.units.rows(unit);
            if lines.len() != planned as usize {
                return Ok(None);
            }
            ids.extend(lines.into_iter().map(|line| line.sample));
        }
        Ok(Some(ids))
    }

    /// The distinct texts of all parts, and each text's row among them.
    async fn whole_texts(
        &self,
        units: UnitRange,
    ) -> Result<Option<(Matrix, Vec<u32>)>, ResultsError> {
        let mut whole = Matrix { width: 0, values: Vec::new() };
        let mut row_of = Vec::new();
        for unit in units.iter() {
            let Some(blob) = self.blob(unit).await? else { return Ok(None) };
            let part = blob.matrix()?;
            whole.width = part.width;
            whole.values.extend(part.values);
            row_of = blob.numbers("row_of")?;
        }
        let rows = whole.values.len().checked_div(whole.width).unwrap_or(0);
        if let Some(row) = row_of.iter().find(|row| **row as usize >= rows) {
            let problem = format!("a text has row {row} of {rows}");
            return Err(ResultsError::Unit { unit: UnitId(units.start), problem });
        }
        Ok(Some((whole, row_of)))
    }

    async fn blob(&self, unit: UnitId) -> Result<Option<Blob>, ResultsError> {
        let bytes = self.ended.blob(unit, self.blobs).await?;
        Ok(bytes.map(|bytes| Blob { unit, bytes }))
    }
}

fn embedding<'a>(
    trial: &'a TrialPlan,
    kind: EmbeddingKind,
    dataset: &'a DatasetName,
    sample_id: &'a str,
    values: &'a [f32],
) -> Embedding<'a> {
    Embedding { trial: trial.id, model: &trial.model, kind, dataset, sample_id, values }
}

/// Rows of `width` numbers, row-major.
struct Matrix {
    width: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }
}

/// The safetensors file of an encoding unit.
struct Blob {
    unit: UnitId,
    bytes: Vec<u8>,
}

impl Blob {
    fn wrong(&self, problem: impl std::fmt::Display) -> ResultsError {
        ResultsError::Unit { unit: self.unit, problem: problem.to_string() }
    }

    fn open(&self) -> Result<SafeTensors<'_>, ResultsError> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| self.wrong(error))
    }

    fn samples(&self) -> Result<Vec<String>, ResultsError> {
        let (_, metadata) =
            SafeTensors::read_metadata(&self.bytes).map_err(|error| self.wrong(error))?;
        let notes = metadata.metadata().as_ref();
        let samples = notes.and_then(|notes| notes.get("samples"));
        let samples = samples.ok_or_else(|| self.wrong("it does not name its samples"))?;
        serde_json::from_str(samples).map_err(|error| self.wrong(error))
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, ResultsError> {
        let tensors = self.open()?;
        let tensor = tensors.tensor(name).map_err(|error| self.wrong(error))?;
        Ok(tensor.data().to_vec())
    }

    fn matrix(&self) -> Result<Matrix, ResultsError> {
        let tensors = self.open()?;
        let tensor = tensors.tensor("embeddings").map_err(|error| self.wrong(error))?;
        let &[_, width] = tensor.shape() else {
            return Err(self.wrong("its embeddings are no matrix"));
        };
        if tensor.dtype() != safetensors::Dtype::F32 {
            return Err(self.wrong("its embeddings are not fp32"));
        }
        let values = words(tensor.data()).map(f32::from_le_bytes).collect();
        Ok(Matrix { width, values })
    }

    fn numbers(&self, name: &str) -> Result<Vec<u32>, ResultsError> {
        Ok(words(&self.bytes(name)?).map(u32::from_le_bytes).collect())
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks::<4>().0.iter().copied()
}
