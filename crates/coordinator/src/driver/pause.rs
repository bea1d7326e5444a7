//! [`Pause`]: what happens while nothing can be stored.
//!
//! A full or failing disk is no reason to end: nothing is acknowledged and nothing handed out,
//! callers are told why and try again, workers keep their sessions, and when a write works again
//! everything goes on.
//!
//! A blob that did not fit does the same, also where blobs lie on another disk than the store.
//!
//! Invariant: whether the store is paused is told in the log once when it begins and once when it
//! ends.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_types::ByteCount;

use super::{Driver, Request};
use crate::{
    durable::DISK_FULL,
    store::{self, StoreError},
};

/// Between two attempts to write.
const RETRY_MS: u64 = 1_000;
/// Free bytes below which no attempt is made: one transaction should not fill the disk again.
const ROOM_BYTES: u64 = 1 << 20;

/// Why nothing can be stored now; shared with everybody who answers callers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pause(Arc<Mutex<Option<Paused>>>);

#[derive(Debug)]
struct Paused {
    reason: Arc<str>,
    /// What did not fit, and where: room for it ends the pause. None: it was the store's.
    blob: Option<(PathBuf, u64)>,
}

impl Pause {
    fn state(&self) -> MutexGuard<'_, Option<Paused>> {
        // Nothing in here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reason; none while everything can be stored.
    pub(crate) fn reason(&self) -> Option<Arc<str>> {
        self.state().as_ref().map(|paused| paused.reason.clone())
    }

    /// What callers are told whose request could not be stored.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.reason().map(|reason| Refusal::new(RefusalCode::Unavailable, &*reason))
    }

    fn begin(&self, reason: &str, blob: Option<(PathBuf, u64)>) {
        let mut state = self.state();
        let blob = blob.or_else(|| state.as_mut().and_then(|before| before.blob.take()));
        if state.replace(Paused { reason: reason.into(), blob }).is_none() {
            tracing::error!(reason, "paused: nothing is handed out or acknowledged");
        }
    }

    /// Takes in that a blob, of at least `bytes`, did not fit into `folder`; what its sender is told.
    pub(crate) fn blob_did_not_fit(&self, folder: &Path, bytes: u64) -> Refusal {
        let (size, place) = (ByteCount::bytes(bytes), folder.display());
        let reason = format!("{DISK_FULL} (a blob of {size} or more did not fit into {place})");
        self.begin(&reason, Some((folder.to_owned(), bytes)));
        Refusal::new(RefusalCode::Unavailable, reason)
    }

    /// Whether what did not fit would fit now, as far as that can be known.
    fn blob_fits(&self) -> bool {
        let blob = self.state().as_ref().and_then(|paused| paused.blob.clone());
        blob.is_none_or(|(folder, bytes)| {
            let room = store::room_bytes(&folder);
            room.is_none_or(|room| room >= bytes.saturating_add(ROOM_BYTES))
        })
    }

    fn end(&self) {
        if self.state().take().is_some() {
            tracing::info!("the store can be written again; everything goes on");
        }
    }
}

impl Driver {
    /// Takes in that a transaction failed.
    pub(super) fn rolled_back(&mut self, error: &StoreError) {
        self.failed = true;
        self.outbox.clear();
        self.stale.extend(std::mem::take(&mut self.runs).into_keys());
        self.stale.append(&mut self.ended);
        if let Some(reason) = error.unwritable() {
            self.pause.begin(&reason, None);
            self.metrics.paused(true);
            self.write_again_at = self.now.after(RETRY_MS);
        }
    }

    /// Whether the store can be written, as far as that can be found out now.
    pub(super) fn writable(&mut self) -> bool {
        if self.pause.reason().is_none() {
            return true;
        }
        self.metrics.paused(true);
        if self.now < self.write_again_at {
            return false;
        }
        self.write_again_at = self.now.after(RETRY_MS);
        if !self.pause.blob_fits() {
            return false;
        }
        if store::room_bytes(&self.settings.state).is_some_and(|room| room < ROOM_BYTES) {
            return false;
        }
        if self.store.roll_back().and_then(|()| self.store.write_nothing()).is_err() {
            return false;
        }
        // Nobody could renew what was not taken in.
        self.sessions.renew(self.now);
        for active in self.runs.values_mut() {
            active.renew(self.now);
        }
        self.pause.end();
        self.metrics.paused(false);
        true
    }

    /// A turn without a transaction: sessions stay alive, slices wait, and everything else is told
    /// to come again by the loss of its way back.
    pub(super) fn wait_out(&mut self, requests: Vec<Request>) {
        if self.failed && self.reload().is_err() {
            // Which attempts live is not known. Their workers ask again.
            return;
        }
        for request in requests {
            match request {
                Request::Heartbeat(session, attempts, reply) => {
                    let answer = self.heartbeat(&session, &attempts);
                    self.outbox.reply(reply, answer);
                }
                Request::Lease(call, reply) => self.lease(call, reply),
                Request::Snapshot(reply) => {
                    let answer = Ok(self.snapshot());
                    self.outbox.reply(reply, answer);
                }
                refused => drop(refused),
            }
        }
        self.let_go_waiting();
        self.outbox.deliver();
    }
}
