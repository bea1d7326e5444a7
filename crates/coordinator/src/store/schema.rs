//! The tables, and the version of their meaning.
//!
//! A unit has a row once it was committed or has failed: a large run costs nothing until it is worked
//! on, and the queue is derived from the plan and the ended units on load. A lease has a row for as
//! long as its attempt lives, so that attempts outlive the coordinator's process.

use rusqlite::Connection;

/// Version of the tables, in SQLite's `user_version`. A newer one is refused, never guessed at.
pub(super) const FORMAT: i64 = 2;

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
  plan_digest TEXT NOT NULL
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
  result TEXT,
  PRIMARY KEY (run, unit)
);

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

CREATE TABLE slices (
  run INTEGER NOT NULL,
  slice TEXT NOT NULL,
  placement TEXT NOT NULL,
  libtorch TEXT NOT NULL,
  PRIMARY KEY (run, slice)
) WITHOUT ROWID;

CREATE TABLE events (
  run INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  at_unix_ms INTEGER NOT NULL,
  event TEXT NOT NULL,
  PRIMARY KEY (run, sequence)
) WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('epoch', 0), ('clean', 1), ('token_limit', 1);
";

/// The format of an open database; 0 for an empty one.
pub(super) fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// What each format adds to the one before it.
const UPGRADES: [&str; 1] = ["
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
UPDATE units SET state = 'open' WHERE state = 'leased';
"];

/// Brings an older database up to date, all or nothing.
pub(super) fn upgrade(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let done = usize::try_from(found - 1).unwrap_or_default();
    for upgrade in &UPGRADES[done.min(UPGRADES.len())..] {
        transaction.execute_batch(upgrade)?;
    }
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}

/// Makes the tables of an empty database.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}
