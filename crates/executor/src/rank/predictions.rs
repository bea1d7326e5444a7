//! Predictions: one JSON object a line, one line per ranked query, in the order of the queries.
//!
//! Names: images by sample id, classes by name, captions as `<sample id>#<n>`, where n counts the
//! captions of that image from 0. The label of a query with several right candidates is the one
//! that ranked best.

use orchestrator_proto::domain::{AssignedRank, Direction};
use orchestrator_tasks::Ranked;
use serde::Serialize;

use crate::dataset::ResidentDataset;

#[derive(Serialize)]
struct Prediction<'a> {
    sample: &'a str,
    label: &'a str,
    top_ids: Vec<String>,
    top_scores: Vec<f32>,
    rank: u32,
    /// Whether a right candidate came first.
    correct: bool,
}

/// The lines of `ranked`.
pub(super) fn lines(work: &AssignedRank, dataset: &ResidentDataset, ranked: &[Ranked]) -> Vec<u8> {
    let names = Names::new(work, dataset);
    let mut out = Vec::new();
    for query in ranked {
        let (sample, label) = (names.query(query.query), names.candidate(query.best));
        let prediction = Prediction {
            sample: &sample,
            label: &label,
            top_ids: query.top.iter().map(|&(candidate, _)| names.candidate(candidate)).collect(),
            top_scores: query.top.iter().map(|&(_, score)| score).collect(),
            rank: query.rank,
            correct: query.rank == 1,
        };
        serde_json::to_writer(&mut out, &prediction).expect("a prediction is valid JSON");
        out.push(b'\n');
    }
    out
}

/// Names of queries and candidates by position.
struct Names<'a> {
    direction: Direction,
    dataset: &'a ResidentDataset,
    /// Position of each image's first caption.
    first_captions: Vec<u32>,
}

impl<'a> Names<'a> {
    fn new(work: &AssignedRank, dataset: &'a ResidentDataset) -> Self {
        let (mut next, mut first_captions) = (0, Vec::new());
        for count in dataset.caption_counts(work.texts) {
            first_captions.push(next);
            next += count;
        }
        Self { direction: work.direction, dataset, first_captions }
    }

    fn query(&self, position: u32) -> String {
        match self.direction {
            Direction::ImageToClass | Direction::ImageToText => self.image(position),
            Direction::TextToImage => self.caption(position),
        }
    }

    fn candidate(&self, position: u32) -> String {
        match self.direction {
            Direction::ImageToClass => {
                self.dataset.manifest().classes()[position as usize].name.clone()
            }
            Direction::ImageToText => self.caption(position),
            Direction::TextToImage => self.image(position),
        }
    }

    fn image(&self, position: u32) -> String {
        self.dataset.manifest().samples()[position as usize].id.0.clone()
    }

    fn caption(&self, position: u32) -> String {
        // Of images without captions, none owns this one: the last that starts here does.
        let image = self.first_captions.partition_point(|&first| first <= position) - 1;
        let number = position - self.first_captions[image];
        format!("{}#{number}", self.image(u32::try_from(image).expect("positions fit 32 bits")))
    }
}
