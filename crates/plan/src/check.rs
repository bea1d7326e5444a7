//! The plan checker: what must hold of every plan, however it was made.

use std::collections::BTreeMap;

use orchestrator_types::{Component, DatasetName, Shard, UnitId};

use crate::{ModelSource, Plan, UnitRange, Work};

/// A broken invariant of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// `units[i].id` is not `i`.
    #[error("unit at position {position} calls itself {id}")]
    Numbering {
        /// Where it stands.
        position: usize,
        /// What it says.
        id: UnitId,
    },
    /// A unit needs itself or a later one, so that no order exists.
    #[error("unit {unit} needs {need:?}, which does not come before it")]
    Order {
        /// The unit.
        unit: UnitId,
        /// What it needs.
        need: UnitRange,
    },
    /// No slice may run the unit.
    #[error("unit {unit} needs a slice with {component}, and there is none")]
    Homeless {
        /// The unit.
        unit: UnitId,
        /// The component that no slice holds.
        component: Component,
    },
    /// Image shards overlap or leave a gap.
    #[error("images of `{dataset}`: shard {found} follows position {expected}")]
    Coverage {
        /// The dataset.
        dataset: DatasetName,
        /// The first position that the shard should have.
        expected: u32,
        /// The shard.
        found: Shard,
    },
    /// A slice is promised more than it has.
    #[error("slice {0} is promised more than its quota")]
    Quota(String),
}

/// Every broken invariant of `plan`; empty for every plan that [`crate::plan`] makes.
pub fn check(plan: &Plan) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut next: BTreeMap<(ModelSource, DatasetName, u32), u32> = BTreeMap::new();
    for (position, unit) in plan.units.iter().enumerate() {
        if unit.id.0 as usize != position {
            violations.push(Violation::Numbering { position, id: unit.id });
        }
        for need in unit.needs().filter(|need| need.end > unit.id.0) {
            violations.push(Violation::Order { unit: unit.id, need });
        }
        let component = unit.component();
        if !plan.placement.iter().any(|slice| slice.components.contains(&component)) {
            violations.push(Violation::Homeless { unit: unit.id, component });
        }
        if let Work::EncodeImages(images) = &unit.work {
            let name = images.dataset.name.clone();
            let key = (images.model.clone(), name, images.batch);
            let expected = next.entry(key).or_default();
            if images.shard.start != *expected {
                let dataset = images.dataset.name.clone();
                let (expected, found) = (*expected, images.shard);
                violations.push(Violation::Coverage { dataset, expected, found });
            }
            *expected = images.shard.end;
        }
    }
    for slice in &plan.placement {
        if slice.predicted_peak() > slice.quota_bytes {
            violations.push(Violation::Quota(slice.slice.to_string()));
        }
    }
    violations
}
