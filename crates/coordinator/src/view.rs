//! What is shown of runs and workers: documents for people and scripts, the same embedded and on a
//! cluster.
//!
//! Invariant: a document is made from one committed state of the store and, for what lives in
//! memory only, from one turn of the driver. Nothing here decides anything.

use std::collections::{BTreeMap, BTreeSet};

use orchestrator_ledger::Account;
use orchestrator_run::RunState;
use orchestrator_types::{
    ByteCount, Component, DeviceId, FailureClass, FencingToken, NodeName, RunId, SessionId,
    SliceId, UnitId,
};
use serde::{Deserialize, Serialize};

use crate::store::{Reader, RunSummary, StoreError, UnitRow, UnitStage};

/// Failed units and quarantined samples that a status names; the report names all of them.
const NAMED: usize = 1_000;

/// One run in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLine {
    /// The run.
    pub run: RunId,
    /// The evaluation's title.
    pub name: String,
    /// `running`, `interrupted`, `complete`, `incomplete` or `cancelled`.
    pub state: String,
    /// When it was submitted.
    pub created_unix_ms: i64,
    /// When it ended.
    pub ended_unix_ms: Option<i64>,
    /// Its units.
    pub units: u32,
    /// Those with a result.
    pub committed: u32,
}

/// How far a run is, who works on it, and what went wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The run, as in a list.
    #[serde(flatten)]
    pub line: RunLine,
    /// The event with which its present life began.
    pub begun: u64,
    /// How far, by component.
    pub components: BTreeMap<Component, Count>,
    /// Attempts in work; known to a coordinator only.
    pub attempts: Vec<AttemptView>,
    /// Why nothing goes on though the run has not ended.
    pub waits: Option<String>,
    /// Units that were given up; at most 1,000.
    pub failures: Vec<FailedUnit>,
    /// Samples that were set aside; at most 1,000.
    pub quarantined: Vec<SetAside>,
}

/// Units and rows of one component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Its units.
    pub units: u32,
    /// Those with a result.
    pub committed: u32,
    /// Rows of its units.
    pub rows: u64,
    /// Rows of those with a result.
    pub committed_rows: u64,
}

/// A unit that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUnit {
    /// The unit.
    pub unit: UnitId,
    /// Class of its last failure.
    pub class: FailureClass,
    /// What went wrong.
    pub message: String,
}

/// A sample that was set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// Its identity.
    pub sample: String,
    /// What is wrong with it.
    pub reason: String,
}

/// An attempt in work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptView {
    /// Its run.
    pub run: RunId,
    /// Its unit.
    pub unit: UnitId,
    /// What the unit needs.
    pub component: Component,
    /// Counted from 1.
    pub attempt: u32,
    /// Its identity.
    pub token: FencingToken,
    /// Where it runs.
    pub slice: SliceId,
    /// Rows done, as its worker reported last.
    pub done: u64,
    /// Rows of the unit.
    pub rows: u64,
}

/// Every connected worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterView {
    /// Life of the coordinator, counted from 1.
    pub epoch: u64,
    /// Whether the coordinator takes callers from other machines, and nothing is encrypted.
    #[serde(default)]
    pub insecure: bool,
    /// By name.
    pub workers: Vec<WorkerView>,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    /// Its host.
    pub node: NodeName,
    /// Its life.
    pub session: SessionId,
    /// Who it is, by its certificate, such as `worker/a`; none where nothing is encrypted.
    #[serde(default)]
    pub identity: Option<String>,
    /// Whether it has said hello to this life of the coordinator; one that has attempts from the
    /// life before is waited for.
    pub registered: bool,
    /// Since when it is connected.
    pub connected_ms: u64,
    /// How long it has said nothing.
    pub silent_ms: u64,
    /// Silence after which it is lost.
    pub lease_ms: u64,
    /// libtorch of its executors.
    pub libtorch: String,
    /// What it offers, by name.
    pub slices: Vec<SliceView>,
}

/// One slice of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceView {
    /// Its name.
    pub slice: SliceId,
    /// What computes.
    pub device: DeviceId,
    /// Threads of the processor.
    pub threads: u32,
    /// The most that runs may use.
    pub ceiling_bytes: ByteCount,
    /// What it works on.
    pub attempts: Vec<AttemptView>,
    /// Memory as its executor told with the last result; none before the first.
    pub account: Option<Account>,
    /// Why its worker does not offer it, such as a fault of its GPU; none: it is offered.
    #[serde(default)]
    pub withdrawn: Option<String>,
}

/// What only the driver knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub cluster: ClusterView,
    /// Runs in work.
    pub runs: BTreeMap<RunId, RunNow>,
}

/// A run in work.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunNow {
    pub attempts: Vec<AttemptView>,
    pub waits: Option<String>,
}

impl RunLine {
    /// A run of which `working` says whether some process works on it now.
    pub fn new(summary: RunSummary, working: bool) -> Self {
        let RunSummary {
            id: run,
            name,
            state,
            created_unix_ms,
            ended_unix_ms,
            ended_sequence: _,
            units,
            committed,
        } = summary;
        let state = match state {
            RunState::Running if !working => "interrupted",
            state => state.name(),
        };
        let state = state.to_owned();
        Self { run, name, state, created_unix_ms, ended_unix_ms, units, committed }
    }
}

impl RunStatus {
    /// The status of a run of the store; `None` if there is no such run. Blocks.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn read(reader: &Reader, run: &RunId, working: bool) -> Result<Option<Self>, StoreError> {
        let Some(summary) = reader.run(run)? else { return Ok(None) };
        let Some(documents) = reader.documents(run)? else { return Ok(None) };
        let mut components: BTreeMap<Component, Count> = BTreeMap::new();
        let units = &documents.plan.units;
        for block in units.blocks() {
            let count = components.entry(block.component()).or_default();
            count.units += block.count;
            count.rows += block.total_rows();
        }
        let (mut failures, mut quarantined) = (Vec::new(), BTreeSet::new());
        for row in reader.units(run)? {
            if row.unit.0 as usize >= units.len() {
                continue;
            }
            if row.stage == UnitStage::Committed {
                let count = components.entry(units.component(row.unit)).or_default();
                count.committed += 1;
                count.committed_rows += u64::from(units.rows(row.unit));
            }
            failures.extend(failed(&row));
            let samples = row.result.into_iter().flat_map(|result| result.quarantined);
            quarantined.extend(samples.map(|sample| (sample.sample.0, sample.reason)));
        }
        failures.truncate(NAMED);
        let quarantined = quarantined.into_iter().take(NAMED);
        Ok(Some(Self {
            line: RunLine::new(summary, working),
            begun: reader.begun(run)?,
            components,
            attempts: Vec::new(),
            waits: None,
            failures,
            quarantined: quarantined.map(|(sample, reason)| SetAside { sample, reason }).collect(),
        }))
    }
}

fn failed(row: &UnitRow) -> Option<FailedUnit> {
    let (class, message) = row.failure.clone()?;
    (row.stage == UnitStage::Failed).then_some(FailedUnit { unit: row.unit, class, message })
}
