//! [`place_again`]: an old plan on other slices.

use std::collections::{BTreeMap, BTreeSet};

use orchestrator_types::{ByteCount, Component, UnitId};

use crate::{
    Claim, Inventory, Placement, Plan, SliceOffer,
    claim::sum,
    cost::Left,
    placement::{on_slices, runtime_bytes, used},
};

/// Where the components of `plan` may run on the slices that are there now. Units, tiles and
/// batches stay as they are, and with them every result.
///
/// As many slices as are predicted to end the units that are `open` first get what they have room
/// for, the fastest that can hold the text tower that too, and a slice that is too small gets
/// nothing. Claims are the largest that the plan made for any slice. Empty for an empty inventory.
pub fn place_again(
    plan: &Plan,
    inventory: &Inventory,
    open: impl Fn(UnitId) -> bool,
) -> Vec<Placement> {
    let largest = largest(plan);
    let claims = |_: &SliceOffer, components: &[Component]| of(&largest, components);
    let slices = inventory.within(plan.memory.quota).slices;
    let left = Left::of(&plan.costs, &plan.units, open);
    let (used, _) = used(&slices, &left, plan.split, &claims);
    on_slices(&slices, &used, &claims)
}

/// A component that no slice may hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no slice can hold the component {component}: at least {needed} needed, and the largest slice \
     offers {largest}; offer a larger one"
)]
pub struct Homeless {
    /// The component.
    pub component: Component,
    /// What it needs on the largest slice, the device's runtime included.
    pub needed: ByteCount,
    /// What the largest slice offers.
    pub largest: ByteCount,
}

/// The first of `components` that none of `placements`, made by [`place_again`], holds.
pub fn homeless(
    plan: &Plan,
    placements: &[Placement],
    components: &BTreeSet<Component>,
) -> Option<Homeless> {
    let held = |component: &&Component| {
        placements.iter().any(|placement| placement.components.contains(component))
    };
    let component = *components.iter().find(|component| !held(component))?;
    let widest = placements.iter().max_by_key(|slice| slice.quota_bytes);
    let least = of(&largest(plan), &[component]).iter().map(|claim| claim.least_bytes).max();
    let runtime =
        widest.map_or(ByteCount::ZERO, |slice| runtime_bytes(&slice.device, slice.quota_bytes));
    Some(Homeless {
        component,
        needed: sum([least.unwrap_or_default(), runtime]),
        largest: widest.map_or(ByteCount::ZERO, |slice| slice.quota_bytes),
    })
}

/// The largest claim of every component and model that the plan made.
fn largest(plan: &Plan) -> Vec<&Claim> {
    let mut largest: BTreeMap<(Component, &str), &Claim> = BTreeMap::new();
    for claim in plan.placement.iter().flat_map(|placement| &placement.claims) {
        let entry = largest.entry((claim.component, &claim.model)).or_insert(claim);
        if claim.peak() > entry.peak() {
            *entry = claim;
        }
    }
    largest.into_values().collect()
}

fn of(claims: &[&Claim], components: &[Component]) -> Vec<Claim> {
    let of = claims.iter().filter(|claim| components.contains(&claim.component));
    of.map(|claim| (*claim).clone()).collect()
}

#[cfg(test)]
mod tests {
    use orchestrator_types::{ByteCount, DeviceId};

    use super::*;
    use crate::{PLAN_SCHEMA, placement::ALL};

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
            least_bytes: ByteCount::mib(10),
        }
    }

    fn plan() -> Plan {
        let claims = |_: &SliceOffer, components: &[Component]| {
            components.iter().map(|component| claim(*component)).collect()
        };
        let old =
            on_slices(&[offer(9, ByteCount::gib(1))], &BTreeSet::from([0]), &claims).remove(0);
        Plan {
            schema: PLAN_SCHEMA.into(),
            name: "old".into(),
            placement: vec![old],
            trials: Vec::new(),
            units: crate::Units::default(),
            reasons: Vec::new(),
            memory: orchestrator_types::MemoryTerms::default(),
            split: orchestrator_spec::Split::Auto,
            costs: Vec::new(),
        }
    }

    fn placed(memory: &[u64]) -> Vec<Placement> {
        let slices = (0..).zip(memory).map(|(n, mib)| offer(n, ByteCount::mib(*mib))).collect();
        place_again(&plan(), &Inventory { slices }, |_| true)
    }

    fn components(memory: &[u64]) -> Vec<usize> {
        let placed = placed(memory);
        assert!(placed.iter().all(|placement| placement.predicted_peak() <= placement.quota_bytes));
        placed.iter().map(|placement| placement.components.len()).collect()
    }

    #[test]
    fn a_component_without_a_slice_is_named_with_its_bytes() {
        let missing = |memory: &[u64], components: &[Component]| {
            let components = components.iter().copied().collect();
            homeless(&plan(), &placed(memory), &components).map(|missing| missing.to_string())
        };
        assert_eq!(missing(&[30], &ALL), None);
        assert_eq!(missing(&[10], &ALL), None, "they take turns");
        assert_eq!(missing(&[5], &[]), None);
        assert_eq!(
            missing(&[5, 9], &ALL).unwrap(),
            "no slice can hold the component text: at least 10.00 MiB needed, and the largest \
             slice offers 9.00 MiB; offer a larger one"
        );
    }

    #[test]
    fn other_slices_than_planned_hold_what_they_can() {
        assert_eq!(components(&[]), [0_usize; 0]);
        assert_eq!(components(&[30]), [3]);
        assert_eq!(components(&[30, 40, 30]), [2, 2, 3]);
        assert_eq!(components(&[30, 10, 5]), [2, 3, 0]);
        assert_eq!(components(&[5, 9]), [0, 0]);
    }
}
