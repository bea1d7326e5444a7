//! Rows → words. Shared by the writer and by readers of other processes.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr};

use orchestrator_ledger::{Account, Life, Sample};
use orchestrator_plan::{Placement, Plan};
use orchestrator_run::{RunState, UnitResult};
use orchestrator_spec::{Evaluation, Facts};
use orchestrator_types::{
    Digest, FailureClass, FencingToken, NodeName, RunId, SessionId, SliceId, UnitId,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{RunKey, StoreError};
use crate::event::{Recorded, RunEvent};

/// One line about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSummary {
    /// The run.
    pub id: RunId,
    /// The evaluation's title.
    pub name: String,
    /// Where it stands. `Running` without a coordinator = interrupted.
    pub state: RunState,
    /// When it was submitted, milliseconds since 1970.
    pub created_unix_ms: i64,
    /// When it ended.
    pub ended_unix_ms: Option<i64>,
    /// The event that ended it.
    pub ended_sequence: Option<u64>,
    /// Its units.
    pub units: u32,
    /// Those with a result.
    pub committed: u32,
}

/// What a run was made from; immutable.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The file as submitted.
    pub eval_yaml: String,
    /// Its content.
    pub evaluation: Evaluation,
    /// What was found at its paths.
    pub facts: Facts,
    /// What was decided.
    pub plan: Plan,
    /// The build that computes it.
    pub build: String,
    /// Where relative paths start.
    pub base: PathBuf,
    /// Whether embeddings belong into the run folder.
    pub keep_embeddings: bool,
}

/// Where a unit stands in the store. A unit without a row was never leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitStage {
    /// Has failed and may be tried again.
    Open,
    /// Its result counts.
    Committed,
    /// Given up.
    Failed,
    /// Ended with its run.
    Cancelled,
}

/// A lease of an attempt that lived when it was stored last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRow {
    pub token: FencingToken,
    pub unit: UnitId,
    pub number: u32,
    pub session: SessionId,
    pub node: NodeName,
    pub slice: SliceId,
    pub leased_unix_ms: i64,
    /// Its result would not be kept.
    pub probe: bool,
}

/// What is stored of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitRow {
    /// The unit.
    pub unit: UnitId,
    /// Where it stands.
    pub stage: UnitStage,
    /// Its last attempt.
    pub token: Option<FencingToken>,
    /// Where that ran.
    pub slice: Option<SliceId>,
    /// Attempts so far, over all lives of the run.
    pub attempts: u32,
    /// Grant of the last attempt, milliseconds since 1970.
    pub leased_unix_ms: Option<i64>,
    /// Commit, last failure or cancellation.
    pub ended_unix_ms: Option<i64>,
    /// Class and message of the last failure.
    pub failure: Option<(FailureClass, String)>,
    /// The committed result.
    pub result: Option<UnitResult>,
}

/// What a run must know of a unit whose result counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommittedRow {
    pub unit: UnitId,
    pub token: FencingToken,
    pub blob: Digest,
    /// Digest of the samples that were read.
    pub samples: Option<Digest>,
    /// Whether samples were left out.
    pub set_aside: bool,
}

/// What is known of the memory of an executor that worked on a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AccountRow {
    pub slice: SliceId,
    /// When its newest account came, milliseconds since 1970.
    pub committed_unix_ms: i64,
    pub life: Life,
}

/// A slice that worked on a run.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceRow {
    /// What it was allowed to hold.
    pub placement: Placement,
    /// libtorch of its worker.
    pub libtorch: String,
}

const SUMMARY: &str = "SELECT id, name, state, created_unix_ms, ended_unix_ms, ended_sequence,
     units, (SELECT count(*) FROM units WHERE run = key AND units.state = 'committed')
     FROM runs";
const UNIT: &str = "SELECT unit, state, token, slice, attempts, leased_unix_ms, ended_unix_ms,
     class, message, result, inline FROM units
     LEFT JOIN results ON results.id = run << 32 | unit AND state = 'committed'";

fn text<T: FromStr<Err: Into<Box<dyn std::error::Error + Send + Sync>>>>(
    text: &str,
    what: &'static str,
) -> Result<T, StoreError> {
    text.parse().map_err(StoreError::row(what))
}

fn json<T: serde::de::DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(StoreError::row(what))
}

/// A word of an enum, as its JSON writes it.
fn word<T: serde::de::DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_value(text.into()).map_err(StoreError::row(what))
}

pub(super) fn run_id(id: &str) -> Result<RunId, StoreError> {
    text(id, "run id")
}

/// Every row of a query, read by `read`.
fn rows<T>(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut found = Vec::new();
    each(connection, sql, values, |row| {
        found.push(read(row)?);
        Ok(())
    })?;
    Ok(found)
}

/// Shows `take` every row of a query.
fn each(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
    mut take: impl FnMut(&Row<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let fail = || StoreError::database("be read");
    let mut statement = connection.prepare_cached(sql).map_err(fail())?;
    let mut rows = statement.query(values).map_err(fail())?;
    while let Some(row) = rows.next().map_err(fail())? {
        take(row)?;
    }
    Ok(())
}

fn column<T: rusqlite::types::FromSql>(row: &Row<'_>, index: usize) -> Result<T, StoreError> {
    row.get(index).map_err(StoreError::database("be read"))
}

pub(super) fn summaries(connection: &Connection) -> Result<Vec<RunSummary>, StoreError> {
    rows(connection, &format!("{SUMMARY} ORDER BY id"), [], summary)
}

pub(super) fn find(connection: &Connection, run: &RunId) -> Result<Option<RunSummary>, StoreError> {
    let sql = format!("{SUMMARY} WHERE id = ?1");
    Ok(rows(connection, &sql, [run.as_str()], summary)?.pop())
}

fn summary(row: &Row<'_>) -> Result<RunSummary, StoreError> {
    Ok(RunSummary {
        id: run_id(&column::<String>(row, 0)?)?,
        name: column(row, 1)?,
        state: word(&column::<String>(row, 2)?, "state of a run")?,
        created_unix_ms: column(row, 3)?,
        ended_unix_ms: column(row, 4)?,
        ended_sequence: column::<Option<i64>>(row, 5)?.map(i64::cast_unsigned),
        units: column(row, 6)?,
        committed: column(row, 7)?,
    })
}

pub(super) fn running(connection: &Connection) -> Result<Vec<RunId>, StoreError> {
    let sql = "SELECT id FROM runs WHERE state = 'running' ORDER BY id";
    rows(connection, sql, [], |row| run_id(&column::<String>(row, 0)?))
}

pub(super) fn owner(connection: &Connection, run: &RunId) -> Result<Option<String>, StoreError> {
    connection
        .prepare_cached("SELECT owner FROM runs WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([run.as_str()], |row| row.get(0)).optional())
        .map(Option::flatten)
        .map_err(StoreError::database("be read"))
}

pub(super) fn run_state(
    connection: &Connection,
    run: &RunId,
) -> Result<Option<(RunKey, RunState)>, StoreError> {
    let found: Option<(i64, String)> = connection
        .prepare_cached("SELECT key, state FROM runs WHERE id = ?1")
        .and_then(|mut statement| {
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            statement.query_row([run.as_str()], read).optional()
        })
        .map_err(StoreError::database("be read"))?;
    found.map(|(key, state)| Ok((RunKey(key), word(&state, "state of a run")?))).transpose()
}

pub(super) fn documents(
    connection: &Connection,
    run: &RunId,
) -> Result<Option<Documents>, StoreError> {
    let sql = "SELECT eval_yaml, evaluation, facts, plan, base, keep_embeddings, build FROM runs
         WHERE id = ?1";
    let read = |row: &Row<'_>| {
        Ok(Documents {
            eval_yaml: column(row, 0)?,
            evaluation: json(&column::<String>(row, 1)?, "evaluation")?,
            facts: json(&column::<String>(row, 2)?, "facts")?,
            plan: json(&column::<String>(row, 3)?, "plan")?,
            base: column::<String>(row, 4)?.into(),
            keep_embeddings: column(row, 5)?,
            build: column(row, 6)?,
        })
    };
    Ok(rows(connection, sql, [run.as_str()], read)?.pop())
}

pub(super) fn units(connection: &Connection, run: RunKey) -> Result<Vec<UnitRow>, StoreError> {
    rows(connection, &format!("{UNIT} WHERE run = ?1 ORDER BY unit"), [run.0], unit_row)
}

pub(super) fn committed(
    connection: &Connection,
    run: RunKey,
    mut take: impl FnMut(CommittedRow),
) -> Result<(), StoreError> {
    let sql = "SELECT unit, token, blob, samples, set_aside FROM units
         WHERE run = ?1 AND state = 'committed' ORDER BY unit";
    each(connection, sql, [run.0], |row| {
        take(CommittedRow {
            unit: UnitId(column(row, 0)?),
            token: FencingToken(column::<i64>(row, 1)?.cast_unsigned()),
            blob: digest(row, 2)?
                .ok_or_else(|| StoreError::row("blob of a unit")("it is missing"))?,
            samples: digest(row, 3)?,
            set_aside: column(row, 4)?,
        });
        Ok(())
    })
}

/// A digest, borrowed from its row: there may be millions.
fn digest(row: &Row<'_>, index: usize) -> Result<Option<Digest>, StoreError> {
    let value = row.get_ref(index).map_err(StoreError::database("be read"))?;
    let bytes = value.as_blob_or_null().map_err(StoreError::row("digest"))?;
    bytes.map(|bytes| bytes.try_into().map_err(StoreError::row("digest"))).transpose()
}

pub(super) fn set_aside(
    connection: &Connection,
    run: RunKey,
) -> Result<Vec<(UnitId, UnitResult)>, StoreError> {
    let sql = "SELECT unit, result FROM units JOIN results ON results.id = run << 32 | unit
         WHERE run = ?1 AND state = 'committed' AND set_aside";
    rows(connection, sql, [run.0], |row| {
        Ok((UnitId(column(row, 0)?), json(&column::<String>(row, 1)?, "result of a unit")?))
    })
}

/// A blob that is stored with the result of an encoding.
pub(super) fn input(
    connection: &Connection,
    digest: Digest,
) -> Result<Option<Vec<u8>>, StoreError> {
    let sql = "SELECT inline FROM results WHERE input = ?1 LIMIT 1";
    Ok(rows(connection, sql, [digest.as_bytes()], |row| column(row, 0))?.pop())
}

/// Digests of every blob that a committed unit names and that is not stored with its result.
pub(super) fn blobs_elsewhere(
    connection: &Connection,
    mut take: impl FnMut(Digest),
) -> Result<(), StoreError> {
    let sql = "SELECT blob FROM units JOIN results ON results.id = run << 32 | unit
         WHERE blob IS NOT NULL AND inline IS NULL";
    each(connection, sql, [], |row| {
        digest(row, 0)?.into_iter().for_each(&mut take);
        Ok(())
    })
}

/// The first column of a query.
pub(super) fn texts(connection: &Connection, sql: &str) -> Result<Vec<String>, StoreError> {
    rows(connection, sql, [], |row| column(row, 0))
}

/// Digests of every blob that a committed unit of any run names.
pub(super) fn blobs(
    connection: &Connection,
    mut take: impl FnMut(Digest),
) -> Result<(), StoreError> {
    let sql = "SELECT blob FROM units WHERE blob IS NOT NULL";
    each(connection, sql, [], |row| {
        digest(row, 0)?.into_iter().for_each(&mut take);
        Ok(())
    })
}

pub(super) fn unit(
    connection: &Connection,
    run: RunKey,
    unit: UnitId,
) -> Result<Option<UnitRow>, StoreError> {
    let sql = format!("{UNIT} WHERE run = ?1 AND unit = ?2");
    Ok(rows(connection, &sql, params![run.0, unit.0], unit_row)?.pop())
}

fn unit_row(row: &Row<'_>) -> Result<UnitRow, StoreError> {
    let stage = match column::<String>(row, 1)?.as_str() {
        "open" => UnitStage::Open,
        "committed" => UnitStage::Committed,
        "failed" => UnitStage::Failed,
        "cancelled" => UnitStage::Cancelled,
        other => return Err(StoreError::row("state of a unit")(other.to_owned())),
    };
    let class: Option<String> = column(row, 7)?;
    let message: Option<String> = column(row, 8)?;
    let class = class.map(|class| word(&class, "failure class")).transpose()?;
    Ok(UnitRow {
        unit: UnitId(column(row, 0)?),
        stage,
        token: column::<Option<i64>>(row, 2)?.map(|token| FencingToken(token.cast_unsigned())),
        slice: column::<Option<String>>(row, 3)?.map(|id| text(&id, "slice id")).transpose()?,
        attempts: column(row, 4)?,
        leased_unix_ms: column(row, 5)?,
        ended_unix_ms: column(row, 6)?,
        failure: class.zip(message),
        result: column::<Option<String>>(row, 9)?
            .map(|result| {
                let inline = column(row, 10)?;
                Ok(UnitResult { inline, ..json(&result, "result of a unit")? })
            })
            .transpose()?,
    })
}

pub(super) fn leases(connection: &Connection, run: RunKey) -> Result<Vec<LeaseRow>, StoreError> {
    let sql = "SELECT token, unit, number, session, node, slice, leased_unix_ms, probe FROM leases
         WHERE run = ?1 ORDER BY token";
    rows(connection, sql, [run.0], |row| {
        Ok(LeaseRow {
            token: FencingToken(column::<i64>(row, 0)?.cast_unsigned()),
            unit: UnitId(column(row, 1)?),
            number: column(row, 2)?,
            session: text(&column::<String>(row, 3)?, "session id")?,
            node: text(&column::<String>(row, 4)?, "node name")?,
            slice: text(&column::<String>(row, 5)?, "slice id")?,
            leased_unix_ms: column(row, 6)?,
            probe: column(row, 7)?,
        })
    })
}

pub(super) fn slices(connection: &Connection, run: RunKey) -> Result<Vec<SliceRow>, StoreError> {
    let sql = "SELECT placement, libtorch FROM slices WHERE run = ?1 ORDER BY slice";
    rows(connection, sql, [run.0], |row| {
        let placement = json(&column::<String>(row, 0)?, "placement")?;
        Ok(SliceRow { placement, libtorch: column(row, 1)? })
    })
}

pub(super) fn accounts(
    connection: &Connection,
    run: RunKey,
) -> Result<Vec<AccountRow>, StoreError> {
    let sql = "SELECT slice, committed_unix_ms, life FROM accounts WHERE run = ?1
         ORDER BY slice, started_unix_ms";
    rows(connection, sql, [run.0], |row| {
        Ok(AccountRow {
            slice: text(&column::<String>(row, 0)?, "slice id")?,
            committed_unix_ms: column(row, 1)?,
            life: json(&column::<String>(row, 2)?, "account")?,
        })
    })
}

/// Readings over time, with their slice and their executor's start.
pub(super) fn readings(
    connection: &Connection,
    run: RunKey,
) -> Result<Vec<(SliceId, i64, Vec<Sample>)>, StoreError> {
    let sql = "SELECT slice, started_unix_ms, samples FROM readings WHERE run = ?1 ORDER BY key";
    rows(connection, sql, [run.0], |row| {
        let slice = text(&column::<String>(row, 0)?, "slice id")?;
        Ok((slice, column(row, 1)?, json(&column::<String>(row, 2)?, "readings")?))
    })
}

/// See [`super::Reader::accounts`].
pub(super) fn accounts_of_slices(
    connection: &Connection,
    run: RunKey,
) -> Result<BTreeMap<SliceId, Vec<(i64, Account)>>, StoreError> {
    let mut samples: BTreeMap<(SliceId, i64), Vec<Sample>> = BTreeMap::new();
    for (slice, started, more) in readings(connection, run)? {
        samples.entry((slice, started)).or_default().extend(more);
    }
    let mut found: BTreeMap<SliceId, Vec<(i64, Account)>> = BTreeMap::new();
    for AccountRow { slice, committed_unix_ms, life } in accounts(connection, run)? {
        let Life { mut newest, most } = life;
        let key = (slice, newest.started_at_unix_ms);
        newest.samples = samples.remove(&key).unwrap_or_default();
        // The newest comes last in time, because some figures are its own.
        found.entry(key.0).or_default().extend([(0, most), (committed_unix_ms, newest)]);
    }
    Ok(found)
}

pub(super) fn events(
    connection: &Connection,
    run: RunKey,
    after: u64,
    limit: u32,
) -> Result<Vec<Recorded>, StoreError> {
    // Rows hold many events, and at least one.
    let sql = "SELECT last, at_unix_ms, events FROM events
         WHERE run = ?1 AND last > ?2 ORDER BY last LIMIT ?3";
    let (most, mut found) = (limit as usize, Vec::new());
    let mut statement = connection.prepare_cached(sql).map_err(StoreError::database("be read"))?;
    let selected = statement.query(params![run.0, after.cast_signed(), limit]);
    let mut selected = selected.map_err(StoreError::database("be read"))?;
    while found.len() < most {
        let Some(row) = selected.next().map_err(StoreError::database("be read"))? else { break };
        let (last, at_unix_ms) = (column::<i64>(row, 0)?.cast_unsigned(), column(row, 1)?);
        let events: Vec<RunEvent> = json(&column::<String>(row, 2)?, "events")?;
        let first = last + 1 - events.len() as u64;
        let events = (first..).zip(events).filter(|(sequence, _)| *sequence > after);
        let events = events.take(most - found.len());
        found.extend(events.map(|(sequence, event)| Recorded { sequence, at_unix_ms, event }));
    }
    Ok(found)
}

/// The event with which the present life of a run began; 0 before the first.
pub(super) fn begun(connection: &Connection, run: RunKey) -> Result<u64, StoreError> {
    let sql =
        "SELECT max(last - json_array_length(events) + 1 + key) FROM events, json_each(events)
         WHERE run = ?1 AND events LIKE '%\"state_changed\"%'
         AND value ->> 'kind' = 'state_changed' AND value ->> 'state' = 'running'";
    let found: rusqlite::Result<Option<i64>> = connection.query_row(sql, [run.0], |row| row.get(0));
    let found = found.map_err(StoreError::database("be read"))?;
    Ok(found.unwrap_or_default().cast_unsigned())
}
