//! `predictions.parquet`: the ranking units' blobs, in the order of the plan.

use std::{fs::File, io::BufWriter};

use orchestrator_plan::Direction;
use orchestrator_report::parquet::{Prediction, PredictionWriter};
use orchestrator_types::UnitId;
use serde::Deserialize;

use super::{Ended, ResultsError, finish};
use crate::blobs::Blobs;

/// One line of a ranking unit's blob: one query.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    pub(super) sample: String,
    label: String,
    top_ids: Vec<String>,
    top_scores: Vec<f32>,
    rank: u32,
}

/// Writes one row for each ranked query of each task and trial.
pub(super) async fn write(
    ended: &Ended,
    blobs: &Blobs,
    sink: BufWriter<File>,
) -> Result<(), ResultsError> {
    let mut writer = PredictionWriter::new(sink, ended.summary.id.clone())?;
    for trial in &ended.documents.plan.trials {
        for task in &trial.tasks {
            for ranking in &task.rankings {
                for unit in ranking.units.iter() {
                    for line in lines(ended, blobs, unit).await? {
                        let top: Vec<(&str, f32)> =
                            line.top_ids.iter().map(String::as_str).zip(line.top_scores).collect();
                        writer.push(&Prediction {
                            trial: trial.id,
                            task: task.task.name(),
                            direction: direction(ranking.direction),
                            dataset: task.task.dataset(),
                            captions: task.task.captions(),
                            sample_id: &line.sample,
                            label: &line.label,
                            top: &top,
                            rank: line.rank,
                        })?;
                    }
                }
            }
        }
    }
    finish(writer.finish()?)
}

/// The ranked queries of a unit, in order; none if it has no result.
pub(super) async fn lines(
    ended: &Ended,
    blobs: &Blobs,
    unit: UnitId,
) -> Result<Vec<Line>, ResultsError> {
    let Some(bytes) = ended.blob(unit, blobs).await? else { return Ok(Vec::new()) };
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            serde_json::from_slice(line)
                .map_err(|error| ResultsError::Unit { unit, problem: error.to_string() })
        })
        .collect()
}

/// The report's word for a direction: zero-shot has none.
const fn direction(direction: Direction) -> Option<orchestrator_tasks::Direction> {
    match direction {
        Direction::ImageToClass => None,
        Direction::ImageToText => Some(orchestrator_tasks::Direction::ImageToText),
        Direction::TextToImage => Some(orchestrator_tasks::Direction::TextToImage),
    }
}
