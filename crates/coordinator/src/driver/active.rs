//! [`ActiveRun`]: a run in work, and what its commands write.

use std::collections::{BTreeMap, BTreeSet};

use orchestrator_plan::{Homeless, Placement, Plan, Rank, UnitRange, Work};
use orchestrator_run::{
    AssignedRank, AssignedWork, Assignment, Attempt, Command, Committed, Millis, Run, RunState,
    SampleDigests, UnitOutcome, UnitResult,
};
use orchestrator_types::{DatasetName, Digest, FencingToken, RunId, Shard, SliceId, UnitId};

use super::{CommitOutcome, Outbox, progress::Tally};
use crate::{
    event::{Live, RunEvent},
    store::{CommittedRow, RunKey, Store, StoreError},
};

/// A run in work.
pub(super) struct ActiveRun {
    pub id: RunId,
    pub key: RunKey,
    pub run: Run,
    /// What each connected slice may hold.
    pub placed: BTreeMap<SliceId, Placement>,
    /// Granted and never reported by their worker, with the time of the grant.
    pub untaken: BTreeMap<FencingToken, Millis>,
    pub progress: Tally,
    /// The component that no slice could hold when that was last looked at.
    pub homeless: Option<Homeless>,
    /// What images were read, for every worker reads the same.
    pub samples: SampleDigests,
    next_sequence: u64,
    /// Blobs of committed units.
    blobs: Vec<Option<Digest>>,
    /// Samples whose event was told.
    quarantined: BTreeSet<(DatasetName, u32)>,
    /// Slices whose row is stored.
    known_slices: BTreeSet<SliceId>,
}

/// Where a turn writes.
pub(super) struct Book<'a> {
    pub store: &'a Store,
    pub outbox: &'a mut Outbox,
    pub at: i64,
}

/// What a command means for the caller.
#[derive(Debug)]
pub(super) enum Answer {
    Granted(Attempt),
    Commit(CommitOutcome),
}

impl ActiveRun {
    /// The run of `plan` with what the store knows of it.
    pub(super) fn new(
        id: RunId,
        key: RunKey,
        plan: Plan,
        lost: &BTreeSet<Digest>,
        store: &Store,
    ) -> Result<Self, StoreError> {
        let plan = std::sync::Arc::new(plan);
        let (mut committed, mut blobs) = (BTreeMap::new(), vec![None; plan.units.len()]);
        let (mut progress, mut samples) = (Tally::new(&plan), SampleDigests::default());
        store.committed(key, |row| {
            let CommittedRow { unit: id, token, blob, samples: read, set_aside } = row;
            if lost.contains(&blob) {
                return;
            }
            committed.insert(id, Committed { token, set_aside });
            blobs[id.0 as usize] = Some(blob);
            let unit = &plan.units[id.0 as usize];
            progress.commit(unit.component(), unit.rows);
            read.into_iter().for_each(|read| samples.learn(unit, read));
        })?;
        let mut active = Self {
            id,
            key,
            run: Run::new(plan.clone(), &committed),
            placed: BTreeMap::new(),
            untaken: BTreeMap::new(),
            progress,
            homeless: None,
            samples,
            next_sequence: store.next_sequence(key)?,
            blobs,
            quarantined: BTreeSet::new(),
            known_slices: store.slices(key)?.into_iter().collect(),
        };
        for (unit, result) in store.set_aside(key)? {
            if committed.contains_key(&unit) {
                active.add_quarantined(unit, &result);
            }
        }
        Ok(active)
    }

    pub(super) fn committed(&self) -> u32 {
        let committed = self.blobs.iter().filter(|blob| blob.is_some()).count();
        u32::try_from(committed).expect("unit ids are 32 bits")
    }

    /// Number of the last event.
    pub(super) const fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Keeps what later units need of a result; returns samples that were not told before.
    fn add_result(&mut self, id: UnitId, result: &UnitResult) -> Vec<RunEvent> {
        self.blobs[id.0 as usize] = Some(result.blob.digest);
        let unit = &self.run.plan().units[id.0 as usize];
        self.progress.commit(unit.component(), unit.rows);
        self.samples.add(unit, result);
        self.add_quarantined(id, result)
    }

    /// Remembers samples that were set aside; returns those that were not told before.
    fn add_quarantined(&mut self, unit: UnitId, result: &UnitResult) -> Vec<RunEvent> {
        let unit = &self.run.plan().units[unit.0 as usize];
        let Work::EncodeImages(work) = &unit.work else { return Vec::new() };
        let dataset = &work.dataset.name;
        let fresh = result
            .quarantined
            .iter()
            .filter(|sample| self.quarantined.insert((dataset.clone(), sample.position)));
        fresh
            .map(|sample| RunEvent::SampleQuarantined {
                dataset: dataset.clone(),
                sample: sample.sample.clone(),
                reason: sample.reason.clone(),
            })
            .collect()
    }

    /// Appends to the run's history.
    pub(super) fn record(
        &mut self,
        event: RunEvent,
        book: &mut Book<'_>,
    ) -> Result<(), StoreError> {
        let recorded = book.store.append(self.key, self.next_sequence, event, book.at)?;
        self.next_sequence += 1;
        book.outbox.tell(Live::Recorded(self.id.clone(), recorded));
        Ok(())
    }

    /// Writes what a command orders.
    pub(super) fn perform(
        &mut self,
        command: Command,
        result: Option<&UnitResult>,
        book: &mut Book<'_>,
    ) -> Result<Option<Answer>, StoreError> {
        match command {
            Command::Grant(attempt) => {
                book.store.lease_unit(self.key, &attempt, book.at)?;
                let Attempt { unit, number, token, session: _, slice } = attempt.clone();
                self.record(RunEvent::UnitLeased { unit, attempt: number, slice, token }, book)?;
                Ok(Some(Answer::Granted(attempt)))
            }
            Command::Commit(attempt) => {
                let result = result.expect("a unit is finished with its result");
                self.commit(attempt, result, book)?;
                Ok(Some(Answer::Commit(CommitOutcome::Committed)))
            }
            Command::AlreadyCommitted(_) => {
                Ok(Some(Answer::Commit(CommitOutcome::AlreadyCommitted)))
            }
            Command::Fence { unit, token } => {
                self.record(RunEvent::LateResult { unit, token }, book)?;
                Ok(Some(Answer::Commit(CommitOutcome::Fenced)))
            }
            Command::Failure { attempt, class, message, last } => {
                let Attempt { unit, number, token, session: _, slice } = attempt;
                self.untaken.remove(&token);
                book.store.fail_unit(self.key, unit, class, &message, last, book.at)?;
                let (attempt, slice) = (number, Some(slice));
                let event = RunEvent::UnitFailed { unit, attempt, slice, class, message, last };
                self.record(event, book).map(|()| None)
            }
            Command::Abandon { unit, outcome: UnitOutcome::Failed { class, message } } => {
                book.store.fail_unit(self.key, unit, class, &message, true, book.at)?;
                let (attempt, slice, last) = (0, None, true);
                let event = RunEvent::UnitFailed { unit, attempt, slice, class, message, last };
                self.record(event, book).map(|()| None)
            }
            // Cancelled units end with their run, in one statement. Revoked attempts are told at
            // the worker's next heartbeat, because they are no longer live.
            Command::Abandon { .. } | Command::Revoke { .. } => Ok(None),
            Command::End(state) => self.end(state, book).map(|()| None),
        }
    }

    fn commit(
        &mut self,
        attempt: Attempt,
        result: &UnitResult,
        book: &mut Book<'_>,
    ) -> Result<(), StoreError> {
        book.store.commit_unit(self.key, &attempt, result, book.at)?;
        let Attempt { unit, number: _, token, session: _, slice } = attempt;
        self.untaken.remove(&token);
        let quarantined = self.add_result(unit, result);
        let UnitResult { rows, timing, cached, .. } = result;
        let (rows, total_ms, cached) = (*rows, timing.total_ms, *cached);
        self.record(RunEvent::UnitCommitted { unit, slice, rows, total_ms, cached }, book)?;
        quarantined.into_iter().try_for_each(|event| self.record(event, book))
    }

    fn end(&mut self, state: RunState, book: &mut Book<'_>) -> Result<(), StoreError> {
        for progress in self.progress.all(&self.run) {
            book.outbox.tell(Live::Progress(self.id.clone(), book.at, progress));
        }
        book.store.end_run(self.key, state, self.next_sequence, book.at)?;
        self.record(RunEvent::StateChanged { state }, book)
    }

    /// Stores what a slice may hold, the first time that it works on this run.
    pub(super) fn know_slice(
        &mut self,
        slice: &SliceId,
        libtorch: &str,
        store: &Store,
    ) -> Result<(), StoreError> {
        match self.placed.get(slice) {
            Some(placement) if self.known_slices.insert(slice.clone()) => {
                store.insert_slice(self.key, placement, libtorch)
            }
            _ => Ok(()),
        }
    }

    /// The unit of an attempt with its inputs named by content.
    pub(super) fn assignment(&self, attempt: &Attempt) -> Assignment {
        let work = match self.run.plan().units[attempt.unit.0 as usize].work.clone() {
            Work::EncodeTexts(work) => AssignedWork::EncodeTexts(work),
            Work::EncodeImages(work) => AssignedWork::EncodeImages(work),
            Work::Rank(work) => AssignedWork::Rank(self.assigned_rank(work)),
        };
        Assignment {
            run: self.id.clone(),
            unit: attempt.unit,
            token: attempt.token,
            work,
            memory: self.run.plan().memory.clone(),
        }
    }

    fn assigned_rank(&self, work: Rank) -> AssignedRank {
        let Rank { dataset, texts, direction, queries, depth, text_units, image_units } = work;
        AssignedRank {
            dataset,
            texts,
            direction,
            queries,
            depth,
            text_blobs: self.inputs(text_units).map(|(_, digest)| digest).collect(),
            image_blobs: self
                .inputs(image_units)
                .map(|(unit, digest)| (self.shard(unit), digest))
                .collect(),
        }
    }

    fn inputs(&self, units: UnitRange) -> impl Iterator<Item = (UnitId, Digest)> {
        units.iter().map(|unit| {
            let blob = self.blobs[unit.0 as usize];
            (unit, blob.expect("a unit is granted after what it needs is committed"))
        })
    }

    fn shard(&self, unit: UnitId) -> Shard {
        match &self.run.plan().units[unit.0 as usize].work {
            Work::EncodeImages(work) => work.shard,
            Work::EncodeTexts(_) | Work::Rank(_) => {
                unreachable!("image ranges hold image units only")
            }
        }
    }
}
