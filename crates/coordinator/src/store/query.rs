//! Rows → words. Shared by the writer and by readers of other processes.

use std::{path::PathBuf, str::FromStr};

use orchestrator_plan::{Placement, Plan};
use orchestrator_run::{RunState, UnitResult};
use orchestrator_spec::{Evaluation, Facts};
use orchestrator_types::{FailureClass, FencingToken, RunId, SliceId, UnitId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{RunKey, StoreError};
use crate::event::Recorded;

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
    /// Waits for its next attempt.
    Open,
    /// Was leased last; the lease itself lives in memory only.
    Leased,
    /// Its result counts.
    Committed,
    /// Given up.
    Failed,
    /// Ended with its run.
    Cancelled,
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
     class, message, result FROM units";

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
    let fail = || StoreError::database("be read");
    let mut statement = connection.prepare_cached(sql).map_err(fail())?;
    let mut rows = statement.query(values).map_err(fail())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(fail())? {
        found.push(read(row)?);
    }
    Ok(found)
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
        "leased" => UnitStage::Leased,
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
            .map(|result| json(&result, "result of a unit"))
            .transpose()?,
    })
}

pub(super) fn slices(connection: &Connection, run: RunKey) -> Result<Vec<SliceRow>, StoreError> {
    let sql = "SELECT placement, libtorch FROM slices WHERE run = ?1 ORDER BY slice";
    rows(connection, sql, [run.0], |row| {
        let placement = json(&column::<String>(row, 0)?, "placement")?;
        Ok(SliceRow { placement, libtorch: column(row, 1)? })
    })
}

pub(super) fn events(
    connection: &Connection,
    run: RunKey,
    after: u64,
    limit: u32,
) -> Result<Vec<Recorded>, StoreError> {
    let sql = "SELECT sequence, at_unix_ms, event FROM events
         WHERE run = ?1 AND sequence > ?2 ORDER BY sequence LIMIT ?3";
    rows(connection, sql, params![run.0, after.cast_signed(), limit], |row| {
        Ok(Recorded {
            sequence: column::<i64>(row, 0)?.cast_unsigned(),
            at_unix_ms: column(row, 1)?,
            event: json(&column::<String>(row, 2)?, "event")?,
        })
    })
}

/// The event with which the present life of a run began; 0 before the first.
pub(super) fn begun(connection: &Connection, run: RunKey) -> Result<u64, StoreError> {
    let sql = "SELECT max(sequence) FROM events WHERE run = ?1
         AND event LIKE '{\"kind\":\"state_changed\"%' AND event LIKE '%\"running\"%'";
    let found: rusqlite::Result<Option<i64>> = connection.query_row(sql, [run.0], |row| row.get(0));
    let found = found.map_err(StoreError::database("be read"))?;
    Ok(found.unwrap_or_default().cast_unsigned())
}
