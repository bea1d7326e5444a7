//! [`SampleDigests`]: two workers that read different bytes behind one path are found.
//!
//! Each unit that encodes images digests the bytes that it read. Units of the same shard of the
//! same dataset (other trials, other lives of the run, other workers) must have read the same.

use std::collections::BTreeMap;

use orchestrator_plan::{EncodeImages, Unit, Work};
use orchestrator_types::{DatasetName, Digest, Shard};

use crate::UnitResult;

/// What was read so far, by dataset and shard. There may be a million shards, and 64 bits of a digest
/// tell other bytes as surely as anybody needs.
#[derive(Clone, Debug, Default)]
pub struct SampleDigests(BTreeMap<DatasetName, BTreeMap<Shard, u64>>);

fn short(digest: Digest) -> u64 {
    let [first, ..] = digest.as_bytes().as_chunks().0 else { return 0 };
    u64::from_le_bytes(*first)
}

/// A result was computed from other bytes than an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the samples {shard} of dataset `{dataset}` are not the bytes that another unit of this run \
     read; make every worker see the same files, unchanged while a run lasts, and submit again"
)]
pub struct OtherSamples {
    /// The dataset.
    pub dataset: DatasetName,
    /// The positions that differ somewhere.
    pub shard: Shard,
}

impl SampleDigests {
    /// Whether `result` of `unit` was computed from the bytes that are known.
    ///
    /// # Errors
    /// [`OtherSamples`] if not.
    pub fn check(&self, unit: &Unit, result: &UnitResult) -> Result<(), OtherSamples> {
        let Some((work, digest)) = read(unit, result) else { return Ok(()) };
        let dataset = self.0.get(&work.dataset.name);
        match dataset.and_then(|known| known.get(&work.shard)) {
            Some(known) if *known != short(digest) => {
                Err(OtherSamples { dataset: work.dataset.name.clone(), shard: work.shard })
            }
            _ => Ok(()),
        }
    }

    /// Takes up what a committed result was computed from; the first one of a shard decides.
    pub fn add(&mut self, unit: &Unit, result: &UnitResult) {
        if let Some(samples) = result.samples {
            self.learn(unit, samples);
        }
    }

    /// See [`Self::add`]; for a result of which only this is known.
    pub fn learn(&mut self, unit: &Unit, samples: Digest) {
        if let Work::EncodeImages(work) = &unit.work {
            let dataset = match self.0.get_mut(&work.dataset.name) {
                Some(dataset) => dataset,
                None => self.0.entry(work.dataset.name.clone()).or_default(),
            };
            dataset.entry(work.shard).or_insert(short(samples));
        }
    }
}

fn read<'a>(unit: &'a Unit, result: &UnitResult) -> Option<(&'a EncodeImages, Digest)> {
    match &unit.work {
        Work::EncodeImages(work) => result.samples.map(|digest| (work, digest)),
        Work::EncodeTexts(_) | Work::Rank(_) => None,
    }
}
