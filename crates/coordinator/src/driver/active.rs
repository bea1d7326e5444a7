//! [`ActiveRun`]: a run in work, and what its commands write.

use std::collections::{BTreeMap, BTreeSet};

use orchestrator_plan::{Homeless, Placement, Plan, Rank, Unit, UnitRange, Work};
use orchestrator_run::{
    AssignedRank, AssignedWork, Assignment, Attempt, Command, Committed, Millis, Run, RunState,
    SampleDigests, Stragglers, Terms, UnitOutcome, UnitResult,
};
use orchestrator_types::{
    Component, DatasetName, Digest, FencingToken, NodeName, RunId, SessionId, SliceId, UnitId,
    planted::{Bug, is_planted},
};

use super::{CommitOutcome, Outbox, accounts::Accounts, history::History, progress::Tally};
use crate::{
    event::{Live, RunEvent},
    store::{CommittedRow, LeaseRow, RunKey, Store, StoreError},
};

/// A run in work.
pub(super) struct ActiveRun {
    pub id: RunId,
    pub key: RunKey,
    pub run: Run,
    /// What each connected slice may hold.
    pub placed: BTreeMap<SliceId, Placement>,
    /// The hosts that may run each component.
    homes: BTreeMap<Component, BTreeSet<NodeName>>,
    /// When each live attempt was granted.
    pub granted: BTreeMap<FencingToken, Granted>,
    pub progress: Tally,
    /// The component that no slice could hold when that was last looked at.
    pub homeless: Option<Homeless>,
    /// What images were read, for every worker reads the same.
    pub samples: SampleDigests,
    history: History,
    accounts: Accounts,
    /// Blobs of committed units.
    blobs: Vec<Option<Digest>>,
    /// Samples whose event was told.
    quarantined: BTreeSet<(DatasetName, u32)>,
    /// Slices whose row is stored.
    known_slices: BTreeSet<SliceId>,
}

/// The grant of a live attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    /// By the wall clock, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// When its worker spoke of it last; at first the grant itself.
    pub heard: Millis,
    /// Whether an earlier life of the coordinator granted it.
    pub inherited: bool,
}

/// Where a turn writes.
pub(super) struct Book<'a> {
    pub store: &'a Store,
    pub outbox: &'a mut Outbox,
    pub at: i64,
}

/// A result, and the unit whose it is.
#[derive(Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub unit: &'a Unit,
    pub result: &'a UnitResult,
}

/// What a command means for the caller.
#[derive(Debug)]
pub(super) enum Answer {
    Granted,
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
        stragglers: Stragglers,
    ) -> Result<Self, StoreError> {
        let plan = std::sync::Arc::new(plan);
        let (mut committed, mut blobs) = (BTreeMap::new(), vec![None; plan.units.len()]);
        let (mut progress, mut samples) = (Tally::new(&plan), SampleDigests::default());
        store.committed(key, |row| {
            let CommittedRow { unit: id, token, blob, samples: read, set_aside } = row;
            if lost.contains(&blob) {
                return;
            }
            if is_planted(Bug::CommittedForgotten) {
                return;
            }
            let set_aside = set_aside && !is_planted(Bug::SetAsideForgotten);
            committed.insert(id, Committed { token, set_aside });
            blobs[id.0 as usize] = Some(blob);
            progress.commit(plan.units.component(id), plan.units.rows(id));
            if let Some((read, unit)) = read.zip(plan.unit(id)) {
                samples.learn(&unit, read);
            }
        })?;
        let mut active = Self {
            id,
            key,
            run: Run::new(plan.clone(), &committed).with_stragglers(stragglers),
            placed: BTreeMap::new(),
            homes: BTreeMap::new(),
            granted: BTreeMap::new(),
            progress,
            homeless: None,
            samples,
            history: History::new(key, store)?,
            accounts: Accounts::of_run(key, store)?,
            blobs,
            quarantined: BTreeSet::new(),
            known_slices: store.slices(key)?.into_iter().collect(),
        };
        for (unit, result) in store.set_aside(key)? {
            let unit = active.run.plan().unit(unit).filter(|unit| committed.contains_key(&unit.id));
            if let Some(unit) = unit {
                active.add_quarantined(&unit, &result);
            }
        }
        Ok(active)
    }

    /// Takes over the attempts of an earlier life of the coordinator. Gives the sessions that hold
    /// them.
    pub(super) fn take_over(
        &mut self,
        now: Millis,
        store: &Store,
    ) -> Result<Vec<(SessionId, NodeName)>, StoreError> {
        let mut holders = Vec::new();
        for lease in store.leases(self.key)? {
            let LeaseRow { token, unit, number, session, node, slice, leased_unix_ms, probe } =
                lease;
            let holder = (session.clone(), node.clone());
            let (started, terms, elsewhere) = (now, Terms::default(), false);
            let attempt =
                Attempt { unit, number, token, session, node, slice, started, terms, elsewhere };
            // What a probe would show is not known any more.
            if probe || !self.run.take_over(attempt) {
                store.end_lease(token)?;
                continue;
            }
            let granted = Granted { at_unix_ms: leased_unix_ms, heard: now, inherited: true };
            self.granted.insert(token, granted);
            holders.push(holder);
        }
        Ok(holders)
    }

    /// Takes in where components may run.
    pub(super) fn place(&mut self, placements: Vec<Placement>) {
        self.homes.clear();
        for placement in &placements {
            for component in &placement.components {
                self.homes.entry(*component).or_default().insert(placement.node.clone());
            }
        }
        self.placed =
            placements.into_iter().map(|placement| (placement.slice.clone(), placement)).collect();
    }

    /// Its worker has spoken of the attempt.
    pub(super) fn hear_of(&mut self, token: FencingToken, now: Millis) {
        if let Some(granted) = self.granted.get_mut(&token) {
            (granted.heard, granted.inherited) = (now, false);
        }
    }

    /// Nobody could speak of attempts for a while.
    pub(super) fn renew(&mut self, now: Millis) {
        self.granted.values_mut().for_each(|granted| granted.heard = now);
    }

    /// Components that hosts other than `node` may run.
    pub(super) fn elsewhere(&self, node: &NodeName) -> Vec<Component> {
        let others = |homes: &BTreeSet<NodeName>| homes.iter().any(|home| home != node);
        let homes = self.homes.iter().filter(|(_, homes)| others(homes));
        homes.map(|(component, _)| *component).collect()
    }

    pub(super) fn committed(&self) -> u32 {
        let committed = self.blobs.iter().filter(|blob| blob.is_some()).count();
        u32::try_from(committed).expect("unit ids are 32 bits")
    }

    /// Number of the last event.
    pub(super) const fn last_sequence(&self) -> u64 {
        self.history.last_sequence()
    }

    /// Keeps what later units need of a result; returns samples that were not told before.
    fn add_result(&mut self, unit: &Unit, result: &UnitResult) -> Vec<RunEvent> {
        self.blobs[unit.id.0 as usize] = Some(result.blob.digest);
        self.progress.commit(unit.component(), unit.rows);
        self.samples.add(unit, result);
        self.add_quarantined(unit, result)
    }

    /// Remembers samples that were set aside; returns those that were not told before.
    fn add_quarantined(&mut self, unit: &Unit, result: &UnitResult) -> Vec<RunEvent> {
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
        self.history.record(&self.id, event, book.at, book.outbox)
    }

    /// Stores what was recorded in this turn.
    pub(super) fn write(&mut self, at: i64, store: &Store) -> Result<(), StoreError> {
        self.accounts.write(self.key, at, store)?;
        self.history.write(at, store)
    }

    /// Writes what a command orders.
    pub(super) fn perform(
        &mut self,
        command: Command,
        arrived: Option<Arrived<'_>>,
        book: &mut Book<'_>,
    ) -> Result<Option<Answer>, StoreError> {
        match command {
            Command::Grant(attempt) => {
                book.store.lease(self.key, &attempt, book.at)?;
                let Attempt { unit, number, token, slice, .. } = attempt.clone();
                self.record(RunEvent::UnitLeased { unit, attempt: number, slice, token }, book)?;
                Ok(Some(Answer::Granted))
            }
            Command::Commit(attempt) => {
                let arrived = arrived.expect("a unit is finished with its result");
                self.commit(&attempt, arrived, book)?;
                Ok(Some(Answer::Commit(CommitOutcome::Committed)))
            }
            Command::AlreadyCommitted(_) => {
                Ok(Some(Answer::Commit(CommitOutcome::AlreadyCommitted)))
            }
            Command::Fence { unit, token } => {
                self.record(RunEvent::LateResult { unit, token }, book)?;
                self.compare(unit, token, arrived.map(|arrived| arrived.result), book)?;
                Ok(Some(Answer::Commit(CommitOutcome::Fenced)))
            }
            Command::Failure { attempt, class, message, last } => {
                self.end_attempt(attempt.token, book)?;
                let Attempt { unit, number, slice, .. } = attempt;
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
            // Cancelled units end with their run, in one statement.
            Command::Abandon { .. } => Ok(None),
            // Told at the worker's next heartbeat, because it is no longer live.
            Command::Revoke(attempt) | Command::Release(attempt) => {
                self.end_attempt(attempt.token, book).map(|()| None)
            }
            Command::Note(attempt) => {
                self.end_attempt(attempt.token, book)?;
                Ok(Some(Answer::Commit(CommitOutcome::Noted)))
            }
            Command::End(state) => self.end(state, book).map(|()| None),
        }
    }

    fn commit(
        &mut self,
        attempt: &Attempt,
        Arrived { unit: planned, result }: Arrived<'_>,
        book: &mut Book<'_>,
    ) -> Result<(), StoreError> {
        let granted = self.granted.remove(&attempt.token).map(|granted| granted.at_unix_ms);
        book.store.commit_unit(self.key, attempt, granted, result, book.at)?;
        if let Some(account) = &result.account {
            self.accounts.add(&attempt.slice, account);
        }
        let (unit, slice) = (attempt.unit, attempt.slice.clone());
        let quarantined = self.add_result(planned, result);
        let UnitResult { rows, timing, cached, .. } = result;
        let (rows, total_ms, cached) = (*rows, timing.total_ms, *cached);
        self.record(RunEvent::UnitCommitted { unit, slice, rows, total_ms, cached }, book)?;
        quarantined.into_iter().try_for_each(|event| self.record(event, book))
    }

    fn end_attempt(&mut self, token: FencingToken, book: &mut Book<'_>) -> Result<(), StoreError> {
        self.granted.remove(&token);
        book.store.end_lease(token)
    }

    /// Tells when a late result has other bytes than the one that counts: then hardware or build
    /// is not to be trusted, or two kinds of GPU round differently.
    fn compare(
        &mut self,
        unit: UnitId,
        token: FencingToken,
        late: Option<&UnitResult>,
        book: &mut Book<'_>,
    ) -> Result<(), StoreError> {
        let committed = self.blobs.get(unit.0 as usize).copied().flatten();
        match (committed, late.map(|late| late.blob.digest)) {
            (Some(committed), Some(late)) if committed != late => {
                tracing::warn!(run = %self.id, %unit, %token, "two attempts gave different bytes");
                self.record(RunEvent::Divergence { unit, token, committed, late }, book)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, state: RunState, book: &mut Book<'_>) -> Result<(), StoreError> {
        for progress in self.progress.all(&self.run) {
            book.outbox.tell(Live::Progress(self.id.clone(), book.at, progress));
        }
        book.store.end_run(self.key, state, self.history.last_sequence() + 1, book.at)?;
        self.record(RunEvent::StateChanged { state }, book)?;
        self.write(book.at, book.store)
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
        let unit = self.run.plan().unit(attempt.unit);
        let work = match unit.expect("attempts are of units of the plan").work {
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
            alone: attempt.terms.alone,
            set_aside: attempt.terms.set_aside.clone(),
            set_aside_reason: attempt.terms.reason.clone(),
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
                .map(|(unit, digest)| {
                    let shard = self.run.plan().units.image_shard(unit);
                    (shard.expect("image ranges hold image units only"), digest)
                })
                .collect(),
        }
    }

    fn inputs(&self, units: UnitRange) -> impl Iterator<Item = (UnitId, Digest)> {
        units.iter().map(|unit| {
            let blob = self.blobs[unit.0 as usize];
            (unit, blob.expect("a unit is granted after what it needs is committed"))
        })
    }
}
