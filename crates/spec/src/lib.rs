//! From the text of an eval.yaml to a validated [`Evaluation`], or to every problem at once with
//! its place in the file.
//!
//! Invariant: nothing that the project cannot do yet is accepted and ignored. There are no files,
//! no environment and no clock here: `data` and `model` gather [`Facts`], and judging them is pure.
//!
//! The line: `outline` finds places and refuses hostile YAML → `overrides` → `walk` compares with
//! the shapes of `grammar` and writes defaults in → `parse` reads the typed value.

mod as_run;
mod check;
mod evaluation;
mod facts;
mod grammar;
mod key_path;
mod outline;
mod overrides;
mod parse;
mod problem;
mod schema;
mod shape;
mod walk;
mod wording;

pub use as_run::as_run;
pub use check::{Findings, check};
pub use evaluation::{Axis, Batch, Dataset, Evaluation, Model, OnBadSample, Split, Task, Trial};
pub use facts::{DatasetFacts, DatasetKey, DatasetProblem, Facts, ModelFacts, TowerFacts};
pub use orchestrator_types::{CaptionChoice, MemoryTerms, OnOom};
pub use overrides::{Override, ParseOverrideError};
pub use parse::{Rejected, examine, parse};
pub use problem::{Place, Places, Problem, Problems};
pub use schema::schema;
