//! What the coordinator knows us by, for as long as the agent lives, and the attempts that run.
//!
//! Invariants: an attempt is in the table for exactly as long as its [`Running`] lives; attempts
//! outlive a coordinator, and an agent that is taken in again keeps those that still count.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use orchestrator_proto::{Refusal, RefusalCode, v1};
use orchestrator_types::{FencingToken, SessionId};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// A coordinator that asks for more beats than this would only be kept busy.
const SHORTEST_BEAT: Duration = Duration::from_millis(50);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    /// Ends with the agent's work.
    over: CancellationToken,
    attempts: Mutex<BTreeMap<FencingToken, Entry>>,
    /// Somebody heard that the coordinator does not know us.
    stale: Notify,
    /// How often we were taken in, and the time between heartbeats since then.
    taken_in: watch::Sender<(u64, Duration)>,
    /// Whether the coordinator knows us, as far as we have heard.
    known: watch::Sender<bool>,
    /// Whether we are about to leave: then being known means no work.
    draining: AtomicBool,
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
    pub(crate) fn new(id: SessionId) -> Self {
        Self {
            id,
            over: CancellationToken::new(),
            attempts: Mutex::default(),
            stale: Notify::new(),
            taken_in: watch::channel((0, SHORTEST_BEAT)).0,
            known: watch::channel(false).0,
            draining: AtomicBool::new(false),
        }
    }

    /// The coordinator has taken us in: attempts that no longer count stop.
    pub(crate) fn take_in(&self, held: &[u64], reply: &v1::RegisterReply) {
        let v1::RegisterReply { protocol, epoch, heartbeat_ms, lease_ms, keep } = reply;
        tracing::info!(session = %self.id, protocol, epoch, heartbeat_ms, lease_ms, "registered");
        let lost: Vec<u64> = held.iter().filter(|token| !keep.contains(token)).copied().collect();
        self.revoke(&lost);
        let beat = Duration::from_millis((*heartbeat_ms).into()).max(SHORTEST_BEAT);
        self.is_known(true);
        self.taken_in.send_modify(|(times, known)| (*times, *known) = (*times + 1, beat));
    }

    pub(crate) fn id(&self) -> String {
        self.id.to_string()
    }

    /// Whether the coordinator has just answered as one that knows us.
    pub(crate) fn is_known(&self, known: bool) {
        self.known.send_if_modified(|was| {
            let ready = known && !self.draining.load(Ordering::Acquire);
            std::mem::replace(was, ready) != ready
        });
    }

    /// No new work is wanted from here on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.is_known(false);
    }

    /// Told of each change.
    pub(crate) fn readiness(&self) -> watch::Receiver<bool> {
        self.known.subscribe()
    }

    /// Time between heartbeats.
    pub(crate) fn beat(&self) -> Duration {
        self.taken_in.borrow().1
    }

    /// How often the coordinator has taken us in.
    pub(crate) fn times(&self) -> u64 {
        self.taken_in.borrow().0
    }

    /// Waits until the coordinator has taken us in more than `times` times.
    pub(crate) async fn taken_in_after(&self, times: u64) {
        let mut taken_in = self.taken_in.subscribe();
        // The sender lives as long as the session.
        drop(taken_in.wait_for(|(now, _)| *now > times).await);
    }

    /// Waits until somebody hears that the coordinator does not know us.
    pub(crate) async fn is_stale(&self) {
        self.stale.notified().await;
    }

    pub(crate) fn over(&self) -> WaitForCancellationFuture<'_> {
        self.over.cancelled()
    }

    pub(crate) fn end(&self) {
        self.is_known(false);
        self.over.cancel();
    }

    /// Says hello again if this refusal means that the coordinator does not know us.
    pub(crate) fn hear(&self, refusal: &Refusal) {
        if refusal.code == RefusalCode::Stale {
            self.stale.notify_one();
        }
    }

    /// The offer has changed: says hello again.
    pub(crate) fn say_hello(&self) {
        self.stale.notify_one();
    }

    /// The attempts that run.
    pub(crate) fn held(&self) -> Vec<u64> {
        self.attempts().keys().map(|token| token.0).collect()
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
        Arc::new(Session::new("s".parse().unwrap()))
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
    fn a_worker_is_ready_while_it_is_known_and_stays() {
        let session = session();
        let ready = session.readiness();
        assert!(!*ready.borrow());
        session.take_in(&[], &v1::RegisterReply::default());
        assert!(*ready.borrow());
        session.is_known(false);
        assert!(!*ready.borrow());
        session.is_known(true);
        assert!(*ready.borrow());
        session.drain();
        session.is_known(true);
        assert!(!*ready.borrow(), "it still beats while it drains");
    }

    #[test]
    fn a_revocation_stops_its_attempt_and_the_end_stops_all() {
        let session = session();
        let (first, second) = (session.begin(FencingToken(1)), session.begin(FencingToken(2)));
        session.revoke(&[1, 7]);
        assert!(first.revoked().is_cancelled() && !second.revoked().is_cancelled());
        session.end();
        assert!(second.revoked().is_cancelled());
    }

    #[tokio::test]
    async fn who_is_taken_in_again_keeps_what_still_counts() {
        let session = session();
        let (first, second) = (session.begin(FencingToken(1)), session.begin(FencingToken(2)));
        let held = session.held();
        let later = session.begin(FencingToken(3));
        let reply = v1::RegisterReply { keep: vec![2], heartbeat_ms: 70, ..Default::default() };
        session.hear(&Refusal::new(RefusalCode::Unavailable, "away"));
        session.hear(&Refusal::new(RefusalCode::Stale, "who are you"));
        session.is_stale().await;
        session.take_in(&held, &reply);
        session.taken_in_after(0).await;
        assert!(first.revoked().is_cancelled());
        assert!(!second.revoked().is_cancelled() && !later.revoked().is_cancelled());
        assert_eq!((session.beat(), session.times()), (Duration::from_millis(70), 1));
    }
}
