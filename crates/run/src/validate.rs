//! [`validate`]: whether a result can be the result of its unit. A worker may be wrong.

use orchestrator_plan::{Direction, Unit, Work};
use orchestrator_tasks::Partial;

use crate::UnitResult;

/// Whether `result` can be a result of `unit`.
///
/// # Errors
/// What does not fit, for people.
pub fn validate(unit: &Unit, result: &UnitResult) -> Result<(), String> {
    if result.rows > u64::from(unit.rows) {
        return Err(format!("{} rows of at most {}", result.rows, unit.rows));
    }
    match &unit.work {
        Work::EncodeTexts(_) => no_partial(result),
        Work::EncodeImages(work) => {
            let outside = |position| !work.shard.range().contains(&(position as usize));
            if let Some(sample) = result.quarantined.iter().find(|one| outside(one.position)) {
                let (position, shard) = (sample.position, work.shard);
                return Err(format!("position {position} is quarantined, outside shard {shard}"));
            }
            // A sample that was set aside still has its row, all zero.
            if result.rows != u64::from(work.shard.len()) {
                return Err(format!("{} rows for shard {}", result.rows, work.shard));
            }
            no_partial(result)
        }
        Work::Rank(work) => ranking(work.direction, result),
    }
}

fn no_partial(result: &UnitResult) -> Result<(), String> {
    if result.partial.is_empty() { Ok(()) } else { Err("an encoding has no partial result".into()) }
}

fn ranking(direction: Direction, result: &UnitResult) -> Result<(), String> {
    let partial = serde_json::from_str(&result.partial)
        .map_err(|error| format!("its partial result cannot be read: {error}"))?;
    let (queries, others) = match (direction, &partial) {
        (Direction::ImageToClass, Partial::ZeroShot { ranks, .. }) => (ranks.total(), 0),
        (Direction::ImageToText, Partial::Retrieval { image_to_text, text_to_image }) => {
            (image_to_text.total(), text_to_image.total())
        }
        (Direction::TextToImage, Partial::Retrieval { image_to_text, text_to_image }) => {
            (text_to_image.total(), image_to_text.total())
        }
        (_, other) => return Err(format!("a partial result of {}", other.task())),
    };
    if (queries, others) == (result.rows, 0) {
        Ok(())
    } else {
        Err(format!("{} rows, but {queries} ranks and {others} of the other side", result.rows))
    }
}
