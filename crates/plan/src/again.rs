//! [`place_again`]: an old plan on other slices.

use std::collections::BTreeMap;

use orchestrator_types::Component;

use crate::{Claim, Inventory, Placement, Plan, SliceOffer, claim::sum};

/// Where the components of `plan` may run on the slices that are there now. Units, tiles and
/// batches stay as they are, and with them every result.
///
/// The last slice that can hold everything gets the text tower; the others get vision and score if
/// they can hold those, and a slice that is too small gets nothing. Claims are the largest that
/// the plan made for any slice. Empty for an empty inventory.
pub fn place_again(plan: &Plan, inventory: &Inventory) -> Vec<Placement> {
    let all = [Component::Text, Component::Vision, Component::Score];
    let holder = inventory.slices.iter().rposition(|offer| place(plan, offer, &all).is_some());
    let slices = inventory.slices.iter().enumerate();
    slices
        .map(|(index, offer)| {
            let wanted = if Some(index) == holder { &all[..] } else { &all[1..] };
            place(plan, offer, wanted).unwrap_or_else(|| placement(offer, &[], Vec::new()))
        })
        .collect()
}

/// The slice with these components, if it can hold them.
fn place(plan: &Plan, offer: &SliceOffer, components: &[Component]) -> Option<Placement> {
    let mut largest: BTreeMap<(Component, &str), &Claim> = BTreeMap::new();
    let planned = plan.placement.iter().flat_map(|placement| &placement.claims);
    for claim in planned.filter(|claim| components.contains(&claim.component)) {
        let entry = largest.entry((claim.component, &claim.model)).or_insert(claim);
        if claim.peak() > entry.peak() {
            *entry = claim;
        }
    }
    let claims: Vec<Claim> = largest.into_values().cloned().collect();
    let fits = sum(claims.iter().map(Claim::peak)) <= offer.memory_bytes;
    fits.then(|| placement(offer, components, claims))
}

fn placement(offer: &SliceOffer, components: &[Component], claims: Vec<Claim>) -> Placement {
    Placement {
        slice: offer.id.clone(),
        node: offer.node.clone(),
        device: offer.device.clone(),
        threads: offer.threads,
        quota_bytes: offer.memory_bytes,
        components: components.to_vec(),
        claims,
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_types::{ByteCount, DeviceId};

    use super::*;
    use crate::PLAN_SCHEMA;

    fn offer(number: u32, memory_bytes: ByteCount) -> SliceOffer {
        SliceOffer {
            id: format!("n.{number}").parse().unwrap(),
            node: "n".parse().unwrap(),
            device: DeviceId::Cpu,
            threads: 1,
            memory_bytes,
        }
    }

    fn claim(component: Component) -> Claim {
        Claim {
            component,
            model: "m".into(),
            weights_bytes: ByteCount::mib(10),
            activations_bytes: ByteCount::ZERO,
            staging_bytes: ByteCount::ZERO,
        }
    }

    fn components(memory: &[u64]) -> Vec<usize> {
        let all = [Component::Text, Component::Vision, Component::Score];
        let old = placement(&offer(9, ByteCount::gib(1)), &all, all.map(claim).to_vec());
        let plan = Plan {
            schema: PLAN_SCHEMA.into(),
            name: "old".into(),
            placement: vec![old],
            trials: Vec::new(),
            units: Vec::new(),
            reasons: Vec::new(),
        };
        let slices = (0..).zip(memory).map(|(n, mib)| offer(n, ByteCount::mib(*mib))).collect();
        let placed = place_again(&plan, &Inventory { slices });
        assert!(placed.iter().all(|placement| placement.predicted_peak() <= placement.quota_bytes));
        placed.iter().map(|placement| placement.components.len()).collect()
    }

    #[test]
    fn other_slices_than_planned_hold_what_they_can() {
        assert_eq!(components(&[]), [0_usize; 0]);
        assert_eq!(components(&[30]), [3]);
        assert_eq!(components(&[30, 40, 30]), [2, 2, 3]);
        assert_eq!(components(&[30, 20, 5]), [3, 2, 0]);
        assert_eq!(components(&[5, 29]), [0, 2]);
    }
}
