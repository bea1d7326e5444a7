//! Which slice may hold which component.

use orchestrator_types::{ByteCount, Component, DeviceId, NodeName, SliceId};
use serde::{Deserialize, Serialize};

use crate::{Claim, Inventory, PlanError, SliceOffer, claim::sum};

/// What the plan lets one slice hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The slice.
    pub slice: SliceId,
    /// Its host.
    pub node: NodeName,
    /// Its device.
    pub device: DeviceId,
    /// Compute threads.
    pub threads: u32,
    /// Ceiling for the sum of everything it holds.
    pub quota_bytes: ByteCount,
    /// Components whose units it may run.
    pub components: Vec<Component>,
    /// Predicted bytes, by component and model.
    pub claims: Vec<Claim>,
}

impl Placement {
    /// Predicted bytes when everything that the slice may hold is resident at once.
    pub fn predicted_peak(&self) -> ByteCount {
        sum(self.claims.iter().map(Claim::peak))
    }
}

/// What slice number `index` of `slices` may hold. Every slice may encode images and score. Texts
/// are few and encoded once, so with several slices the last one holds the text tower and the
/// others never load it.
///
/// A run that is resumed with other slices than it was planned for asks again.
pub fn components(index: usize, slices: usize) -> Vec<Component> {
    if index + 1 == slices {
        vec![Component::Text, Component::Vision, Component::Score]
    } else {
        vec![Component::Vision, Component::Score]
    }
}

/// Places components on every slice that can hold them, last slice first for the text tower.
///
/// # Errors
/// [`PlanError::NoSlice`] without slices; [`PlanError::NeverFits`] where a slice is too small.
pub(crate) fn place(
    inventory: &Inventory,
    claims: impl Fn(&SliceOffer, &[Component]) -> Vec<Claim>,
) -> Result<(Vec<Placement>, Vec<String>), PlanError> {
    let count = inventory.slices.len();
    let mut placements = Vec::with_capacity(count);
    for (index, offer) in inventory.slices.iter().enumerate() {
        let components = components(index, count);
        let placement = Placement {
            slice: offer.id.clone(),
            node: offer.node.clone(),
            device: offer.device.clone(),
            threads: offer.threads,
            quota_bytes: offer.memory_bytes,
            claims: claims(offer, &components),
            components,
        };
        let needed = placement.predicted_peak();
        if needed > offer.memory_bytes {
            return Err(PlanError::NeverFits {
                slice: offer.id.clone(),
                needed,
                quota: offer.memory_bytes,
                largest: placement.claims.into_iter().max_by_key(Claim::peak).map(Box::new),
            });
        }
        placements.push(placement);
    }
    let Some(last) = placements.last() else { return Err(PlanError::NoSlice) };
    let mut reasons = Vec::new();
    if count == 1 {
        reasons.push(format!("slice {}: all components, it is the only slice", last.slice));
    } else {
        reasons.push(format!(
            "slice {}: holds the text tower, so that texts are encoded once and no other slice \
             loads it",
            last.slice
        ));
        reasons.push(format!(
            "all {count} slices: vision and score; image shards go to whichever slice is free"
        ));
    }
    Ok((placements, reasons))
}
