//! [`History`]: a run's events on their way into the store.
//!
//! The events of a turn become rows of many, because a row costs more than an event. They are numbered
//! and told one by one.

use orchestrator_types::RunId;

use super::Outbox;
use crate::{
    event::{Live, Recorded, RunEvent},
    store::{RunKey, Store, StoreError},
};

/// Events in one row: a reader that wants a few parses no more than this.
const ROW: usize = 256;

/// See the module's documentation.
pub(super) struct History {
    key: RunKey,
    next_sequence: u64,
    /// JSON of those that are not written yet, which all happened in the turn at hand.
    unwritten: Vec<String>,
}

impl History {
    /// The history of a run as the store knows it.
    pub(super) fn new(key: RunKey, store: &Store) -> Result<Self, StoreError> {
        let next_sequence = store.next_sequence(key)?;
        Ok(Self { key, next_sequence, unwritten: Vec::new() })
    }

    /// Number of the last event; 0 before the first.
    pub(super) const fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Appends an event of `run`. It is stored by the next [`History::write`].
    pub(super) fn record(
        &mut self,
        run: &RunId,
        event: RunEvent,
        at_unix_ms: i64,
        outbox: &mut Outbox,
    ) -> Result<(), StoreError> {
        self.unwritten.push(serde_json::to_string(&event).map_err(StoreError::row("event"))?);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        outbox.tell(Live::Recorded(run.clone(), Recorded { sequence, at_unix_ms, event }));
        Ok(())
    }

    /// Stores what was recorded in this turn.
    pub(super) fn write(&mut self, at_unix_ms: i64, store: &Store) -> Result<(), StoreError> {
        let mut last = self.next_sequence - self.unwritten.len() as u64 - 1;
        for row in self.unwritten.chunks(ROW) {
            last += row.len() as u64;
            store.append(self.key, last, row, at_unix_ms)?;
        }
        self.unwritten.clear();
        Ok(())
    }
}
