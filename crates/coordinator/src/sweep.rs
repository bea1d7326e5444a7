//! [`Sweep`]: blobs that no result names go, slowly.
//!
//! They stay behind when an attempt is fenced after it staged, when a lost result is computed again
//! with other bytes, and when a client goes away.
//!
//! Invariant: only a blob that was stored more than [`GRACE`] ago, that nobody wanted since, and
//! that no committed unit of any run names is deleted. What cannot be asked or read keeps everything.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use orchestrator_proto::{Blocking, Refusal};
use orchestrator_types::Digest;

use crate::{
    blobs::{Blobs, GRACE, Listed},
    clock::Clock,
    life::Life,
    store::{Reader, StoreError},
};

/// Blobs looked at in one step: about a megabyte of memory, and one pass over the units' rows.
const STEP: usize = 10_000;
/// Between two steps of one round.
const PAUSE: Duration = Duration::from_mins(1);
/// Between two rounds.
const REST: Duration = Duration::from_hours(1);

/// See the module's documentation.
pub(crate) struct Sweep {
    pub blobs: Arc<Blobs>,
    pub state: PathBuf,
    pub blocking: Blocking,
    pub clock: Arc<dyn Clock>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Blobs that went.
    pub deleted: usize,
    /// The last blob that was looked at; none at the end of a round.
    pub last: Option<Digest>,
}

impl Sweep {
    /// Sweeps until the coordinator ends. The first round begins at once: an embedded coordinator
    /// lives for one run.
    pub(crate) async fn work_until(self, life: Life) {
        // Cut off between two steps or within one: the next start begins anew.
        life.stop().run_until_cancelled(self.work()).await;
    }

    async fn work(self) {
        let mut after = None;
        loop {
            match self.step(after, STEP).await {
                Ok(Step { deleted, last }) => {
                    if deleted > 0 {
                        tracing::info!(deleted, "blobs that no result names were removed");
                    }
                    after = last;
                }
                Err(refusal) => {
                    tracing::warn!(%refusal, "blobs that no result names are not removed");
                    after = None;
                }
            }
            tokio::time::sleep(if after.is_some() { PAUSE } else { REST }).await;
        }
    }

    /// Looks at `limit` blobs after `after`.
    pub(crate) async fn step(&self, after: Option<Digest>, limit: usize) -> Result<Step, Refusal> {
        let listed = self.blobs.list(after, limit).await?;
        let last = listed.last().map(|blob| blob.digest).filter(|_| listed.len() >= limit);
        let grace = i64::try_from(GRACE.as_millis()).unwrap_or(i64::MAX);
        let old = self.clock.unix_ms().saturating_sub(grace);
        let old = listed.into_iter().filter(|blob| blob.modified_unix_ms < old);
        let mut deleted = 0;
        for blob in self.unnamed(old.collect()).await? {
            deleted += usize::from(self.blobs.delete(blob).await?);
        }
        Ok(Step { deleted, last })
    }

    /// Those that no committed unit names.
    async fn unnamed(&self, blobs: Vec<Listed>) -> Result<Vec<Digest>, Refusal> {
        if blobs.is_empty() {
            return Ok(Vec::new());
        }
        let state = self.state.clone();
        let look = move || -> Result<Vec<Digest>, StoreError> {
            let mut named: BTreeMap<Digest, bool> =
                blobs.into_iter().map(|blob| (blob.digest, false)).collect();
            Reader::open(&state)?.blobs(|digest| {
                named.entry(digest).and_modify(|named| *named = true);
            })?;
            Ok(named.into_iter().filter(|(_, named)| !named).map(|(digest, _)| digest).collect())
        };
        Ok(self.blocking.run(look).await??)
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_run::Millis;

    use super::*;
    use crate::{fixtures, store::Store};

    /// An hour and a bit ahead of the files.
    struct Later;

    impl Clock for Later {
        fn now(&self) -> Millis {
            Millis(0)
        }

        fn unix_ms(&self) -> i64 {
            let grace = i64::try_from(GRACE.as_millis()).unwrap();
            crate::SystemClock::default().unix_ms() + grace + 1_000
        }
    }

    async fn staged(blobs: &Blobs, bytes: &[u8]) -> Digest {
        let mut writer = blobs.create().await.unwrap();
        writer.write(bytes.to_vec().into()).await.unwrap();
        writer.keep().await.unwrap().0
    }

    #[tokio::test]
    async fn only_old_blobs_that_no_result_names_go() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let named = fixtures::committed_blob(&store);
        // Staged in an earlier life of the coordinator, so that this one knows of no wish.
        let earlier = Blobs::in_folder(state.path());
        assert_eq!(staged(&earlier, fixtures::COMMITTED).await, named);
        let mut unnamed = Vec::new();
        for content in 0..7_u8 {
            unnamed.push(staged(&earlier, &[content]).await);
        }
        let sweep = |clock: Arc<dyn Clock>| Sweep {
            blobs: Arc::new(Blobs::in_folder(state.path())),
            state: state.path().to_owned(),
            blocking: Blocking::Inline,
            clock,
        };
        let young = sweep(Arc::new(crate::SystemClock::default()));
        assert_eq!(young.step(None, 100).await.unwrap(), Step { deleted: 0, last: None });

        let later = sweep(Arc::new(Later));
        let wanted = unnamed.pop().unwrap();
        assert_eq!(later.blobs.size(wanted).await.unwrap(), Some(1), "a commit is on its way");
        let (mut after, mut deleted, mut steps) = (None, 0, 0);
        loop {
            let step = later.step(after, 3).await.unwrap();
            (after, deleted, steps) = (step.last, deleted + step.deleted, steps + 1);
            if after.is_none() {
                break;
            }
        }
        assert_eq!((deleted, steps), (6, 3));
        for blob in [named, wanted] {
            later.blobs.verify(blob).await.unwrap();
        }
        for blob in unnamed {
            assert_eq!(later.blobs.size(blob).await.unwrap(), None);
        }
    }
}
