//! How long work takes on slices, roughly: enough to see that a few images are not worth another
//! slice.
//!
//! A slice starts, loads each tower that its units need, and then computes; slices pull whole units.
//! The assumed rates are those of one kind of machine, and wrong by a small factor on others. That
//! moves the size of job from which a split pays, by that factor, and no result.

use std::{cmp::Reverse, collections::BTreeMap};

use orchestrator_spec::{ModelFacts, TowerFacts};
use orchestrator_types::{ByteCount, Component, DeviceId, Precision, UnitId};
use serde::{Deserialize, Serialize};

use crate::{ModelSource, SliceOffer, Units, Work};

/// Bytes of weights that a slice reads, checks and places in a second.
const LOAD_BYTES: f64 = 250e6;
/// Until an executor answers, in seconds: libtorch (and CUDA) come up. They compete for the same
/// disk and cores, so each further one of a node costs as much again.
const START: [f64; 2] = [0.4, 3.0];
/// Probes and first passes of a tower, in seconds.
const WARM_UP: [f64; 2] = [0.1, 1.0];
/// Operations a second: of a processor's thread in fp32, of a GPU in fp32 and in 16 bits (measured:
/// tiny-clip and B/32).
const THREAD: f64 = 3e10;
const GPU: [f64; 2] = [4e13, 1.5e14];
/// Images that one thread reads and decodes in a second.
const DECODE: f64 = 800.0;
/// A prediction is not better than this share of itself: a split has to save more.
const MARGIN: f64 = 0.1;
/// Enough to tell apart what a clock could.
const HALVINGS: usize = 40;
/// Up to so many slices each number is weighed, and of more, each eighth more: one slice is nothing then.
const EACH: usize = 64;
/// With more units than this for each slice, starting and loading are nothing beside the work.
const MANY: usize = 64;

/// One tower of one model, as its cost is predicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TowerCost {
    /// Text or vision.
    pub component: Component,
    /// Whose.
    pub model: ModelSource,
    /// Weights as loaded.
    pub weights_bytes: ByteCount,
    /// Operations of one row, in millions.
    pub row_megaops: u64,
}

impl TowerCost {
    pub(crate) fn of(component: Component, model: ModelSource, facts: &ModelFacts) -> Self {
        let tower = match component {
            Component::Text => facts.text,
            Component::Vision | Component::Score => facts.vision,
        };
        let stored = (facts.weights_bytes.as_u64() / facts.parameters.max(1)).max(1);
        let bytes = tower.weights_bytes.as_u64() / stored * model.precision.element_bytes();
        let weights_bytes = ByteCount::bytes(bytes);
        Self { component, model, weights_bytes, row_megaops: row_operations(&tower) / 1_000_000 }
    }
}

/// Two for each weight of the blocks and token, and the two products of attention.
fn row_operations(tower: &TowerFacts) -> u64 {
    let (width, mlp, tokens) =
        (u64::from(tower.width), u64::from(tower.mlp), u64::from(tower.tokens));
    let block = tokens * (8 * width * width + 4 * width * mlp) + 4 * tokens * tokens * width;
    u64::from(tower.layers) * block
}

/// What is left to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left<'a> {
    /// Each tower that is needed, with its open units and their rows.
    towers: Vec<(&'a TowerCost, usize, u64)>,
}

impl<'a> Left<'a> {
    /// Of `units`, those that are `open`.
    pub(crate) fn of(costs: &'a [TowerCost], units: &Units, open: impl Fn(UnitId) -> bool) -> Self {
        let mut rows: BTreeMap<(Component, &ModelSource), (usize, u64)> = BTreeMap::new();
        for block in units.blocks() {
            let key = match &block.first.work {
                Work::EncodeTexts(work) => (Component::Text, &work.model),
                Work::EncodeImages(work) => (Component::Vision, &work.model),
                Work::Rank(_) => continue,
            };
            let entry = rows.entry(key).or_default();
            for unit in block.ids().filter(|unit| open(*unit)) {
                *entry = (entry.0 + 1, entry.1 + u64::from(units.rows(unit)));
            }
        }
        rows.retain(|_, (open, _)| *open > 0);
        let tower = |cost: &'a TowerCost| {
            let (units, rows) = rows.get(&(cost.component, &cost.model))?;
            Some((cost, *units, *rows))
        };
        Self { towers: costs.iter().filter_map(tower).collect() }
    }

    fn each(&self, component: Component) -> impl Iterator<Item = &(&'a TowerCost, usize, u64)> {
        self.towers.iter().filter(move |(cost, ..)| cost.component == component)
    }

    /// Units of images.
    fn units(&self) -> usize {
        self.each(Component::Vision).map(|(_, units, _)| units).sum()
    }

    /// Seconds until a slice has the towers of a component.
    fn load(&self, component: Component, offer: &SliceOffer) -> f64 {
        let one = |(cost, ..): &(&TowerCost, usize, u64)| {
            cost.weights_bytes.as_u64() as f64 / LOAD_BYTES + WARM_UP[kind(offer)]
        };
        self.each(component).map(one).sum()
    }

    /// Seconds of all units of a component on one slice.
    fn work(&self, component: Component, offer: &SliceOffer) -> f64 {
        let one = |(cost, _, rows): &(&TowerCost, usize, u64)| {
            let row = cost.row_megaops as f64 * 1e6 / rate(offer, cost.model.precision);
            let read = match component {
                Component::Vision => 1.0 / (DECODE * f64::from(offer.threads.max(1))),
                Component::Text | Component::Score => 0.0,
            };
            // Beside a GPU images are decoded while it computes; on a processor the same threads do
            // both.
            *rows as f64 * if kind(offer) == 0 { row + read } else { row.max(read) }
        };
        self.each(component).map(one).sum()
    }

    /// Seconds until the slices have done it, one of them with the texts too.
    fn end(&self, slices: &[&SliceOffer]) -> f64 {
        let units = self.units();
        let start: f64 = slices.iter().map(|offer| START[kind(offer)]).sum();
        let with_texts = fastest(slices.iter().copied());
        let puller = |(index, offer): (usize, &&SliceOffer)| {
            let texts = if Some(index) == with_texts {
                self.load(Component::Text, offer) + self.work(Component::Text, offer)
            } else {
                0.0
            };
            let unit = self.work(Component::Vision, offer) / units.max(1) as f64;
            Puller { free: texts, load: self.load(Component::Vision, offer), unit }
        };
        start + last_end(&slices.iter().enumerate().map(puller).collect::<Vec<_>>(), units)
    }
}

/// A slice that pulls units one after the other, in seconds.
struct Puller {
    /// When it is free for the first one.
    free: f64,
    /// What the first one takes it longer.
    load: f64,
    /// What each takes.
    unit: f64,
}

impl Puller {
    /// Units begun by `time`.
    fn begun(&self, time: f64) -> f64 {
        let further = ((time - self.free - self.load) / self.unit).floor();
        if time < self.free { 0.0 } else { 1.0 + further.max(0.0) }
    }

    /// When it has done so many.
    fn end(&self, units: f64) -> f64 {
        if units == 0.0 { self.free } else { self.free + self.load + units * self.unit }
    }
}

/// When `units` are done by pullers of which whoever is free first takes the next one (of equals the
/// first), whatever that takes it. The last unit begins at the time by which so many have begun, which is
/// sought by halving: the work does not grow with the number of units.
fn last_end(pullers: &[Puller], units: usize) -> f64 {
    let units = units as f64;
    let enough = |time| pullers.iter().map(|it| it.begun(time)).sum::<f64>() >= units;
    let (mut early, mut late) = (-1.0, 1.0);
    while !enough(late) && late.is_finite() {
        (early, late) = (late, late * 2.0);
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(early, late);
        *(if enough(middle) { &mut late } else { &mut early }) = middle;
    }
    // Those that begin in between begin together.
    let mut left = units - pullers.iter().map(|it| it.begun(early)).sum::<f64>();
    let mut end: f64 = 0.0;
    for puller in pullers {
        let before = puller.begun(early);
        let more = (puller.begun(late) - before).min(left.max(0.0));
        left -= more;
        end = end.max(puller.end(before + more));
    }
    end
}

/// The position of the fastest, the last of equal ones.
pub(crate) fn fastest<'s>(slices: impl Iterator<Item = &'s SliceOffer>) -> Option<usize> {
    let speeds = slices.map(|offer| rate(offer, Precision::Fp32)).enumerate();
    speeds.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
}

/// Which of `slices` do the work, by position, and why. Faster ones come first, among equals the
/// larger, and a slice more has to save more than the [`MARGIN`].
pub(crate) fn choose(left: &Left<'_>, slices: &[SliceOffer]) -> (Vec<usize>, Option<String>) {
    let mut order: Vec<usize> = (0..slices.len()).collect();
    let speed = |index: &usize| rate(&slices[*index], Precision::Fp32);
    order.sort_by(|a, b| {
        let larger = |index: &usize| Reverse(slices[*index].memory_bytes);
        speed(b).total_cmp(&speed(a)).then(larger(a).cmp(&larger(b)))
    });
    if slices.len() < 2 || left.towers.is_empty() || left.units() > MANY * slices.len() {
        return (order, None);
    }
    let ordered: Vec<&SliceOffer> = order.iter().map(|index| &slices[*index]).collect();
    // More slices than units, and one for the texts, have nothing to do.
    let most = ordered.len().min(left.units() + 1);
    let end = |count: usize| left.end(&ordered[..count]);
    let (mut used, mut best) = (1, end(1));
    for count in counts(most).skip(1) {
        let end = end(count);
        if end < best * (1.0 - MARGIN) {
            (used, best) = (count, end);
        }
    }
    let all = slices.len();
    let other = if used < most { used + 1 } else { used.saturating_sub(1).max(1) };
    order.truncate(used);
    let reason = format!(
        "{used} of {all} slices: predicted to end after {best:.1} s, and after {:.1} s on {other}; a \
         slice more has to save {:.0} % of it",
        end(other),
        MARGIN * 100.0
    );
    (order, Some(reason))
}

/// The numbers of slices that are weighed, from 1 to `most`.
fn counts(most: usize) -> impl Iterator<Item = usize> {
    let next = move |count: &usize| match *count {
        count if count >= most => None,
        count if count < EACH => Some(count + 1),
        count => Some((count + count / 8).min(most)),
    };
    std::iter::successors(Some(1), next)
}

const fn kind(offer: &SliceOffer) -> usize {
    match offer.device {
        DeviceId::Cpu => 0,
        DeviceId::Gpu(_) | DeviceId::Mig(_) => 1,
    }
}

fn rate(offer: &SliceOffer, precision: Precision) -> f64 {
    match (kind(offer), precision) {
        (0, _) => THREAD * f64::from(offer.threads.max(1)),
        (_, Precision::Fp32) => GPU[0],
        (_, Precision::Fp16 | Precision::Bf16 | Precision::Int8) => GPU[1],
    }
}

#[cfg(test)]
mod tests;
