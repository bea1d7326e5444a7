//! The truth: runs, units, results and events in one SQLite file.
//!
//! Invariants:
//! - one process writes ([`lock`]); every change of a turn is one transaction, and nobody is told
//!   of it before it is durable (write-ahead log, `synchronous=FULL`);
//! - epochs and fencing tokens only grow, also over restarts and crashes;
//! - queues and leases are not stored: they follow from the plan and the units that have ended.
//!
//! Absent on purpose: decisions. What a transition means is decided in `run`; here it is a row.

mod check;
mod error;
mod lock;
mod open;
mod query;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use orchestrator_ledger::Sample;
use orchestrator_plan::Placement;
use orchestrator_run::{Attempt, RunState, UnitResult};
use orchestrator_types::{
    Digest, FailureClass, FencingToken, RunId, SliceId, UnitId,
    planted::{Bug, is_planted},
};
use rusqlite::{Connection, OptionalExtension, params};

pub use check::{Violation, check_store};
pub use error::StoreError;
pub(crate) use query::{AccountRow, CommittedRow, LeaseRow};
pub use query::{Documents, RunSummary, SliceRow, UnitRow, UnitStage};
pub use reader::Reader;

pub(crate) use open::{refuse_network, room_bytes};

use self::open::{meta, newer, prepare, set_meta, start_epoch};
use crate::durable;

/// Tokens reserved at once: one write a thousand grants.
const TOKEN_BLOCK: u64 = 1_000;
/// Name of the database in the state folder.
const DATABASE: &str = "store.sqlite";

/// Row of a run; smaller in every other table than the run's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKey(i64);

/// The one writer of a store.
pub(crate) struct Store {
    connection: Connection,
    epoch: u64,
    identity: u64,
    next_token: u64,
    /// First token that is not reserved.
    token_limit: u64,
    /// A disk that is full at the last moment.
    #[cfg(test)]
    pub(crate) refuses_commits: bool,
    _lock: lock::Lock,
}

/// A run as it is first stored.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub id: RunId,
    pub request_id: String,
    /// Who submitted it, by its certificate.
    pub owner: Option<String>,
    pub name: String,
    /// The build that computes it.
    pub build: String,
    pub units: u32,
    pub keep_embeddings: bool,
    pub base: PathBuf,
    pub eval_yaml: String,
    pub evaluation: String,
    pub facts: String,
    pub plan: String,
    pub plan_digest: Digest,
}

impl Store {
    /// Opens the store in `state`, or makes it, and starts a new epoch.
    pub(crate) fn open(state: &Path) -> Result<Self, StoreError> {
        durable::create_all(state).map_err(|source| StoreError::File {
            action: "create the folder",
            path: state.to_owned(),
            source,
        })?;
        let lock = lock::Lock::take(state)?;
        let mut connection = prepared(state)?;
        let epoch = start_epoch(&mut connection)?;
        let identity = meta(&connection, "identity")?;
        let (next_token, token_limit) = (1, 1);
        let mut store = Self {
            connection,
            epoch,
            identity,
            next_token,
            token_limit,
            #[cfg(test)]
            refuses_commits: false,
            _lock: lock,
        };
        store.reread_tokens()?;
        if !is_planted(Bug::TokensStartAnew) {
            store.next_token = store.token_limit;
        }
        Ok(store)
    }

    /// Brings an older store up to date.
    fn upgrade(state: &Path) -> Result<(), StoreError> {
        let _lock = lock::Lock::take(state)?;
        prepared(state).map(drop)
    }

    /// Marks a clean stop, so that the next start need not check every page.
    pub(crate) fn close(self) -> Result<(), StoreError> {
        set_meta(&self.connection, "clean", 1)?;
        self.connection
            .close()
            .map_err(|(_, source)| StoreError::Database { action: "close its file", source })
    }

    /// Which life of the coordinator this is, from 1.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A number that no other store has.
    pub(crate) const fn identity(&self) -> u64 {
        self.identity
    }

    pub(crate) fn begin(&self) -> Result<(), StoreError> {
        let begin = self.connection.execute_batch("BEGIN");
        begin.map_err(StoreError::database("begin a transaction"))
    }

    /// Makes everything since [`Store::begin`] durable.
    pub(crate) fn commit(&self) -> Result<(), StoreError> {
        #[cfg(test)]
        if self.refuses_commits {
            let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
            let source = rusqlite::Error::SqliteFailure(full, None);
            return Err(StoreError::Database { action: "commit a transaction", source });
        }
        let commit = self.connection.execute_batch("COMMIT");
        commit.map_err(StoreError::database("commit a transaction"))
    }

    /// Forgets everything since [`Store::begin`].
    pub(crate) fn roll_back(&mut self) -> Result<(), StoreError> {
        if !self.connection.is_autocommit() {
            let back = self.connection.execute_batch("ROLLBACK");
            back.map_err(StoreError::database("roll a transaction back"))?;
        }
        self.reread_tokens()
    }

    fn reread_tokens(&mut self) -> Result<(), StoreError> {
        self.token_limit = meta(&self.connection, "token_limit")?;
        Ok(())
    }

    /// A token that was never used before. It is used up only by [`Store::use_token`].
    pub(crate) fn next_token(&mut self) -> Result<FencingToken, StoreError> {
        if self.next_token >= self.token_limit {
            self.token_limit = self.next_token + TOKEN_BLOCK;
            set_meta(&self.connection, "token_limit", self.token_limit)?;
        }
        Ok(FencingToken(self.next_token))
    }

    /// Uses up the token that [`Store::next_token`] gave.
    pub(crate) const fn use_token(&mut self) {
        self.next_token += 1;
    }

    /// Writes and syncs a page that says what it said before.
    pub(crate) fn write_nothing(&self) -> Result<(), StoreError> {
        let sql = "UPDATE meta SET value = value WHERE key = 'epoch'";
        self.execute("be written", sql, [])
    }

    /// A full disk, for tests: every write fails.
    #[cfg(test)]
    pub(crate) fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).unwrap();
    }

    fn execute(
        &self,
        action: &'static str,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<(), StoreError> {
        let statement = self.connection.prepare_cached(sql);
        let done = statement.and_then(|mut statement| statement.execute(values));
        done.map(drop).map_err(StoreError::database(action))
    }

    pub(crate) fn insert_run(&self, run: &Submission, at: i64) -> Result<RunKey, StoreError> {
        let sql = "INSERT INTO runs (id, request_id, name, state, created_unix_ms, units,
             keep_embeddings, base, eval_yaml, evaluation, facts, plan, plan_digest, build, owner)
             VALUES (?1, ?2, ?3, 'running', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
        let base = run.base.to_string_lossy();
        let values = params![
            run.id.as_str(),
            run.request_id,
            run.name,
            at,
            run.units,
            run.keep_embeddings,
            base,
            run.eval_yaml,
            run.evaluation,
            run.facts,
            run.plan,
            run.plan_digest.to_string(),
            run.build,
            run.owner,
        ];
        self.execute("store a run", sql, values)?;
        Ok(RunKey(self.connection.last_insert_rowid()))
    }

    /// Opens an ended or interrupted run again, for `build`: everything but its committed units,
    /// and of those the `lost` ones.
    pub(crate) fn reopen_run(
        &self,
        run: RunKey,
        build: &str,
        lost: &[UnitId],
    ) -> Result<(), StoreError> {
        let sql = "UPDATE runs SET state = 'running', ended_unix_ms = NULL, ended_sequence = NULL,
             build = ?2 WHERE key = ?1";
        self.execute("open a run again", sql, params![run.0, build])?;
        let sql = "UPDATE units SET state = 'open', token = NULL, blob = NULL, samples = NULL,
             set_aside = 0 WHERE run = ?1 AND unit = ?2";
        for unit in lost {
            self.execute("open a unit again", sql, params![run.0, unit.0])?;
            let id = schema::result_id(run, *unit);
            self.execute("forget a result", "DELETE FROM results WHERE id = ?1", [id])?;
        }
        let sql = "UPDATE units SET state = 'open', ended_unix_ms = NULL
             WHERE run = ?1 AND state <> 'committed'";
        self.execute("open units again", sql, [run.0])?;
        self.execute("end leases", "DELETE FROM leases WHERE run = ?1", [run.0])
    }

    /// Ends a run at event number `sequence`; units without an end are cancelled with it.
    pub(crate) fn end_run(
        &self,
        run: RunKey,
        state: RunState,
        sequence: u64,
        at: i64,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE runs SET state = ?2, ended_sequence = ?3, ended_unix_ms = ?4
             WHERE key = ?1";
        let values = params![run.0, state.name(), sequence.cast_signed(), at];
        self.execute("end a run", sql, values)?;
        let sql = "UPDATE units SET state = 'cancelled', ended_unix_ms = ?2
             WHERE run = ?1 AND state = 'open'";
        self.execute("cancel units", sql, params![run.0, at])?;
        self.execute("end leases", "DELETE FROM leases WHERE run = ?1", [run.0])
    }

    /// Stores a live attempt.
    pub(crate) fn lease(&self, run: RunKey, attempt: &Attempt, at: i64) -> Result<(), StoreError> {
        let sql = "INSERT INTO leases
             (token, run, unit, number, session, node, slice, leased_unix_ms, probe)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let Attempt { unit, number, token, session, node, slice, terms, .. } = attempt;
        let values = params![
            token.0.cast_signed(),
            run.0,
            unit.0,
            number,
            session.as_str(),
            node.as_str(),
            slice.as_str(),
            at,
            terms.probe,
        ];
        self.execute("store a lease", sql, values)
    }

    /// Forgets an attempt that lives no longer.
    pub(crate) fn end_lease(&self, token: FencingToken) -> Result<(), StoreError> {
        self.execute("end a lease", "DELETE FROM leases WHERE token = ?1", [token.0.cast_signed()])
    }

    /// Attempts of a run that lived when they were stored last.
    pub(crate) fn leases(&self, run: RunKey) -> Result<Vec<LeaseRow>, StoreError> {
        query::leases(&self.connection, run)
    }

    /// Stores a result; the attempt's lease ends with it.
    pub(crate) fn commit_unit(
        &self,
        run: RunKey,
        attempt: &Attempt,
        leased_at: Option<i64>,
        result: &UnitResult,
        at: i64,
    ) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO units
             (run, unit, state, token, slice, attempts, leased_unix_ms, ended_unix_ms, blob,
             samples, set_aside)
             VALUES (?1, ?2, 'committed', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let Attempt { unit, number, token, slice, .. } = attempt;
        let values = params![
            run.0,
            unit.0,
            token.0.cast_signed(),
            slice.as_str(),
            number,
            leased_at,
            at,
            result.blob.digest.as_bytes(),
            result.samples.as_ref().map(Digest::as_bytes),
            !result.quarantined.is_empty(),
        ];
        self.execute("store a unit's end", sql, values)?;
        self.insert_result(schema::result_id(run, *unit), result)?;
        self.end_lease(attempt.token)
    }

    fn insert_result(&self, id: i64, result: &UnitResult) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO results (id, result, inline, input)
             VALUES (?1, ?2, ?3, ?4)";
        let json = serde_json::to_string(result).map_err(StoreError::row("result of a unit"))?;
        // Only encodings are inputs of others, and they have no partial result.
        let input = result.inline.as_ref().filter(|_| result.partial.is_empty());
        let input = input.map(|_| result.blob.digest.as_bytes());
        self.execute("store a result", sql, params![id, json, result.inline, input])
    }

    /// A failed attempt (`last` = of a unit that is given up), or a unit that was never tried.
    pub(crate) fn fail_unit(
        &self,
        run: RunKey,
        unit: UnitId,
        class: FailureClass,
        message: &str,
        last: bool,
        at: i64,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO units (run, unit, state, attempts, class, message, ended_unix_ms)
             VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET state = ?3, attempts = attempts + 1, class = ?4,
             message = ?5, ended_unix_ms = ?6";
        let (state, at) = if last { ("failed", Some(at)) } else { ("open", None) };
        let values = params![run.0, unit.0, state, class.name(), message, at];
        self.execute("store a failure", sql, values)
    }

    pub(crate) fn insert_slice(
        &self,
        run: RunKey,
        placement: &Placement,
        libtorch: &str,
    ) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO slices (run, slice, placement, libtorch)
             VALUES (?1, ?2, ?3, ?4)";
        let json = serde_json::to_string(placement).map_err(StoreError::row("placement"))?;
        let values = params![run.0, placement.slice.as_str(), json, libtorch];
        self.execute("store a slice", sql, values)
    }

    /// Stores what is known of an executor's memory; readings over time are added to those before.
    pub(crate) fn account(
        &self,
        run: RunKey,
        row: &AccountRow,
        samples: &[Sample],
    ) -> Result<(), StoreError> {
        let AccountRow { slice, committed_unix_ms, life } = row;
        let started = life.newest.started_at_unix_ms;
        let sql = "INSERT OR REPLACE INTO accounts
             (run, slice, started_unix_ms, committed_unix_ms, life) VALUES (?1, ?2, ?3, ?4, ?5)";
        let json = serde_json::to_string(life).map_err(StoreError::row("account"))?;
        let values = params![run.0, slice.as_str(), started, committed_unix_ms, json];
        self.execute("store an account", sql, values)?;
        if samples.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO readings (run, slice, started_unix_ms, samples)
             VALUES (?1, ?2, ?3, ?4)";
        let json = serde_json::to_string(samples).map_err(StoreError::row("readings"))?;
        self.execute("store readings", sql, params![run.0, slice.as_str(), started, json])
    }

    /// What is known of the memory of executors that worked on a run, without readings over time.
    pub(crate) fn accounts(&self, run: RunKey) -> Result<Vec<AccountRow>, StoreError> {
        query::accounts(&self.connection, run)
    }

    /// Appends `events`, each as JSON, to a run's history; the last of them is number `last`.
    pub(crate) fn append(
        &self,
        run: RunKey,
        last: u64,
        events: &[String],
        at: i64,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO events (run, last, at_unix_ms, events) VALUES (?1, ?2, ?3, ?4)";
        let json = format!("[{}]", events.join(","));
        self.execute("store events", sql, params![run.0, last.cast_signed(), at, json])
    }

    /// The sequence that the next event of a run gets.
    pub(crate) fn next_sequence(&self, run: RunKey) -> Result<u64, StoreError> {
        let sql = "SELECT coalesce(max(last), 0) + 1 FROM events WHERE run = ?1";
        let next: rusqlite::Result<i64> = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([run.0], |row| row.get(0)));
        next.map(i64::cast_unsigned).map_err(StoreError::database("count events"))
    }

    /// The run of an earlier submission with this id.
    pub(crate) fn run_of_request(
        &self,
        request_id: &str,
    ) -> Result<Option<(RunId, u32)>, StoreError> {
        let sql = "SELECT id, units FROM runs WHERE request_id = ?1";
        let found: Option<(String, u32)> = self
            .connection
            .query_row(sql, [request_id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(StoreError::database("look a submission up"))?;
        found.map(|(id, units)| Ok((query::run_id(&id)?, units))).transpose()
    }

    /// Who submitted a run, if somebody with a certificate did.
    pub(crate) fn owner(&self, run: &RunId) -> Result<Option<String>, StoreError> {
        query::owner(&self.connection, run)
    }

    /// The row of a run, and where the run stands.
    pub(crate) fn run_state(&self, run: &RunId) -> Result<Option<(RunKey, RunState)>, StoreError> {
        query::run_state(&self.connection, run)
    }

    /// Runs that have not ended, oldest first.
    pub(crate) fn running(&self) -> Result<Vec<RunId>, StoreError> {
        query::running(&self.connection)
    }

    pub(crate) fn summary(&self, run: &RunId) -> Result<Option<RunSummary>, StoreError> {
        query::find(&self.connection, run)
    }

    pub(crate) fn documents(&self, run: &RunId) -> Result<Option<Documents>, StoreError> {
        query::documents(&self.connection, run)
    }

    /// What a run must know of each of its committed units, in their order. No result is parsed.
    pub(crate) fn committed(
        &self,
        run: RunKey,
        take: impl FnMut(CommittedRow),
    ) -> Result<(), StoreError> {
        query::committed(&self.connection, run, take)
    }

    /// Results that leave out samples: few.
    pub(crate) fn set_aside(&self, run: RunKey) -> Result<Vec<(UnitId, UnitResult)>, StoreError> {
        query::set_aside(&self.connection, run)
    }

    #[cfg(test)]
    pub(crate) fn units(&self, run: RunKey) -> Result<Vec<UnitRow>, StoreError> {
        query::units(&self.connection, run)
    }

    pub(crate) fn unit(&self, run: RunKey, unit: UnitId) -> Result<Option<UnitRow>, StoreError> {
        query::unit(&self.connection, run, unit)
    }

    pub(crate) fn slices(&self, run: RunKey) -> Result<Vec<SliceId>, StoreError> {
        let slices = query::slices(&self.connection, run)?;
        Ok(slices.into_iter().map(|slice| slice.placement.slice).collect())
    }
}

fn prepared(state: &Path) -> Result<Connection, StoreError> {
    let path = state.join(DATABASE);
    let mut connection = Connection::open(&path).map_err(StoreError::database("open its file"))?;
    prepare(&mut connection, state)?;
    Ok(connection)
}
