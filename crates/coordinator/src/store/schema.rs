//! The tables, and the version of their meaning.
//!
//! A unit has a row once it was committed or has failed: a large run costs nothing until it is worked
//! on, and the queue is derived from the plan and the ended units on load. A lease has a row for as
//! long as its attempt lives, so that attempts outlive the coordinator's process.

use rusqlite::Connection;

/// Version of the tables, in SQLite's `user_version`. A newer one is refused, never guessed at.
pub(super) const FORMAT: i64 = 4;

const TABLES: &str = "
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE runs (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  request_id TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  build TEXT NOT NULL,
  state TEXT NOT NULL,
  created_unix_ms INTEGER NOT NULL,
  ended_unix_ms INTEGER,
  ended_sequence INTEGER,
  units INTEGER NOT NULL,
  keep_embeddings INTEGER NOT NULL,
  base TEXT NOT NULL,
  eval_yaml TEXT NOT NULL,
  evaluation TEXT NOT NULL,
  facts TEXT NOT NULL,
  plan TEXT NOT NULL,
  plan_digest TEXT NOT NULL,
  owner TEXT
);

CREATE TABLE units (
  run INTEGER NOT NULL,
  unit INTEGER NOT NULL,
  state TEXT NOT NULL,
  token INTEGER,
  slice TEXT,
  attempts INTEGER NOT NULL,
  leased_unix_ms INTEGER,
  ended_unix_ms INTEGER,
  class TEXT,
  message TEXT,
  blob BLOB,
  samples BLOB,
  set_aside INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run, unit)
) WITHOUT ROWID;

CREATE TABLE slices (
  run INTEGER NOT NULL,
  slice TEXT NOT NULL,
  placement TEXT NOT NULL,
  libtorch TEXT NOT NULL,
  PRIMARY KEY (run, slice)
) WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('epoch', 0), ('clean', 1), ('token_limit', 1),
  ('identity', abs(random() >> 1));
";

/// Attempts that live, so that they outlive the coordinator's process.
const LEASES: &str = "
CREATE TABLE leases (
  token INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  unit INTEGER NOT NULL,
  number INTEGER NOT NULL,
  session TEXT NOT NULL,
  node TEXT NOT NULL,
  slice TEXT NOT NULL,
  leased_unix_ms INTEGER NOT NULL,
  probe INTEGER NOT NULL
);
";

/// Committed results, apart from their units: a restart reads every unit and hardly any result.
/// `id` is the run's key and the unit's number in one. `input` is the digest of an inline blob that
/// other units may ask for; only those pay for an index.
const RESULTS: &str = "
CREATE TABLE results (
  id INTEGER PRIMARY KEY,
  result TEXT NOT NULL,
  inline BLOB,
  input BLOB
);
CREATE INDEX inputs ON results (input) WHERE input IS NOT NULL;
";

/// A run's history, many events a row: a JSON list of those of one turn, of which the last is number
/// `last`.
const EVENTS: &str = "
CREATE TABLE events (
  run INTEGER NOT NULL,
  last INTEGER NOT NULL,
  at_unix_ms INTEGER NOT NULL,
  events TEXT NOT NULL,
  PRIMARY KEY (run, last)
) WITHOUT ROWID;
";

/// Accounts of executors' memory, by run, slice and life, for a result with each would be kilobytes; and
/// readings over time, a list for each turn that brought some. Results of formats 1 and 2 hold their
/// accounts themselves.
const ACCOUNTS: &str = "
CREATE TABLE accounts (
  run INTEGER NOT NULL,
  slice TEXT NOT NULL,
  started_unix_ms INTEGER NOT NULL,
  committed_unix_ms INTEGER NOT NULL,
  life TEXT NOT NULL,
  PRIMARY KEY (run, slice, started_unix_ms)
) WITHOUT ROWID;
CREATE TABLE readings (
  key INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  slice TEXT NOT NULL,
  started_unix_ms INTEGER NOT NULL,
  samples TEXT NOT NULL
);
CREATE INDEX readings_of_runs ON readings (run);
";

/// Formats 1 and 2 had one event a row.
const JOIN_EVENTS: &str = "
INSERT INTO events (run, last, at_unix_ms, events)
  SELECT run, sequence, at_unix_ms, '[' || event || ']' FROM single_events;
DROP TABLE single_events;
";

/// Format 1 kept results in their units' rows.
const SPLIT_RESULTS: &str = "
INSERT INTO results (id, result)
  SELECT run << 32 | unit, result FROM units WHERE result IS NOT NULL;
CREATE TABLE split (
  run INTEGER NOT NULL,
  unit INTEGER NOT NULL,
  state TEXT NOT NULL,
  token INTEGER,
  slice TEXT,
  attempts INTEGER NOT NULL,
  leased_unix_ms INTEGER,
  ended_unix_ms INTEGER,
  class TEXT,
  message TEXT,
  blob BLOB,
  samples BLOB,
  set_aside INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run, unit)
) WITHOUT ROWID;
INSERT INTO split
  SELECT run, unit, state, token, slice, attempts, leased_unix_ms, ended_unix_ms, class, message,
    unhex(json_extract(result, '$.blob.digest')), unhex(json_extract(result, '$.samples')),
    coalesce(json_array_length(result, '$.quarantined') > 0, 0)
  FROM units;
INSERT INTO meta (key, value) VALUES ('identity', abs(random() >> 1));
DROP TABLE units;
UPDATE split SET state = 'open' WHERE state = 'leased';
ALTER TABLE split RENAME TO units;
";

/// Id of a unit's result.
pub(super) const fn result_id(run: super::RunKey, unit: orchestrator_types::UnitId) -> i64 {
    run.0 << 32 | unit.0 as i64
}

/// The format of an open database; 0 for an empty one.
pub(super) fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Makes the tables of an empty database.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(LEASES)?;
    transaction.execute_batch(RESULTS)?;
    transaction.execute_batch(EVENTS)?;
    transaction.execute_batch(ACCOUNTS)?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}

/// Brings a database of format `from` up to date, all or nothing.
pub(super) fn upgrade(connection: &mut Connection, from: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    if from < 2 {
        transaction.execute_batch(LEASES)?;
        transaction.execute_batch(RESULTS)?;
        transaction.execute_batch(SPLIT_RESULTS)?;
    }
    if from < 3 {
        transaction.execute_batch("ALTER TABLE events RENAME TO single_events")?;
        transaction.execute_batch(EVENTS)?;
        transaction.execute_batch(JOIN_EVENTS)?;
        transaction.execute_batch(ACCOUNTS)?;
    }
    // Before, nobody was told apart.
    transaction.execute_batch("ALTER TABLE runs ADD COLUMN owner TEXT")?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}
