//! Planning: an evaluation, an inventory and what was measured in, an immutable [`Plan`] with its reasons out.
//!
//! Invariant: a plan leaves nothing to choose but *which* of the allowed slices runs a unit next.
//! Shards, tiles and batches are fixed here, from the data, the model and the kinds of device, never
//! from the number of slices; that is why a result does not depend on who computes it.
//!
//! Absent on purpose: clocks, files, networks. Planning twice gives the same plan.

mod again;
mod build;
mod check;
mod claim;
mod cost;
mod inventory;
mod measured;
mod order;
mod placement;
#[cfg(test)]
mod tests;
mod units;
mod work;

pub use again::{Homeless, homeless, place_again};
pub use build::{PlanError, plan};
pub use check::{Violation, check};
pub use claim::Claim;
pub use cost::TowerCost;
pub use inventory::{Inventory, SliceOffer};
pub use measured::{Measured, MeasuredError, MeasuredRows};
pub use orchestrator_spec::Split;
pub use order::MOST_TOWERS;
pub use placement::Placement;
pub use units::{Block, Units};
pub use work::{
    DatasetSource, Direction, EncodeImages, EncodeTexts, GroupId, ModelSource, Rank, SourceKind,
    TextSet, Unit, Work, recipe,
};

use std::ops::Range;

use orchestrator_types::{Digest, MemoryTerms, Precision, TrialId, UnitId};
use serde::{Deserialize, Serialize};

/// Name and version of the document that a plan is written as.
pub const PLAN_SCHEMA: &str = "orchestrator.plan/2";

/// Everything that a run will do, decided in advance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_SCHEMA`].
    pub schema: String,
    /// The evaluation's name.
    pub name: String,
    /// Where components may run, and why.
    pub placement: Vec<Placement>,
    /// One row of the report each.
    pub trials: Vec<TrialPlan>,
    /// Smallest things leased, retried and committed.
    pub units: Units,
    /// Decisions worth telling, in the order in which they were made.
    pub reasons: Vec<String>,
    /// The evaluation's terms, which travel with every assignment. Plans of before they existed
    /// have none.
    #[serde(default)]
    pub memory: MemoryTerms,
    /// Whether work is spread where that is not predicted to pay.
    #[serde(default)]
    pub split: Split,
    /// What predictions of time are made from. Plans of before it existed have none, and are spread
    /// over every slice.
    #[serde(default)]
    pub costs: Vec<TowerCost>,
}

/// One point of the sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialPlan {
    /// Position in the product of the axes.
    pub id: TrialId,
    /// The model's folder as written in eval.yaml.
    pub model: String,
    /// Number format of both towers.
    pub precision: Precision,
    /// Rows per dispatch.
    pub batch: BatchPlan,
    /// In file order.
    pub tasks: Vec<TaskPlan>,
}

/// Rows per dispatch of each tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Images.
    pub vision: u32,
    /// Texts.
    pub text: u32,
}

/// One task of one trial: which units feed it and which produce its partial results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// What is measured, on which dataset.
    pub task: orchestrator_spec::Task,
    /// Samples in the dataset.
    pub samples: u32,
    /// Units that encode the images, one a shard, in order.
    pub images: UnitRange,
    /// Units that encode the texts, one a part, in order.
    pub texts: UnitRange,
    /// Units that rank, by direction.
    pub rankings: Vec<RankingPlan>,
}

/// The units of one direction of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankingPlan {
    /// Which side queries which.
    pub direction: Direction,
    /// One a shard of the queries, in order.
    pub units: UnitRange,
}

/// Units `start..end` of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnitRange {
    /// First unit.
    pub start: u32,
    /// One past the last unit.
    pub end: u32,
}

impl UnitRange {
    /// The units in order.
    pub fn iter(self) -> impl Iterator<Item = UnitId> {
        (self.start..self.end).map(UnitId)
    }

    /// Whether `unit` is one of them.
    pub const fn contains(self, unit: UnitId) -> bool {
        self.start <= unit.0 && unit.0 < self.end
    }

    /// As positions among a plan's units.
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Number of units.
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether there is no unit at all.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }
}

impl Plan {
    /// The unit with this id, if the plan has one.
    pub fn unit(&self, id: UnitId) -> Option<Unit> {
        self.units.get(id)
    }

    /// Identity of the plan: the digest of its JSON document.
    ///
    /// # Panics
    /// Never: a plan holds no map with keys that JSON cannot write.
    pub fn digest(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plan is always valid JSON"))
    }
}
