//! Clients: runs start, go on after an interruption, and are cancelled.

use std::collections::BTreeSet;

use orchestrator_plan::{Block, Plan};
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::{Command, Event, RunState};
use orchestrator_types::{
    Digest, RunId, UnitId,
    planted::{Bug, is_planted},
};

use super::{
    Driver, Resumed, Resumption, Submitted,
    active::{ActiveRun, Book},
};
use crate::{
    access::Caller,
    event::RunEvent,
    results,
    store::{RunKey, StoreError},
};

/// The refusal of a run that is not in the store.
pub(crate) fn unknown(run: &RunId) -> Refusal {
    let message = format!("there is no run {run} here; `orchestrator runs` lists the known ones");
    Refusal::new(RefusalCode::NotFound, message)
}

impl Driver {
    /// Stores and starts a run; a repeated submission gets the run of the first one.
    pub(super) fn submit(
        &mut self,
        submitted: Submitted,
    ) -> Result<Result<(RunId, u32), Refusal>, StoreError> {
        let Submitted { mut submission, plan } = submitted;
        if let Some(earlier) = self.store.run_of_request(&submission.request_id)? {
            if !is_planted(Bug::RetriesAreNew) {
                return Ok(Ok(earlier));
            }
            submission.id = crate::fresh_name();
            submission.request_id = submission.id.to_string();
        }
        // Slices may have left since it was planned.
        let components = plan.units.blocks().iter().map(Block::component).collect();
        if let Err(refusal) = self.misfit(&plan, &components) {
            return Ok(Err(refusal));
        }
        let key = self.store.insert_run(&submission, self.at_unix_ms)?;
        let active = self.active(submission.id.clone(), key, plan, &BTreeSet::new())?;
        self.start(active)?;
        Ok(Ok((submission.id, submission.units)))
    }

    /// Opens again what is not committed, and what was committed and is lost.
    pub(super) fn resume(
        &mut self,
        call: &Resumption,
    ) -> Result<Result<Resumed, Refusal>, StoreError> {
        let run = &call.run;
        if let Err(denied) = self.may_change(run, &call.by)? {
            return Ok(Err(denied));
        }
        if let Some(active) = self.runs.get(run) {
            return Ok(Ok(resumed(active, active.last_sequence())));
        }
        let Some(summary) = self.store.summary(run)? else { return Ok(Err(unknown(run))) };
        let Loaded { active, build, lost } = self.load(run, &call.lost)?;
        if summary.state == RunState::Complete && lost.is_empty() {
            // Its end is all that is left to tell.
            let end = summary.ended_sequence.unwrap_or_default();
            return Ok(Ok(resumed(&active, end.saturating_sub(1))));
        }
        let fits = self.same_build(&active, &build);
        let open = active.run.open_components();
        if let Err(refusal) = fits.and_then(|()| self.misfit(active.run.plan(), &open)) {
            return Ok(Err(refusal));
        }
        let answer = resumed(&active, active.last_sequence());
        results::discard(&self.settings.state, run)?;
        self.store.reopen_run(active.key, &self.settings.build, &lost)?;
        self.start(active)?;
        Ok(Ok(answer))
    }

    /// Whether results of this build may stand beside those that are committed.
    fn same_build(&self, active: &ActiveRun, build: &str) -> Result<(), Refusal> {
        if build == self.settings.build || active.committed() == 0 {
            return Ok(());
        }
        let message = format!(
            "run {} was begun by build {build}, and this is build {}; go on with the build that \
             began it, or submit the evaluation again",
            active.id, self.settings.build
        );
        Err(Refusal::new(RefusalCode::Stale, message))
    }

    /// Whether this caller may end or continue the run, if there is one.
    pub(super) fn may_change(
        &self,
        run: &RunId,
        by: &Caller,
    ) -> Result<Result<(), Refusal>, StoreError> {
        if self.store.run_state(run)?.is_none() {
            return Ok(Ok(()));
        }
        Ok(by.may_change(self.store.owner(run)?.as_deref()))
    }

    pub(super) fn cancel(
        &mut self,
        run: &RunId,
        by: &Caller,
    ) -> Result<Result<(), Refusal>, StoreError> {
        if let Err(denied) = self.may_change(run, by)? {
            return Ok(Err(denied));
        }
        if self.runs.contains_key(run) {
            self.apply(run, Event::Cancel, None)?;
            return Ok(Ok(()));
        }
        match self.store.run_state(run)? {
            None => Ok(Err(unknown(run))),
            // Interrupted by a crash, and not in work: it ends without having gone on.
            Some((_, RunState::Running)) => {
                let mut active = self.load(run, &BTreeSet::new())?.active;
                self.end(&mut active, RunState::Cancelled)?;
                Ok(Ok(()))
            }
            Some(_) => Ok(Ok(())),
        }
    }

    fn start(&mut self, mut active: ActiveRun) -> Result<(), StoreError> {
        let mut book = Book { store: &self.store, outbox: &mut self.outbox, at: self.at_unix_ms };
        active.record(RunEvent::StateChanged { state: RunState::Running }, &mut book)?;
        match active.run.state() {
            RunState::Running => {
                self.runs.insert(active.id.clone(), active);
                self.unplaced = true;
                Ok(())
            }
            // Nothing was left to do.
            ended => self.end(&mut active, ended),
        }
    }

    fn end(&mut self, active: &mut ActiveRun, state: RunState) -> Result<(), StoreError> {
        let mut book = Book { store: &self.store, outbox: &mut self.outbox, at: self.at_unix_ms };
        active.perform(Command::End(state), None, &mut book).map(drop)
    }

    /// A run that has ended is no longer in work; until that is stored, it may have to come back.
    pub(super) fn forget_if_ended(&mut self, run: &RunId) {
        if self.runs.get(run).is_some_and(|active| active.run.state() != RunState::Running) {
            self.runs.remove(run);
            if !is_planted(Bug::EndNotTakenBack) {
                self.ended.push(run.clone());
            }
        }
    }

    /// A run of which the store knows, without the units whose blobs are `lost`.
    fn load(&self, run: &RunId, lost: &BTreeSet<Digest>) -> Result<Loaded, StoreError> {
        let known = "a known run has a row and its documents";
        let (key, _) = self.store.run_state(run)?.expect(known);
        let documents = self.store.documents(run)?.expect(known);
        let active = self.active(run.clone(), key, documents.plan, lost)?;
        let mut units = Vec::new();
        if !lost.is_empty() {
            self.store.committed(key, |row| {
                units.extend(lost.contains(&row.blob).then_some(row.unit));
            })?;
        }
        Ok(Loaded { active, build: documents.build, lost: units })
    }

    fn active(
        &self,
        run: RunId,
        key: RunKey,
        plan: Plan,
        lost: &BTreeSet<Digest>,
    ) -> Result<ActiveRun, StoreError> {
        ActiveRun::new(run, key, plan, lost, &self.store, self.settings.stragglers)
    }

    /// Takes up every run that has not ended.
    pub(super) fn load_running(&mut self) -> Result<(), StoreError> {
        for run in self.store.running()? {
            let Loaded { active, build, .. } = self.load(&run, &BTreeSet::new())?;
            match self.same_build(&active, &build) {
                Ok(()) => self.go_on_with(active)?,
                Err(refusal) => tracing::warn!(%refusal, "an interrupted run is left alone"),
            }
        }
        self.place();
        Ok(())
    }

    /// Makes memory what the store says, after a transaction failed.
    pub(super) fn reload(&mut self) -> Result<(), StoreError> {
        self.store.roll_back()?;
        while let Some(run) = self.stale.last().cloned() {
            self.take_up(&run)?;
            self.stale.pop();
        }
        self.failed = false;
        self.place();
        Ok(())
    }

    fn take_up(&mut self, run: &RunId) -> Result<(), StoreError> {
        if let Some((_, RunState::Running)) = self.store.run_state(run)? {
            let active = self.load(run, &BTreeSet::new())?.active;
            self.go_on_with(active)?;
        }
        Ok(())
    }

    /// Works on a run again, with the attempts that workers still have.
    fn go_on_with(&mut self, mut active: ActiveRun) -> Result<(), StoreError> {
        for (session, node) in active.take_over(self.now, &self.store)? {
            self.sessions.expect(&session, &node, self.now);
        }
        self.runs.insert(active.id.clone(), active);
        Ok(())
    }
}

/// A run as the store knows it.
struct Loaded {
    active: ActiveRun,
    /// The build that began it.
    build: String,
    /// Units that were committed and are open again.
    lost: Vec<UnitId>,
}

fn resumed(active: &ActiveRun, after: u64) -> Resumed {
    let units = active.run.plan().units.len();
    Resumed {
        committed: active.committed(),
        units: u32::try_from(units).expect("unit ids are 32 bits"),
        after,
    }
}
