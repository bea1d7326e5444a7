//! Which results of a run are no longer whole: what a resume has to compute again.

use std::{collections::BTreeSet, path::Path};

use orchestrator_proto::{Blocking, Refusal};
use orchestrator_types::{Digest, RunId};

use crate::{
    blobs::{BlobError, Blobs},
    store::{Reader, StoreError, UnitStage},
};

/// Blobs that committed units of `run` name and that are gone or damaged: each is hashed, which
/// takes about a second a gigabyte.
pub(crate) async fn blobs(
    blocking: Blocking,
    state: &Path,
    blobs: &Blobs,
    run: &RunId,
) -> Result<BTreeSet<Digest>, Refusal> {
    let mut lost = BTreeSet::new();
    for digest in named(blocking, state, run).await? {
        match blobs.verify(digest).await {
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

/// Blobs that committed units of `run` name.
async fn named(blocking: Blocking, state: &Path, run: &RunId) -> Result<BTreeSet<Digest>, Refusal> {
    let (state, run) = (state.to_owned(), run.clone());
    let read = move || -> Result<BTreeSet<Digest>, StoreError> {
        let units = Reader::open(&state)?.units(&run)?;
        let committed = units.iter().filter(|row| row.stage == UnitStage::Committed);
        let results = committed.filter_map(|row| row.result.as_ref());
        // An inline blob is as whole as the store.
        let elsewhere = results.filter(|result| result.inline.is_none());
        Ok(elsewhere.map(|result| result.blob.digest).collect())
    };
    Ok(blocking.run(read).await??)
}
