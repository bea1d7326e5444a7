//! [`Accounts`]: memory of the executors that work on a run, as their results tell it.
//!
//! Every result brings its executor's account, and of an executor's accounts two say what all say
//! ([`Life`]): these are stored, once a turn.

use std::collections::BTreeMap;

use orchestrator_ledger::{Account, Life, Sample};
use orchestrator_types::SliceId;

use crate::store::{AccountRow, RunKey, Store, StoreError};

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Accounts {
    /// By slice and the executor's start.
    lives: BTreeMap<(SliceId, i64), Life>,
    /// Readings over time of this turn, of executors whose account is to be stored.
    fresh: BTreeMap<(SliceId, i64), Vec<Sample>>,
}

impl Accounts {
    /// As the store knows them.
    pub(super) fn of_run(run: RunKey, store: &Store) -> Result<Self, StoreError> {
        let rows = store.accounts(run)?.into_iter();
        let lives = rows
            .map(|AccountRow { slice, life, .. }| ((slice, life.newest.started_at_unix_ms), life));
        Ok(Self { lives: lives.collect(), fresh: BTreeMap::new() })
    }

    /// Takes in an account that came with a result.
    pub(super) fn add(&mut self, slice: &SliceId, account: &Account) {
        let key = (slice.clone(), account.started_at_unix_ms);
        let fresh = self.fresh.entry(key.clone()).or_default();
        fresh.extend_from_slice(&account.samples);
        let lean = Account { samples: Vec::new(), ..account.clone() };
        match self.lives.get_mut(&key) {
            Some(life) => life.add(lean),
            None => drop(self.lives.insert(key, Life::of(lean))),
        }
    }

    /// Stores what came in this turn.
    pub(super) fn write(
        &mut self,
        run: RunKey,
        at_unix_ms: i64,
        store: &Store,
    ) -> Result<(), StoreError> {
        for (key, samples) in std::mem::take(&mut self.fresh) {
            let life = self.lives[&key].clone();
            let row = AccountRow { slice: key.0, committed_unix_ms: at_unix_ms, life };
            store.account(run, &row, &samples)?;
        }
        Ok(())
    }
}
