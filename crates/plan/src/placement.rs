//! Which slice may hold which component.

use std::collections::BTreeSet;

use orchestrator_ledger::AllocatorLimit;
use orchestrator_spec::Split;
use orchestrator_types::{ByteCount, Component, DeviceId, NodeName, SliceId};
use serde::{Deserialize, Serialize};

use crate::{
    Claim, Inventory, PlanError, SliceOffer,
    claim::sum,
    cost::{Left, choose, fastest},
};

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
/// the CPU. More than `quota` where it does not fit. An executor measures it when it starts.
pub(crate) fn runtime_bytes(device: &DeviceId, quota: ByteCount) -> ByteCount {
    match device {
        DeviceId::Cpu => ByteCount::ZERO,
        DeviceId::Gpu(_) | DeviceId::Mig(_) => match AllocatorLimit::derive(quota, None) {
            Ok(share) => sum([share.overhead, share.margin]),
            Err(no_room) => sum([quota, no_room.missing]),
        },
    }
}

/// Every component, the text tower first.
pub(crate) const ALL: [Component; 3] = [Component::Text, Component::Vision, Component::Score];

/// The largest claims of some components on one slice.
pub(crate) trait Claims: Fn(&SliceOffer, &[Component]) -> Vec<Claim> {}

impl<F: Fn(&SliceOffer, &[Component]) -> Vec<Claim>> Claims for F {}

/// Gives every slice of `used` what it has room for. Texts are few and encoded once, so only the
/// fastest slice that can hold the text tower does, the last of equal ones, and the others never
/// load it.
pub(crate) fn on_slices(
    slices: &[SliceOffer],
    used: &BTreeSet<usize>,
    claims: &impl Claims,
) -> Vec<Placement> {
    let holds = |index: usize, component| {
        used.contains(&index) && lack(&slices[index], component, claims).is_none()
    };
    let with_texts: Vec<usize> =
        (0..slices.len()).filter(|index| holds(*index, Component::Text)).collect();
    let texts = fastest(with_texts.iter().map(|index| &slices[*index]));
    let texts = texts.map(|at| with_texts[at]);
    let place = |(index, offer): (usize, &SliceOffer)| {
        let wanted = ALL.iter().copied().filter(|component| match component {
            Component::Text => Some(index) == texts,
            Component::Vision | Component::Score => holds(index, *component),
        });
        placement(offer, wanted.collect(), claims)
    };
    slices.iter().enumerate().map(place).collect()
}

/// The slices that do what is left, and why not all: those that are predicted to end it first, and
/// for a component that none of them can hold, one that can.
pub(crate) fn used(
    slices: &[SliceOffer],
    left: &Left<'_>,
    split: Split,
    claims: &impl Claims,
) -> (BTreeSet<usize>, Option<String>) {
    let fit = |component| -> Vec<usize> {
        let fits = |index: &usize| lack(&slices[*index], component, claims).is_none();
        (0..slices.len()).filter(fits).collect()
    };
    let able = fit(Component::Vision);
    let offers: Vec<SliceOffer> = able.iter().map(|index| slices[*index].clone()).collect();
    let (chosen, reason) = match split {
        Split::Auto => choose(left, &offers),
        Split::Always => ((0..offers.len()).collect(), None),
        Split::Never => (fastest(offers.iter()).into_iter().collect(), None),
    };
    let whole = chosen.len() == able.len();
    let mut used: BTreeSet<usize> = chosen.into_iter().map(|at| able[at]).collect();
    if whole {
        // Small ones too, for what they can hold.
        return ((0..slices.len()).collect(), reason);
    }
    for component in ALL {
        let able = fit(component);
        if !able.iter().any(|index| used.contains(index)) {
            let best = fastest(able.iter().map(|index| &slices[*index]));
            used.extend(best.map(|at| able[at]));
        }
    }
    (used, reason)
}

/// A slice with these components, whether they fit or not.
fn placement(offer: &SliceOffer, components: Vec<Component>, claims: &impl Claims) -> Placement {
    let idle = components.is_empty();
    let runtime = runtime_bytes(&offer.device, offer.memory_bytes);
    Placement {
        slice: offer.id.clone(),
        node: offer.node.clone(),
        device: offer.device.clone(),
        threads: offer.threads,
        quota_bytes: offer.memory_bytes,
        claims: if idle { Vec::new() } else { claims(offer, &components) },
        runtime_bytes: if idle { ByteCount::ZERO } else { runtime },
        components,
    }
}

/// Why a slice cannot hold a component.
struct Lack {
    component: Component,
    /// The least that it needs, the device's runtime included.
    needed: ByteCount,
    missing: ByteCount,
    runtime: ByteCount,
    largest: Option<Claim>,
}

/// What the slice lacks to hold the component; `None` if it can.
fn lack(offer: &SliceOffer, component: Component, claims: &impl Claims) -> Option<Lack> {
    let alone = placement(offer, vec![component], claims);
    let needed = alone.least();
    let missing = needed.checked_sub(offer.memory_bytes)?;
    let largest = alone.claims.into_iter().max_by_key(|claim| claim.least_bytes);
    let runtime = alone.runtime_bytes;
    let lack = Lack { component, needed, missing, runtime, largest };
    (missing > ByteCount::ZERO).then_some(lack)
}

/// Places components on every slice that can hold them.
///
/// # Errors
/// [`PlanError::NoSlice`] without slices; [`PlanError::NeverFits`] where a component fits on none.
pub(crate) fn place(
    inventory: &Inventory,
    left: &Left<'_>,
    split: Split,
    claims: impl Claims,
) -> Result<(Vec<Placement>, Vec<String>), PlanError> {
    if inventory.slices.is_empty() {
        return Err(PlanError::NoSlice);
    }
    let (used, few) = used(&inventory.slices, left, split, &claims);
    let placements = on_slices(&inventory.slices, &used, &claims);
    let held =
        |component: &Component| placements.iter().any(|slice| slice.components.contains(component));
    let homeless = ALL.iter().filter(|component| !held(component));
    let nearest = homeless.filter_map(|component| nearest(inventory, *component, &claims));
    if let Some((offer, lack)) = nearest.max_by_key(|(_, lack)| lack.needed) {
        return Err(PlanError::NeverFits {
            slice: offer.id.clone(),
            needed: lack.needed,
            missing: lack.missing,
            quota: offer.memory_bytes,
            runtime: lack.runtime,
            largest: lack.largest.map(Box::new),
        });
    }
    let mut reasons = lacks(inventory, &placements, &claims);
    reasons.extend(few);
    reasons.extend(turns(&placements));
    reasons.extend(roles(&placements));
    Ok((placements, reasons))
}

/// The slice that lacks the least for a component that fits on none.
fn nearest<'a>(
    inventory: &'a Inventory,
    component: Component,
    claims: &impl Claims,
) -> Option<(&'a SliceOffer, Lack)> {
    let lacks = inventory.slices.iter().map(|offer| Some((offer, lack(offer, component, claims)?)));
    lacks.flatten().min_by_key(|(_, lack)| lack.missing)
}

/// Which slices are too small for what. A text tower that is held elsewhere is missed only where
/// it would have gone first.
fn lacks(inventory: &Inventory, placements: &[Placement], claims: &impl Claims) -> Vec<String> {
    let texts = placements.iter().rposition(|slice| slice.components.contains(&Component::Text));
    let mut lines = Vec::new();
    for (index, (offer, placement)) in inventory.slices.iter().zip(placements).enumerate() {
        let missed = ALL.iter().filter(|component| match component {
            Component::Text => Some(index) > texts,
            Component::Vision | Component::Score => true,
        });
        let missed = missed.filter_map(|component| lack(offer, *component, claims));
        let line = |lack: &Lack, holds: &str| {
            format!(
                "slice {}: {holds}, it is too small: {} needs at least {}, and {} are offered; {} \
                 missing",
                offer.id, lack.component, lack.needed, offer.memory_bytes, lack.missing
            )
        };
        if placement.components.is_empty() {
            // What it comes nearest to tells enough.
            let least = missed.min_by_key(|lack| lack.missing);
            lines.extend(least.map(|lack| line(&lack, "no component")));
        } else {
            lines.extend(missed.map(|lack| line(&lack, &format!("no {}", lack.component))));
        }
    }
    lines
}

fn turns(placements: &[Placement]) -> impl Iterator<Item = String> {
    let takes = |slice: &&Placement| !slice.components.is_empty() && slice.takes_turns();
    placements.iter().filter(takes).map(|slice| {
        format!(
            "slice {}: {} are less than everything at once needs, so components take turns and \
             batches shrink to what fits",
            slice.slice, slice.quota_bytes
        )
    })
}

fn roles(placements: &[Placement]) -> Vec<String> {
    if let [only] = placements {
        return vec![format!("slice {}: all components, it is the only slice", only.slice)];
    }
    let text = placements.iter().filter(|slice| slice.components.contains(&Component::Text));
    let mut reasons: Vec<String> = text
        .map(|slice| {
            format!(
                "slice {}: holds the text tower, so that texts are encoded once and no other \
                 slice loads it",
                slice.slice
            )
        })
        .collect();
    let both = |slice: &&Placement| ALL[1..].iter().all(|one| slice.components.contains(one));
    let (count, all) = (placements.iter().filter(both).count(), placements.len());
    reasons.push(if count == all {
        format!("all {all} slices: vision and score; image shards go to whichever slice is free")
    } else {
        format!(
            "{count} of {all} slices: vision and score; image shards go to whichever slice with \
             vision is free"
        )
    });
    reasons
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inventory(memory: &[u64]) -> Inventory {
        let offer = |(number, mib): (usize, &u64)| SliceOffer {
            id: format!("n.{number}").parse().unwrap(),
            node: "n".parse().unwrap(),
            device: DeviceId::Cpu,
            threads: 1,
            memory_bytes: ByteCount::mib(*mib),
        };
        Inventory { slices: memory.iter().enumerate().map(offer).collect() }
    }

    /// Needs in MiB of text, vision and score.
    fn claims(needs: [u64; 3]) -> impl Claims {
        move |_: &SliceOffer, components: &[Component]| {
            let claim = |component: &Component| Claim {
                component: *component,
                model: "m".into(),
                weights_bytes: ByteCount::mib(needs[*component as usize]),
                activations_bytes: ByteCount::ZERO,
                staging_bytes: ByteCount::ZERO,
                least_bytes: ByteCount::mib(needs[*component as usize]),
            };
            components.iter().map(claim).collect()
        }
    }

    fn needs(text: u64, vision: u64, score: u64) -> [u64; 3] {
        let mut needs = [0; 3];
        for (component, mib) in ALL.iter().zip([text, vision, score]) {
            needs[*component as usize] = mib;
        }
        needs
    }

    fn placed(memory: &[u64], needs: [u64; 3]) -> Result<(Vec<usize>, String), String> {
        let placed = place(&inventory(memory), &Left::default(), Split::Auto, claims(needs))
            .map_err(|error| error.to_string())?;
        let counts = placed.0.iter().map(|slice| slice.components.len()).collect();
        Ok((counts, placed.1.join("\n")))
    }

    #[test]
    fn a_slice_that_is_too_small_is_left_out_and_the_rest_is_planned() {
        let (counts, reasons) = placed(&[40, 10, 3], needs(8, 12, 4)).unwrap();
        assert_eq!(counts, [2, 2, 0], "text and score fit the second");
        insta::assert_snapshot!(reasons, @r"
        slice n.1: no vision, it is too small: vision needs at least 12.00 MiB, and 10.00 MiB are offered; 2.00 MiB missing
        slice n.2: no component, it is too small: score needs at least 4.00 MiB, and 3.00 MiB are offered; 1.00 MiB missing
        slice n.1: 10.00 MiB are less than everything at once needs, so components take turns and batches shrink to what fits
        slice n.1: holds the text tower, so that texts are encoded once and no other slice loads it
        1 of 3 slices: vision and score; image shards go to whichever slice with vision is free
        ");
    }

    #[test]
    fn never_fits_names_the_slice_that_lacks_the_least() {
        let refused = placed(&[5, 11, 7], needs(8, 12, 4)).unwrap_err();
        assert!(refused.starts_with("slice n.1 never fits: at least 12.00 MiB needed, 11.00 MiB offered, 1.00 MiB missing (vision: "), "{refused}");
        assert!(placed(&[], needs(1, 1, 1)).unwrap_err().contains("no slice"));
    }

    proptest! {
        #[test]
        fn every_slice_holds_what_it_has_room_for_and_the_last_such_one_the_texts(
            memory in proptest::collection::vec(1_u64..40, 1..6),
            (text, vision, score) in (1_u64..40, 1_u64..40, 1_u64..40),
        ) {
            let all = [text, vision, score];
            let can = |need: u64| memory.iter().any(|mib| *mib >= need);
            let claims = claims(needs(text, vision, score));
            match place(&inventory(&memory), &Left::default(), Split::Auto, claims) {
                Err(_) => prop_assert!(!all.into_iter().all(can)),
                Ok((placements, reasons)) => {
                    prop_assert!(all.into_iter().all(can));
                    let texts = memory.iter().rposition(|mib| *mib >= text);
                    for (index, (slice, mib)) in placements.iter().zip(&memory).enumerate() {
                        let holds = |component| slice.components.contains(&component);
                        prop_assert!(slice.predicted_peak() <= slice.quota_bytes);
                        prop_assert_eq!(holds(Component::Vision), *mib >= vision);
                        prop_assert_eq!(holds(Component::Score), *mib >= score);
                        prop_assert_eq!(holds(Component::Text), Some(index) == texts);
                        let told = format!("slice {}: no component, it is too small", slice.slice);
                        let told = reasons.iter().filter(|line| line.starts_with(&told)).count();
                        let idle = slice.components.is_empty() && *mib < vision.min(score);
                        prop_assert_eq!(told == 1, idle);
                    }
                }
            }
        }
    }
}
