//! [`Units`]: the units of a plan, told by blocks of like ones.
//!
//! Within a block everything that differs is arithmetic, so that a million units take no more memory,
//! and no longer document, than ten. A unit is written out when it is asked for.
//!
//! Invariant: the unit at position `i` has the id `i`, in every [`Units`] that [`crate::plan`] makes.

use std::ops::Range;

use orchestrator_types::{Component, Shard, UnitId};
use serde::{Deserialize, Serialize};

use crate::{Direction, GroupId, Unit, UnitRange, Work};

/// Units in their order. See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Entry>", into = "Vec<Block>")]
pub struct Units {
    blocks: Vec<Block>,
}

/// Units that stand next to each other and differ only in their place: shard after shard of one
/// dataset, part after part of one set of texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The first of them. Each later one comes one id, turn, group, part and input shard after the
    /// one before, and its shard starts where that one's ends.
    pub first: Unit,
    /// How many they are.
    pub count: u32,
    /// Rows of the last one; the others have as many as the first.
    pub last_rows: u32,
}

/// How a plan is read: plans of before there were blocks list every unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Block(Block),
    Unit(Unit),
}

impl Block {
    /// One unit.
    pub const fn one(unit: Unit) -> Self {
        let last_rows = unit.rows;
        Self { first: unit, count: 1, last_rows }
    }

    /// The ids of its units.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = UnitId> + use<> {
        self.range().map(UnitId)
    }

    /// The component that its units need.
    pub const fn component(&self) -> Component {
        self.first.component()
    }

    /// Rows of all its units.
    pub fn total_rows(&self) -> u64 {
        u64::from(self.first.rows) * u64::from(self.count - 1) + u64::from(self.last_rows)
    }

    const fn range(&self) -> Range<u32> {
        self.first.id.0..self.first.id.0 + self.count
    }

    const fn rows(&self, index: u32) -> u32 {
        if index + 1 == self.count { self.last_rows } else { self.first.rows }
    }

    fn group(&self, index: u32) -> Option<GroupId> {
        self.first.group.map(|GroupId(first)| GroupId(first + index))
    }

    const fn shard(&self, first: Shard, index: u32) -> Shard {
        let start = first.start + index * self.first.rows;
        Shard { start, end: start + self.rows(index) }
    }

    /// What the unit reads, as ranges of units: its texts, and its images.
    fn needs(&self, index: u32) -> Option<[UnitRange; 2]> {
        match &self.first.work {
            Work::EncodeTexts(_) | Work::EncodeImages(_) => None,
            Work::Rank(rank) => {
                let own = match rank.direction {
                    Direction::ImageToClass | Direction::ImageToText => index,
                    Direction::TextToImage => 0,
                };
                let UnitRange { start, end } = rank.image_units;
                Some([rank.text_units, UnitRange { start: start + own, end: end + own }])
            }
        }
    }

    fn unit(&self, index: u32) -> Unit {
        let mut unit = self.first.clone();
        unit.id.0 += index;
        unit.turn += index;
        unit.rows = self.rows(index);
        unit.group = self.group(index);
        match &mut unit.work {
            Work::EncodeTexts(work) => work.part += index,
            Work::EncodeImages(work) => work.shard = self.shard(work.shard, index),
            Work::Rank(work) => {
                work.queries = self.shard(work.queries, index);
                if let Some([_, images]) = self.needs(index) {
                    work.image_units = images;
                }
            }
        }
        unit
    }
}

impl Units {
    /// Number of units.
    pub fn len(&self) -> usize {
        self.end() as usize
    }

    /// Whether there is none at all.
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks, in the order of their units.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    /// Appends a block, whose units get the next ids. Gives these.
    pub(crate) fn push(&mut self, mut block: Block) -> UnitRange {
        let start = self.end();
        if block.count == 0 {
            return UnitRange { start, end: start };
        }
        block.first.id = UnitId(start);
        block.first.turn = start;
        self.blocks.push(block);
        UnitRange { start, end: self.end() }
    }

    pub(crate) fn end(&self) -> u32 {
        self.blocks.last().map_or(0, |block| block.range().end)
    }

    /// All ids.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = UnitId> + use<> {
        (0..self.end()).map(UnitId)
    }

    /// The unit with this id, written out, if there is one.
    pub fn get(&self, id: UnitId) -> Option<Unit> {
        self.find(id).map(|(block, index)| block.unit(index))
    }

    /// Every unit, written out one by one.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Unit> {
        self.blocks.iter().flat_map(|block| (0..block.count).map(|index| block.unit(index)))
    }

    /// The component that a slice must hold to run the unit.
    ///
    /// # Panics
    /// If there is no such unit, as all methods below.
    pub fn component(&self, id: UnitId) -> Component {
        self.place(id).0.component()
    }

    /// Rows that the unit is about.
    pub fn rows(&self, id: UnitId) -> u32 {
        let (block, index) = self.place(id);
        block.rows(index)
    }

    /// See [`Unit::turn`].
    pub fn turn(&self, id: UnitId) -> u32 {
        let (block, index) = self.place(id);
        block.first.turn + index
    }

    /// See [`Unit::group`].
    pub fn group(&self, id: UnitId) -> Option<GroupId> {
        let (block, index) = self.place(id);
        block.group(index)
    }

    /// See [`Unit::needs`].
    pub fn needs(&self, id: UnitId) -> impl Iterator<Item = UnitRange> + use<> {
        let (block, index) = self.place(id);
        block.needs(index).into_iter().flatten()
    }

    /// The shard of images that the unit encodes, if it does.
    pub fn image_shard(&self, id: UnitId) -> Option<Shard> {
        let (block, index) = self.place(id);
        match &block.first.work {
            Work::EncodeImages(work) => Some(block.shard(work.shard, index)),
            Work::EncodeTexts(_) | Work::Rank(_) => None,
        }
    }

    fn find(&self, id: UnitId) -> Option<(&Block, u32)> {
        let at = self.blocks.partition_point(|block| block.range().end <= id.0);
        let block = self.blocks.get(at)?;
        Some((block, id.0.checked_sub(block.first.id.0)?))
    }

    fn place(&self, id: UnitId) -> (&Block, u32) {
        self.find(id).expect("a run asks for units of its own plan")
    }
}

impl From<Vec<Entry>> for Units {
    fn from(entries: Vec<Entry>) -> Self {
        let block = |entry| match entry {
            Entry::Block(block) => block,
            Entry::Unit(unit) => Block::one(unit),
        };
        Self { blocks: entries.into_iter().map(block).collect() }
    }
}

impl From<Units> for Vec<Block> {
    fn from(units: Units) -> Self {
        units.blocks
    }
}

/// Units that were made one by one; their ids must be their positions.
impl FromIterator<Unit> for Units {
    fn from_iter<T: IntoIterator<Item = Unit>>(units: T) -> Self {
        Self { blocks: units.into_iter().map(Block::one).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::sweep;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn blocks_say_what_their_units_say_one_by_one(samples in 1..3_000_u32) {
            let axis = "precision: [fp32, bf16]";
            let units = sweep(axis, samples, orchestrator_types::ByteCount::gib(1)).units;
            let listed: Units = units.iter().collect();
            prop_assert_eq!(listed.len(), units.len());
            prop_assert_eq!(listed.blocks().len(), units.len());
            for (id, unit) in units.ids().zip(units.iter()) {
                prop_assert_eq!(unit.id, id);
                prop_assert_eq!(Some(unit.clone()), listed.get(id));
                prop_assert_eq!(units.component(id), unit.component());
                prop_assert_eq!(units.rows(id), unit.rows);
                prop_assert_eq!(units.turn(id), unit.turn);
                prop_assert_eq!(units.group(id), unit.group);
                prop_assert_eq!(units.needs(id).collect::<Vec<_>>(), unit.needs().collect::<Vec<_>>());
            }
            prop_assert_eq!(units.get(UnitId(units.end())), None);
        }
    }

    #[test]
    fn a_plan_that_lists_its_units_is_still_read() {
        let units = sweep("batch: [auto]", 600, orchestrator_types::ByteCount::gib(1)).units;
        let listed = serde_json::to_value(units.iter().collect::<Vec<_>>()).unwrap();
        let read: Units = serde_json::from_value(listed).unwrap();
        assert!(read.iter().eq(units.iter()));
        let blocks = serde_json::to_string(&units).unwrap();
        assert_eq!(serde_json::from_str::<Units>(&blocks).unwrap(), units);
    }
}
