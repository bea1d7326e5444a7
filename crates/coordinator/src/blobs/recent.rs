//! [`Recent`]: what keeps the sweep and the commits apart.
//!
//! Invariant: a blob that somebody staged, or wanted to commit, within the last [`GRACE`] is not
//! deleted; and one that is being deleted is not there for anybody.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use orchestrator_types::Digest;
use tokio::time::Instant;

/// From the staging of a blob to its commit, at most. Beyond it, the worker stages again.
pub(crate) const GRACE: Duration = Duration::from_hours(1);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Recent {
    grace: Duration,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    wanted: BTreeMap<Digest, Instant>,
    leaving: BTreeSet<Digest>,
}

impl Default for Recent {
    fn default() -> Self {
        Self::new(GRACE)
    }
}

impl Recent {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing in here panics half-way.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a blob for a while. `false` if it is too late.
    pub(super) fn want(&self, digest: Digest, now: Instant) -> bool {
        let mut books = self.books();
        if books.leaving.contains(&digest) {
            return false;
        }
        books.wanted.insert(digest, now);
        true
    }

    /// Lets the sweep delete a blob, unless somebody wants it; it must say when that is done.
    pub(super) fn leave(&self, digest: Digest, now: Instant) -> bool {
        let mut books = self.books();
        books.wanted.retain(|_, at| now.duration_since(*at) < self.grace);
        !books.wanted.contains_key(&digest) && books.leaving.insert(digest)
    }

    pub(super) fn left(&self, digest: Digest) {
        self.books().leaving.remove(&digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_blob_stays_for_an_hour_and_a_leaving_one_is_wanted_in_vain() {
        let (recent, blob) = (Recent::default(), Digest::of(b"x"));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(recent.want(blob, at(0)));
        assert!(!recent.leave(blob, at(3_599)));
        assert!(recent.want(blob, at(3_599)), "and again");
        assert!(!recent.leave(blob, at(3_601)));
        assert!(recent.leave(blob, at(7_199)));
        assert!(!recent.want(blob, at(7_200)));
        assert!(!recent.leave(blob, at(7_200)), "by one at a time");
        recent.left(blob);
        assert!(recent.want(blob, at(7_201)));
    }
}
