//! One registered life of the agent, and the attempts that run in it.
//!
//! Invariant: an attempt is in the table for exactly as long as its [`Running`] lives, and the end
//! of a session takes back all of its attempts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use orchestrator_proto::{Refusal, RefusalCode, v1};
use orchestrator_types::FencingToken;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// A coordinator that asks for more beats than this would only be kept busy.
const SHORTEST_BEAT: Duration = Duration::from_millis(50);

/// What the coordinator knows us by until one of us is restarted.
#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    beat: Duration,
    over: CancellationToken,
    attempts: Mutex<BTreeMap<FencingToken, Entry>>,
}

#[derive(Debug)]
struct Entry {
    done: u64,
    total: u64,
    revoked: CancellationToken,
}

/// An attempt that is running. Dropping it takes it out of the session.
#[derive(Debug)]
pub(crate) struct Running {
    session: Arc<Session>,
    token: FencingToken,
    revoked: CancellationToken,
}

impl Session {
    pub(crate) fn new(reply: v1::RegisterReply) -> Self {
        let v1::RegisterReply { session, epoch, heartbeat_ms, lease_ms } = reply;
        tracing::info!(session, epoch, heartbeat_ms, lease_ms, "registered");
        Self {
            id: session,
            beat: Duration::from_millis(heartbeat_ms.into()).max(SHORTEST_BEAT),
            over: CancellationToken::new(),
            attempts: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> String {
        self.id.clone()
    }

    /// Time between heartbeats.
    pub(crate) const fn beat(&self) -> Duration {
        self.beat
    }

    pub(crate) fn over(&self) -> WaitForCancellationFuture<'_> {
        self.over.cancelled()
    }

    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// Ends the session if this refusal means that it is over.
    pub(crate) fn hear(&self, refusal: &Refusal) {
        if refusal.code == RefusalCode::Stale && !self.over.is_cancelled() {
            tracing::warn!(session = self.id, %refusal, "the session is over");
            self.end();
        }
    }

    pub(crate) fn begin(self: &Arc<Self>, token: FencingToken) -> Running {
        let revoked = self.over.child_token();
        let entry = Entry { done: 0, total: 0, revoked: revoked.clone() };
        self.attempts().insert(token, entry);
        Running { session: Arc::clone(self), token, revoked }
    }

    /// How far every running attempt is.
    pub(crate) fn progress(&self) -> Vec<v1::AttemptProgress> {
        let attempts = self.attempts();
        let told = |(token, entry): (&FencingToken, &Entry)| v1::AttemptProgress {
            token: token.0,
            done: entry.done,
            total: entry.total,
        };
        attempts.iter().map(told).collect()
    }

    /// Stops these attempts; unknown ones have ended already.
    pub(crate) fn revoke(&self, tokens: &[u64]) {
        let attempts = self.attempts();
        let running = tokens.iter().filter_map(|token| attempts.get(&FencingToken(*token)));
        running.for_each(|entry| entry.revoked.cancel());
    }

    fn attempts(&self) -> MutexGuard<'_, BTreeMap<FencingToken, Entry>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    pub(crate) const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Cancelled when the coordinator takes the attempt back, or the session ends.
    pub(crate) const fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }

    pub(crate) fn report(&self, v1::Progress { done, total }: v1::Progress) {
        if let Some(entry) = self.session.attempts().get_mut(&self.token) {
            (entry.done, entry.total) = (done, total);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.session.attempts().remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Arc<Session> {
        let reply =
            v1::RegisterReply { session: "s".into(), epoch: 1, heartbeat_ms: 0, lease_ms: 9 };
        Arc::new(Session::new(reply))
    }

    #[test]
    fn progress_is_that_of_running_attempts() {
        let session = session();
        let first = session.begin(FencingToken(1));
        let second = session.begin(FencingToken(2));
        first.report(v1::Progress { done: 3, total: 9 });
        drop(second);
        let progress = vec![v1::AttemptProgress { token: 1, done: 3, total: 9 }];
        assert_eq!(session.progress(), progress);
    }

    #[test]
    fn a_revocation_stops_its_attempt_and_the_end_stops_all() {
        let session = session();
        let (first, second) = (session.begin(FencingToken(1)), session.begin(FencingToken(2)));
        session.revoke(&[1, 7]);
        assert!(first.revoked().is_cancelled() && !second.revoked().is_cancelled());
        session.hear(&Refusal::new(RefusalCode::Unavailable, "away"));
        assert!(!second.revoked().is_cancelled());
        session.hear(&Refusal::new(RefusalCode::Stale, "over"));
        assert!(second.revoked().is_cancelled());
    }
}
