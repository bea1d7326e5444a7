//! [`check_store`]: whether what is stored can be true. For tests, and after an accident.
//!
//! Absent on purpose: repairs. What is wrong here is a defect, and is reported.

use std::{fmt, path::Path};

use orchestrator_types::Digest;
use rusqlite::{Connection, OpenFlags};

use super::{DATABASE, StoreError, query, schema};

/// Something that must never be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is promised.
    pub promise: &'static str,
    /// Where it is broken.
    pub place: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, place } = self;
        write!(f, "{promise}: {place}")
    }
}

/// A promise, and a query for the places where it is broken.
struct Promise {
    promise: &'static str,
    sql: &'static str,
}

const PROMISES: [Promise; 11] = [
    Promise {
        promise: "a committed unit names its attempt, its blob and its result",
        sql: "SELECT 'run ' || run || ' unit ' || unit FROM units
              LEFT JOIN results ON results.id = run << 32 | unit
              WHERE state = 'committed'
                AND (token IS NULL OR blob IS NULL OR result IS NULL)",
    },
    Promise {
        promise: "only committed units have results",
        sql: "SELECT 'run ' || (id >> 32) || ' unit ' || (id & 4294967295) FROM results
              WHERE NOT EXISTS (SELECT 1 FROM units WHERE run = id >> 32
                AND unit = id & 4294967295 AND state = 'committed')",
    },
    Promise {
        promise: "an attempt is committed once",
        sql: "SELECT 'token ' || token FROM units WHERE state = 'committed'
              GROUP BY token HAVING count(*) > 1",
    },
    Promise {
        promise: "tokens are below their limit",
        sql: "SELECT 'token ' || token FROM units
              WHERE token >= (SELECT value FROM meta WHERE key = 'token_limit')",
    },
    Promise {
        promise: "a run that has ended has no open unit",
        sql: "SELECT 'run ' || id || ' unit ' || unit FROM runs JOIN units ON run = key
              WHERE runs.state <> 'running'
                AND units.state NOT IN ('committed', 'failed', 'cancelled')",
    },
    Promise {
        promise: "a lease has a token below the limit, and none that was committed",
        sql: "SELECT 'token ' || token FROM leases
              WHERE token >= (SELECT value FROM meta WHERE key = 'token_limit')
                OR token IN (SELECT token FROM units WHERE state = 'committed')",
    },
    Promise {
        promise: "an attempt lives in a run that goes on, of a unit that has not ended",
        sql: "SELECT 'token ' || leases.token FROM leases
              LEFT JOIN runs ON key = leases.run
              LEFT JOIN units ON units.run = leases.run AND units.unit = leases.unit
              WHERE coalesce(runs.state, '') <> 'running' OR coalesce(units.state, 'open') <> 'open'",
    },
    Promise {
        promise: "a unit belongs to its run's plan",
        sql: "SELECT 'run ' || run || ' unit ' || unit FROM units LEFT JOIN runs ON key = run
              WHERE unit >= coalesce(units, 0)",
    },
    Promise {
        promise: "a complete run has every unit committed, and no sample set aside",
        sql: "SELECT 'run ' || id FROM runs WHERE state = 'complete' AND units <>
              (SELECT count(*) FROM units WHERE run = key AND units.state = 'committed'
                AND NOT set_aside)",
    },
    Promise {
        promise: "a run has ended if and only if its last state says so",
        sql: "SELECT 'run ' || id FROM runs WHERE (state = 'running') <> (ended_sequence IS NULL)",
    },
    Promise {
        promise: "a run's history has no gap",
        sql: "SELECT 'run ' || run FROM (SELECT run, last,
                last - coalesce(lag(last) OVER (PARTITION BY run ORDER BY last), 0) AS expected,
                json_array_length(events) AS found FROM events)
              GROUP BY run HAVING sum(expected <> found) > 0",
    },
];

/// Every broken promise of the store in `state`, with blobs if they lie there. Reads everything.
///
/// # Errors
/// See [`StoreError`].
pub fn check_store(state: &Path) -> Result<Vec<Violation>, StoreError> {
    let path = state.join(DATABASE);
    if !path.is_file() {
        return Err(StoreError::Missing { path: state.to_owned() });
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(&path, flags);
    let connection = opened.map_err(StoreError::database("open its file"))?;
    let format = schema::format(&connection).map_err(StoreError::database("read its format"))?;
    if format > schema::FORMAT {
        return Err(super::newer(state, format));
    }
    let mut violations = Vec::new();
    for Promise { promise, sql } in PROMISES {
        let places = query::texts(&connection, sql)?;
        violations.extend(places.into_iter().map(|place| Violation { promise, place }));
    }
    let blobs = state.join("blobs");
    if blobs.is_dir() {
        let promise = "the blob of a committed unit is in its row or in its folder";
        let lost = |digest: Digest| !crate::blobs::path_in(&blobs, digest).is_file();
        query::blobs_elsewhere(&connection, |digest| {
            if lost(digest) {
                violations.push(Violation { promise, place: format!("blob {digest}") });
            }
        })?;
    }
    Ok(violations)
}
