//! Clients: runs start, go on after an interruption, and are cancelled.

use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::{Command, Event, RunState};
use orchestrator_types::RunId;

use super::{
    CommittedUnits, Driver, Submitted,
    active::{ActiveRun, Book},
};
use crate::{
    event::RunEvent,
    store::{RunKey, StoreError},
};

/// The refusal of a run that is not in the store.
pub(crate) fn unknown(run: &RunId) -> Refusal {
    let message = format!("there is no run {run} here; `orchestrator runs` lists the known ones");
    Refusal::new(RefusalCode::NotFound, message)
}

impl Driver {
    /// Stores and starts a run; a repeated submission gets the run of the first one.
    pub(super) fn submit(&mut self, submitted: Submitted) -> Result<(RunId, u32), StoreError> {
        let Submitted { submission, plan } = submitted;
        if let Some(earlier) = self.store.run_of_request(&submission.request_id)? {
            return Ok(earlier);
        }
        let key = self.store.insert_run(&submission, self.at_unix_ms)?;
        let active = ActiveRun::new(submission.id.clone(), key, plan, &[], &self.store)?;
        self.start(active)?;
        Ok((submission.id, submission.units))
    }

    /// Opens what is not committed again.
    pub(super) fn resume(
        &mut self,
        run: &RunId,
    ) -> Result<Result<CommittedUnits, Refusal>, StoreError> {
        if !self.runs.contains_key(run) {
            let Some((key, state)) = self.store.run_state(run)? else {
                return Ok(Err(unknown(run)));
            };
            let active = self.load(run, key)?;
            let counts = counts(&active);
            if state != RunState::Complete {
                self.store.reopen_run(key)?;
                self.start(active)?;
            }
            return Ok(Ok(counts));
        }
        Ok(Ok(counts(&self.runs[run])))
    }

    pub(super) fn cancel(&mut self, run: &RunId) -> Result<Result<(), Refusal>, StoreError> {
        if self.runs.contains_key(run) {
            self.apply(run, Event::Cancel, None)?;
            return Ok(Ok(()));
        }
        match self.store.run_state(run)? {
            None => Ok(Err(unknown(run))),
            // Interrupted by a crash, and not in work: it ends without having gone on.
            Some((key, RunState::Running)) => {
                let mut active = self.load(run, key)?;
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
                self.place();
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

    pub(super) fn forget_if_ended(&mut self, run: &RunId) {
        if self.runs.get(run).is_some_and(|active| active.run.state() != RunState::Running) {
            self.runs.remove(run);
        }
    }

    fn load(&self, run: &RunId, key: RunKey) -> Result<ActiveRun, StoreError> {
        let documents = self.store.documents(run)?.expect("a run with a state has its documents");
        let units = self.store.units(key)?;
        ActiveRun::new(run.clone(), key, documents.plan, &units, &self.store)
    }

    /// Takes up every run that has not ended.
    pub(super) fn load_running(&mut self) -> Result<(), StoreError> {
        for run in self.store.running()? {
            self.take_up(&run)?;
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
        if let Some((key, RunState::Running)) = self.store.run_state(run)? {
            let active = self.load(run, key)?;
            self.runs.insert(run.clone(), active);
        }
        Ok(())
    }
}

fn counts(active: &ActiveRun) -> CommittedUnits {
    let units = active.run.plan().units.len();
    CommittedUnits {
        committed: active.committed(),
        units: u32::try_from(units).expect("unit ids are 32 bits"),
    }
}
