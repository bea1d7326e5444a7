//! The one thread that decides: runs, sessions, waiting workers and the store are its own.
//!
//! gRPC handlers send a [`Request`] through one bounded channel and await the answer. A *turn* takes
//! what is queued, steps the runs, and writes all changes as one transaction (group commit); only
//! when that is durable do replies and events leave. A turn whose transaction fails answers nobody
//! and loads its runs from the store again, which is exactly what a restart does.
//!
//! Invariant: nothing here waits but for the next request and the disk. Time is passed in.
//! Absent on purpose: networks, planning, blobs.

mod active;
mod outbox;
mod progress;
mod request;
mod runs;
mod sessions;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use orchestrator_plan::{Inventory, Plan, homeless, place_again};
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::Millis;
use orchestrator_types::{Component, RunId};
use tokio::sync::broadcast;

use self::{active::ActiveRun, outbox::Outbox, request::Reply, sessions::Sessions, work::Waiting};
use crate::{
    clock::Clock,
    event::Live,
    life::Life,
    store::{Store, StoreError},
};

pub(crate) use request::{
    AttemptReport, CommitOutcome, DriverHandle, FailedUnit, FinishedUnit, LeaseCall, Registered,
    Registration, Request, Resumed, Resumption, Submitted, handle,
};
pub(crate) use runs::unknown;

/// Longest pause between two looks at the clock: the grain of leases and backoffs.
const TICK: Duration = Duration::from_millis(50);
/// Requests in one transaction: more would only delay the first of them.
const BATCH: usize = 256;
/// Pause after a failed transaction, so that a full disk is not hammered.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);

/// What the driver must know about its surroundings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The state folder.
    pub state: PathBuf,
    /// This build: runs that another one began are not mixed with its numbers.
    pub build: String,
    /// How often a worker reports.
    pub heartbeat_ms: u32,
    /// Silence after which a worker is lost.
    pub lease_ms: u32,
    /// Slices that planning waits for.
    pub expected_slices: usize,
    /// For how long it waits.
    pub slice_wait_ms: u64,
    /// Whether runs that a crash interrupted go on by themselves.
    pub continue_interrupted: bool,
}

/// See the module's documentation.
pub(crate) struct Driver {
    store: Store,
    settings: Settings,
    clock: Arc<dyn Clock>,
    sessions: Sessions,
    /// Runs that have not ended; ids sort by age.
    runs: BTreeMap<RunId, ActiveRun>,
    /// Slices that wait for a unit, longest first; at most one entry a slice.
    waiting: Vec<Waiting>,
    /// Submissions that wait for slices to plan on, with their deadline.
    planning: Vec<(Millis, Reply<Inventory>)>,
    outbox: Outbox,
    /// The last transaction failed: memory and store may differ.
    failed: bool,
    /// Runs to load again before anything else.
    stale: Vec<RunId>,
    now: Millis,
    at_unix_ms: i64,
}

impl Driver {
    /// A driver over an open store.
    pub(crate) fn new(
        store: Store,
        settings: Settings,
        clock: Arc<dyn Clock>,
        live: broadcast::Sender<Arc<Live>>,
    ) -> Result<Self, StoreError> {
        let (now, at_unix_ms) = (clock.now(), clock.unix_ms());
        let mut driver = Self {
            store,
            settings,
            clock,
            sessions: Sessions::default(),
            runs: BTreeMap::new(),
            waiting: Vec::new(),
            planning: Vec::new(),
            outbox: Outbox::new(live),
            failed: false,
            stale: Vec::new(),
            now,
            at_unix_ms,
        };
        if driver.settings.continue_interrupted {
            driver.load_running()?;
        }
        Ok(driver)
    }

    /// Works until `life` ends, then closes the store. A panic ends `life`.
    pub(crate) fn work(mut self, requests: &Receiver<Request>, life: &Life) {
        let _guard = life.guard();
        while !life.stop().is_cancelled() {
            let mut batch = Vec::new();
            match requests.recv_timeout(TICK) {
                Ok(first) => batch.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            batch.extend(requests.try_iter().take(BATCH - 1));
            if let Err(error) = self.turn(batch) {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "a turn was rolled back");
                std::thread::sleep(FAILURE_PAUSE);
            }
        }
        if let Err(error) = self.store.close() {
            tracing::warn!(%error, "the store was not closed; the next start checks it");
        }
    }

    /// One turn; replies and events have left when it returns `Ok`.
    pub(crate) fn turn(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        (self.now, self.at_unix_ms) = (self.clock.now(), self.clock.unix_ms());
        if self.failed {
            self.reload()?;
        }
        let done = self.transact(requests);
        if done.is_ok() {
            self.outbox.deliver();
        } else {
            self.failed = true;
            self.outbox.clear();
            self.stale.extend(std::mem::take(&mut self.runs).into_keys());
        }
        done
    }

    fn transact(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        self.store.begin()?;
        for request in requests {
            self.take(request)?;
        }
        self.expire()?;
        self.serve_waiting()?;
        self.serve_planning();
        self.tell_progress();
        self.store.commit()
    }

    fn take(&mut self, request: Request) -> Result<(), StoreError> {
        match request {
            Request::Inventory(reply) => {
                let deadline = self.now.after(self.settings.slice_wait_ms);
                self.planning.push((deadline, reply));
                Ok(())
            }
            Request::Submit(submission, reply) => {
                let answer = self.submit(*submission)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Resume(call, reply) => {
                let answer = self.resume(&call)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Cancel(run, reply) => {
                let answer = self.cancel(&run)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Register(worker, reply) => {
                let answer = self.register(worker)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Heartbeat(session, attempts, reply) => {
                let answer = self.heartbeat(&session, &attempts);
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Lease(call, reply) => {
                self.lease(call, reply);
                Ok(())
            }
            Request::Commit(finished, reply) => {
                let answer = self.commit(&finished)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Fail(failed, reply) => {
                let answer = self.fail(failed)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
        }
    }

    /// Ends sessions that are silent and attempts that nobody took.
    fn expire(&mut self) -> Result<(), StoreError> {
        let lease_ms = u64::from(self.settings.lease_ms);
        for session in self.sessions.silent(self.now, lease_ms) {
            self.lose(&session, &format!("silent for {lease_ms} ms"))?;
        }
        self.expire_untaken(lease_ms)
    }

    /// Answers submissions that wait for slices, once there are enough or time is up.
    fn serve_planning(&mut self) {
        let inventory = self.sessions.inventory();
        let enough = inventory.slices.len() >= self.settings.expected_slices.max(1);
        let now = self.now;
        for (_, reply) in self.planning.extract_if(.., |(deadline, _)| enough || *deadline <= now) {
            let answer =
                if inventory.slices.is_empty() { Err(no_slice()) } else { Ok(inventory.clone()) };
            self.outbox.reply(reply, answer);
        }
    }

    fn tell_progress(&mut self) {
        for (id, active) in &mut self.runs {
            for progress in active.progress.changes(&active.run, self.now) {
                self.outbox.tell(Live::Progress(id.clone(), self.at_unix_ms, progress));
            }
        }
    }

    /// Decides again which slice may hold what, after slices came or went.
    ///
    /// A run whose slices have left is refused by nobody: it waits, and says so in the log, because
    /// they may come back at any time. Only who submits or resumes is told at once.
    fn place(&mut self) {
        let inventory = self.sessions.inventory();
        for active in self.runs.values_mut() {
            let left = |unit| active.run.outcome(unit).is_none();
            let placements = place_again(active.run.plan(), &inventory, left);
            let open = active.run.open_components();
            let missing = homeless(active.run.plan(), &placements, &open);
            if let Some(missing) = missing.as_ref().filter(|_| missing != active.homeless) {
                tracing::warn!(run = %active.id, %missing, "a run waits for a larger slice");
            }
            active.homeless = missing;
            active.placed = by_slice(placements);
        }
    }

    /// Why a run with these open components cannot go on with the slices that are there now.
    fn misfit(&self, plan: &Plan, open: &BTreeSet<Component>) -> Result<(), Refusal> {
        if open.is_empty() {
            return Ok(());
        }
        let inventory = self.sessions.inventory();
        if inventory.slices.is_empty() {
            return Err(no_slice());
        }
        match homeless(plan, &place_again(plan, &inventory, |_| true), open) {
            Some(missing) => Err(Refusal::new(RefusalCode::DoesNotFit, missing.to_string())),
            None => Ok(()),
        }
    }
}

fn no_slice() -> Refusal {
    let message = "no worker is connected, so there is nothing to run on; wait for one and \
                   try again";
    Refusal::new(RefusalCode::Unavailable, message)
}

fn by_slice(
    placements: Vec<orchestrator_plan::Placement>,
) -> BTreeMap<orchestrator_types::SliceId, orchestrator_plan::Placement> {
    placements.into_iter().map(|placement| (placement.slice.clone(), placement)).collect()
}
