//! One attempt while it runs: where its news go, and whether it should still go on.
//!
//! Invariant: an attempt whose listener is gone, or in which anything has failed, stops at the next
//! tile. Nothing here waits.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use orchestrator_proto::domain::UnitResult;
use orchestrator_types::{FailureClass, Shard};
use tokio::sync::mpsc;

/// How often progress is told.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// News of an attempt. The last one is a result or a failure.
#[derive(Debug)]
pub(crate) enum Update {
    /// Rows done.
    Progress {
        /// Rows finished.
        done: u64,
        /// Rows in all.
        total: u64,
    },
    /// It is done.
    Result(Box<UnitResult>),
    /// It cannot be done.
    Failure {
        /// What that says about the unit.
        class: FailureClass,
        /// For people.
        message: String,
    },
}

/// Shared by the threads of one attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    updates: mpsc::Sender<Update>,
    stopped: AtomicBool,
    started: Instant,
    /// When progress is told next, in milliseconds since the start.
    next_progress: AtomicU64,
    /// Positions that are neither read nor computed.
    set_aside: Vec<Shard>,
    /// What is told of them.
    reason: String,
}

impl Attempt {
    pub(crate) fn new(updates: mpsc::Sender<Update>) -> Self {
        Self {
            updates,
            stopped: AtomicBool::new(false),
            started: Instant::now(),
            next_progress: AtomicU64::new(0),
            set_aside: Vec::new(),
            reason: String::new(),
        }
    }

    /// The same attempt, which leaves these positions out for this reason.
    pub(crate) fn without(self, set_aside: Vec<Shard>, reason: String) -> Self {
        Self { set_aside, reason, ..self }
    }

    /// Why this position is left out, if it is.
    pub(crate) fn set_aside(&self, position: u32) -> Option<&str> {
        let is_in = |part: &Shard| part.range().contains(&(position as usize));
        self.set_aside.iter().any(is_in).then_some(self.reason.as_str())
    }

    /// Whether to give up: somebody called [`stop`](Self::stop), or nobody listens.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.updates.is_closed()
    }

    /// Tells every thread to give up.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells how far it is, if that was not told a moment ago. A listener that is slow misses some.
    pub(crate) fn progress(&self, done: u64, total: u64) {
        let now = millis(self.elapsed());
        if now < self.next_progress.load(Ordering::Relaxed) {
            return;
        }
        self.next_progress.store(now + millis(PROGRESS_INTERVAL), Ordering::Relaxed);
        drop(self.updates.try_send(Update::Progress { done, total }));
    }

    /// Sends the last update. Blocks while the listener is slow, and not if it is gone.
    pub(crate) fn end(self, update: Update) {
        drop(self.updates.blocking_send(update));
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
