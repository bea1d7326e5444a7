//! Rows per dispatch that a profile found to be best, for the planner to use instead of its prior.
//!
//! Invariant: rows are from 1 to [`Measured::MOST_ROWS`], as those that an evaluation asks for.

use orchestrator_types::{Component, DeviceId, Digest, Precision};
use serde::{Deserialize, Serialize};

use crate::Inventory;

/// What was measured, on whichever devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<MeasuredRows>", try_from = "Vec<MeasuredRows>")]
pub struct Measured(Vec<MeasuredRows>);

/// The best rows of one component on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRows {
    /// Where it was measured.
    pub device: DeviceId,
    /// The model, by its weights.
    pub weights: Digest,
    /// Its number format.
    pub precision: Precision,
    /// The component.
    pub component: Component,
    /// Rows of one dispatch.
    pub rows: u32,
}

/// Rows that nobody can have measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{rows} rows of {component} on {device}: measured rows are from 1 to {}; profile again",
    Measured::MOST_ROWS
)]
pub struct MeasuredError {
    rows: u32,
    component: Component,
    device: DeviceId,
}

impl Measured {
    /// Most rows of a dispatch.
    pub const MOST_ROWS: u32 = 1_000_000;

    /// Checks what was measured.
    ///
    /// # Errors
    /// [`MeasuredError`] where rows are out of range.
    pub fn new(entries: Vec<MeasuredRows>) -> Result<Self, MeasuredError> {
        match entries.iter().find(|entry| !(1..=Self::MOST_ROWS).contains(&entry.rows)) {
            None => Ok(Self(entries)),
            Some(MeasuredRows { rows, component, device, .. }) => {
                Err(MeasuredError { rows: *rows, component: *component, device: device.clone() })
            }
        }
    }

    /// The rows at which every slice of `inventory` is at its best: the largest of its devices'.
    /// `None` unless all are GPUs and were measured: the processor's tile is fixed.
    pub(crate) fn rows_for(
        &self,
        inventory: &Inventory,
        of: impl Fn(&MeasuredRows) -> bool,
    ) -> Option<u32> {
        let rows = |device: &DeviceId| {
            let known = self.0.iter().find(|entry| entry.device == *device && of(entry));
            known.filter(|_| *device != DeviceId::Cpu).map(|entry| entry.rows)
        };
        let all = inventory.slices.iter().map(|slice| rows(&slice.device));
        all.collect::<Option<Vec<u32>>>()?.into_iter().max()
    }
}

impl From<Measured> for Vec<MeasuredRows> {
    fn from(Measured(entries): Measured) -> Self {
        entries
    }
}

impl TryFrom<Vec<MeasuredRows>> for Measured {
    type Error = MeasuredError;

    fn try_from(entries: Vec<MeasuredRows>) -> Result<Self, Self::Error> {
        Self::new(entries)
    }
}
