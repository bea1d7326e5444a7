//! Which results of a run are no longer whole: what a resume has to compute again.

use std::{collections::BTreeSet, path::Path};

use orchestrator_proto::Refusal;
use orchestrator_types::{Digest, RunId};

use crate::{
    blobs::{BlobError, Blobs},
    store::{Reader, UnitStage},
};

/// Blobs that committed units of `run` name and that are gone or damaged: each is hashed. Blocks
/// for about a second a gigabyte.
pub(crate) fn blobs(state: &Path, blobs: &Blobs, run: &RunId) -> Result<BTreeSet<Digest>, Refusal> {
    let units = Reader::open(state)?.units(run)?;
    let committed = units.iter().filter(|row| row.stage == UnitStage::Committed);
    let named: BTreeSet<Digest> =
        committed.filter_map(|row| Some(row.result.as_ref()?.blob.digest)).collect();
    let mut lost = BTreeSet::new();
    for digest in named {
        match blobs.verify(digest) {
            Ok(()) => {}
            Err(error @ (BlobError::Missing(_) | BlobError::Damaged(_))) => {
                tracing::warn!(%run, %error, "a result is computed again");
                lost.insert(digest);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(lost)
}
