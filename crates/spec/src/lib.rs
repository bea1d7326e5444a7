//! From the text of an eval.yaml to a validated [`Evaluation`], or to every problem at once with
//! its place in the file.
//!
//! Invariant: nothing that the project cannot do yet is accepted and ignored. There are no files,
//! no environment and no clock here: `data` and `model` gather [`Facts`], and judging them is pure.

mod evaluation;
mod facts;
mod key_path;
mod problem;

pub use evaluation::{
    Axis, Batch, CaptionChoice, Dataset, Evaluation, Model, OnBadSample, Task, Trial,
};
pub use facts::{DatasetFacts, Facts, ModelFacts, TowerFacts};
pub use problem::{Place, Places, Problem, Problems};
