//! Which slice may hold which component.

use orchestrator_ledger::AllocatorLimit;
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
    /// Kept apart for the device's runtime: context, kernels, a margin.
    pub runtime_bytes: ByteCount,
}

impl Placement {
    /// Predicted bytes at the fullest moment: everything that the slice may hold at once where that
    /// fits the quota, else the largest component alone, as large as the quota lets it be.
    pub fn predicted_peak(&self) -> ByteCount {
        let all = sum(self.claims.iter().map(Claim::peak).chain([self.runtime_bytes]));
        if all <= self.quota_bytes {
            return all;
        }
        let largest = self.claims.iter().map(Claim::peak).max().unwrap_or_default();
        let alone = sum([self.runtime_bytes, largest]);
        if self.least() <= self.quota_bytes { alone.min(self.quota_bytes) } else { self.least() }
    }

    /// Whether components have to take turns, because they do not all fit at once.
    pub fn takes_turns(&self) -> bool {
        let all = sum(self.claims.iter().map(Claim::peak).chain([self.runtime_bytes]));
        all > self.quota_bytes
    }

    /// The least that any order of its units needs: one component at a time, one row at a time.
    pub fn least(&self) -> ByteCount {
        let largest = self.claims.iter().map(|claim| claim.least_bytes).max();
        sum([self.runtime_bytes, largest.unwrap_or_default()])
    }
}

/// What a device's runtime takes before the first tensor, with the margin that is kept; nothing on
/// the CPU. An executor measures it when it starts.
pub(crate) fn runtime_bytes(offer: &SliceOffer) -> ByteCount {
    match offer.device {
        DeviceId::Cpu => ByteCount::ZERO,
        DeviceId::Gpu(_) | DeviceId::Mig(_) => {
            AllocatorLimit::derive(offer.memory_bytes, None)
                .map_or(offer.memory_bytes, |share| sum([share.overhead, share.margin]))
        }
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
            runtime_bytes: runtime_bytes(offer),
            components,
        };
        let needed = placement.least();
        if needed > offer.memory_bytes {
            let largest = placement.claims.into_iter().max_by_key(|claim| claim.least_bytes);
            return Err(PlanError::NeverFits {
                slice: offer.id.clone(),
                needed,
                missing: ByteCount::bytes(needed.as_u64() - offer.memory_bytes.as_u64()),
                quota: offer.memory_bytes,
                runtime: placement.runtime_bytes,
                largest: largest.map(Box::new),
            });
        }
        placements.push(placement);
    }
    let Some(last) = placements.last() else { return Err(PlanError::NoSlice) };
    let mut reasons = Vec::new();
    for slice in placements.iter().filter(|slice| slice.takes_turns()) {
        reasons.push(format!(
            "slice {}: {} are less than everything at once needs, so components take turns and \
             batches shrink to what fits",
            slice.slice, slice.quota_bytes
        ));
    }
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
