//! What carrying out a unit gives, before it has a name and a place.

use std::time::Duration;

use orchestrator_proto::domain::{ImageCounts, QuarantinedSample};
use orchestrator_types::Digest;

/// The content of a result.
#[derive(Debug, Default)]
pub(crate) struct Product {
    /// Rows in the blob.
    pub(crate) rows: usize,
    /// The blob.
    pub(crate) bytes: Vec<u8>,
    /// JSON of the task's partial result; empty for encodings.
    pub(crate) partial: String,
    /// Samples set aside, by position.
    pub(crate) quarantined: Vec<QuarantinedSample>,
    /// Rows that passed a tower at once; 0 where none did.
    pub(crate) dispatch: u32,
    /// Whether nothing had to be encoded.
    pub(crate) cached: bool,
    /// Digest of the samples' bytes.
    pub(crate) samples: Option<Digest>,
    /// Where its images came from.
    pub(crate) images: ImageCounts,
    /// Reading weights, wall clock.
    pub(crate) load: Duration,
    /// Reading, decoding and resizing, summed over threads.
    pub(crate) decode: Duration,
    /// Forward passes or scores, summed over threads.
    pub(crate) forward: Duration,
}
