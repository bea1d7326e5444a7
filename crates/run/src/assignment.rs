//! What an executor is given, and what it gives back.

use orchestrator_ledger::Account;
use orchestrator_plan::{DatasetSource, Direction, EncodeImages, EncodeTexts, TextSet};
use orchestrator_types::{
    ByteCount, Digest, FencingToken, MemoryTerms, RunId, SampleId, Shard, UnitId,
};
use serde::{Deserialize, Serialize};

/// One attempt of one unit, self-contained: an executor needs nothing else but its inputs' bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The run.
    pub run: RunId,
    /// The unit.
    pub unit: UnitId,
    /// The attempt.
    pub token: FencingToken,
    /// What to compute.
    pub work: AssignedWork,
    /// How much memory it may use, and what follows when it is refused.
    pub memory: MemoryTerms,
    /// Computed by an executor that has computed nothing else.
    pub alone: bool,
    /// Positions that are neither read nor computed; encodings of images only.
    pub set_aside: Vec<Shard>,
    /// What is told of them.
    pub set_aside_reason: String,
}

/// A unit's work with its inputs named by content instead of by unit.
#[derive(Clone, Debug, PartialEq)]
pub enum AssignedWork {
    /// Text tower over a part of the distinct texts of a set.
    EncodeTexts(EncodeTexts),
    /// Vision tower over a shard of a dataset's images.
    EncodeImages(EncodeImages),
    /// Scores of a shard of queries against all candidates, ranked.
    Rank(AssignedRank),
}

/// See [`orchestrator_plan::Rank`].
#[derive(Clone, Debug, PartialEq)]
pub struct AssignedRank {
    /// Gives labels, captions and their images.
    pub dataset: DatasetSource,
    /// Which texts are candidates or queries.
    pub texts: TextSet,
    /// Which side queries which.
    pub direction: Direction,
    /// Which queries.
    pub queries: Shard,
    /// Best candidates kept per query.
    pub depth: u32,
    /// Text embeddings, in the order of their parts.
    pub text_blobs: Vec<Digest>,
    /// Image embeddings, in the order of their shards.
    pub image_blobs: Vec<(Shard, Digest)>,
}

impl AssignedRank {
    /// Every blob that the unit reads.
    pub fn blobs(&self) -> impl Iterator<Item = Digest> {
        self.text_blobs.iter().copied().chain(self.image_blobs.iter().map(|(_, digest)| *digest))
    }
}

/// What an attempt produced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitResult {
    /// Rows in the blob: samples, distinct texts or ranked queries.
    pub rows: u64,
    /// Embeddings or predictions, stored by content.
    pub blob: Blob,
    /// JSON of the task's partial result; empty for encodings.
    pub partial: String,
    /// Samples set aside, with the reason.
    pub quarantined: Vec<QuarantinedSample>,
    /// Where the time went.
    pub timing: Timing,
    /// Served from the node's cache of text embeddings: nothing was encoded.
    pub cached: bool,
    /// Memory of the executor's process.
    pub reading: ExecutorReading,
    /// Digest over the bytes of the samples that were read; encodings of images only.
    pub samples: Option<Digest>,
    /// The executor's account of its memory. Results of before it existed have none; the store keeps
    /// accounts by executor, and wrote them into results before it did.
    #[serde(default, skip_serializing)]
    pub account: Option<Account>,
    /// Rows that went through the tower at once; 0 where no tower was asked.
    #[serde(default)]
    pub rows_per_dispatch: u32,
    /// The blob itself, where it is so small that it travels and is stored with the result.
    #[serde(skip)]
    pub inline: Option<Vec<u8>>,
    /// Where its images came from. Results of before it was counted have zeros.
    #[serde(default)]
    pub images: ImageCounts,
}

/// Where an attempt's images came from, and the node's cache of decoded samples by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageCounts {
    /// Read and decoded, or found to be unreadable.
    pub decoded: u64,
    /// Served from the cache.
    pub from_cache: u64,
    /// Most that was ever in the cache, which all executors of the node share.
    pub cache_peak_bytes: ByteCount,
    /// The cache never holds more; zero where there is none.
    pub cache_limit_bytes: ByteCount,
}

/// Bytes stored by their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Their digest, and name.
    pub digest: Digest,
    /// How many they are.
    pub size_bytes: ByteCount,
}

/// A sample that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedSample {
    /// Position in the dataset.
    pub position: u32,
    /// Its identity.
    pub sample: SampleId,
    /// What is wrong with it.
    pub reason: String,
}

/// Where an attempt's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Reading weights, wall clock.
    pub load_ms: u64,
    /// The whole attempt, wall clock.
    pub total_ms: u64,
    /// Reading, decoding and resizing, summed over threads.
    pub decode_us: u64,
    /// Forward passes or scores, summed over threads.
    pub forward_us: u64,
}

/// Memory of an executor's process. Zero weights = the unit needed none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorReading {
    /// Largest resident set so far.
    pub host_peak_bytes: ByteCount,
    /// Weights now resident.
    pub weights_bytes: ByteCount,
}
