//! The one task that decides: runs, sessions, waiting workers and the store are its own.
//!
//! gRPC handlers send a [`Request`] through one bounded channel and await the answer. A *turn* takes
//! what is queued, steps the runs, and writes all changes as one transaction (group commit); only
//! when that is durable do replies and events leave. A turn whose transaction fails answers nobody
//! and loads its runs from the store again, which is exactly what a restart does.
//!
//! Invariant: nothing here waits but for the next request and the disk. Time is passed in. It has a
//! thread of its own where the disk is real; in a simulation it shares the only one.
//! Absent on purpose: networks, planning, blobs.

mod accounts;
mod active;
mod history;
mod outbox;
mod pause;
mod progress;
mod request;
mod runs;
mod sessions;
mod snapshot;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use orchestrator_plan::{Inventory, Plan, homeless, place_again};
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::{Event, Millis, Stragglers};
use orchestrator_types::{
    Component, RunId,
    planted::{Bug, is_planted},
};
use tokio::{
    sync::{broadcast, mpsc::Receiver},
    time::sleep,
};

use self::{
    active::ActiveRun, outbox::Outbox, request::Reply, sessions::Sessions, work::Ending,
    work::Waiting,
};
use crate::{
    clock::Clock,
    event::Live,
    life::Life,
    metrics::Metrics,
    store::{Store, StoreError},
};

pub(crate) use pause::Pause;
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
    /// When a slow attempt gets a twin.
    pub stragglers: Stragglers,
    /// For how long runs wait when no worker is left at all.
    pub no_worker_ms: u64,
    /// Whether other machines may call, and nothing is encrypted.
    pub insecure: bool,
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
    /// Runs that end with the transaction at hand.
    ended: Vec<RunId>,
    /// Runs to load again before anything else.
    stale: Vec<RunId>,
    pause: Pause,
    /// When the next write is tried, while paused.
    write_again_at: Millis,
    /// Since when no worker is connected.
    deserted: Option<Millis>,
    /// Slices or runs came or went since it was decided last who may hold what.
    unplaced: bool,
    pub(super) metrics: Metrics,
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
        pause: Pause,
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
            ended: Vec::new(),
            stale: Vec::new(),
            pause,
            write_again_at: now,
            deserted: None,
            unplaced: false,
            metrics: Metrics::default(),
            now,
            at_unix_ms,
        };
        if driver.settings.continue_interrupted {
            driver.load_running()?;
        }
        Ok(driver)
    }

    /// The same driver, which tells these figures.
    #[must_use]
    pub(crate) fn measured(mut self, metrics: Metrics) -> Self {
        self.outbox = self.outbox.measured(metrics.clone());
        self.metrics = metrics;
        self
    }

    /// Works until `life` ends, then closes the store. A panic ends `life`.
    pub(crate) async fn work(mut self, mut requests: Receiver<Request>, life: Life) {
        let _guard = life.guard();
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = life.stop().cancelled() => break,
                // None left: nobody can ask any more.
                taken = requests.recv_many(&mut batch, BATCH) => if taken == 0 { break },
                () = sleep(TICK) => {}
            }
            if let Err(error) = self.turn(std::mem::take(&mut batch)) {
                if self.pause.reason().is_none() {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, cause, "a turn was rolled back");
                }
                sleep(FAILURE_PAUSE).await;
            }
        }
        if let Err(error) = self.store.close() {
            tracing::warn!(%error, "the store was not closed; the next start checks it");
        }
    }

    /// One turn; replies and events have left when it returns `Ok`.
    pub(crate) fn turn(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        (self.now, self.at_unix_ms) = (self.clock.now(), self.clock.unix_ms());
        if is_planted(Bug::WallClock) {
            self.now = Millis(self.at_unix_ms.unsigned_abs());
        }
        if !self.writable() {
            self.wait_out(requests);
            return Ok(());
        }
        let (begun, asked) = (Instant::now(), requests.len());
        let loaded = if self.failed { self.reload() } else { Ok(()) };
        let done = loaded.and_then(|()| self.transact(requests));
        self.metrics.turned(asked, begun, done.is_ok());
        match &done {
            Ok(()) => {
                self.ended.clear();
                self.metrics.stand(self.standing());
                self.outbox.deliver();
            }
            Err(error) => self.rolled_back(error),
        }
        done
    }

    fn transact(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        self.store.begin()?;
        for request in requests {
            self.take(request)?;
        }
        self.expire()?;
        self.place_if_changed();
        self.serve_waiting()?;
        self.serve_planning();
        self.tell_progress();
        for active in self.runs.values_mut() {
            active.write(self.at_unix_ms, &self.store)?;
        }
        if is_planted(Bug::ToldBeforeDurable) {
            self.outbox.deliver();
        }
        self.store.commit()
    }

    fn take(&mut self, request: Request) -> Result<(), StoreError> {
        match request {
            Request::Inventory(reply) => {
                let deadline = self.now.after(self.settings.slice_wait_ms);
                self.planning.push((deadline, reply));
                Ok(())
            }
            Request::Snapshot(reply) => {
                self.place_if_changed();
                let answer = Ok(self.snapshot());
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Submit(submission, reply) => {
                let answer = self.submit(*submission)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::MayChange(run, by, reply) => {
                let answer = self.may_change(&run, &by)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Resume(call, reply) => {
                let answer = self.resume(&call)?;
                self.outbox.reply(reply, answer);
                Ok(())
            }
            Request::Cancel(run, by, reply) => {
                let answer = self.cancel(&run, &by)?;
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
            Request::Commit(session, finished, reply) => {
                let answers: Result<Vec<_>, StoreError> =
                    finished.iter().map(|one| self.commit(&session, one)).collect();
                self.outbox.reply(reply, Ok(answers?));
                Ok(())
            }
            Request::Goodbye(session, reason, reply) => {
                self.end_session(&session, &Ending::Left(reason))?;
                self.outbox.reply(reply, Ok(()));
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
            let silent = Ending::Lost(format!("silent for {lease_ms} ms"));
            self.end_session(&session, &silent)?;
        }
        self.expire_unheard(lease_ms)?;
        self.expire_runs()
    }

    /// Ends runs for which no worker is there any more: a user shall not wait for ever.
    fn expire_runs(&mut self) -> Result<(), StoreError> {
        if self.runs.is_empty() || !self.sessions.is_empty() {
            self.deserted = None;
            return Ok(());
        }
        let since = *self.deserted.get_or_insert(self.now);
        if since.after(self.settings.no_worker_ms) > self.now {
            return Ok(());
        }
        let runs: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in runs {
            let seconds = self.settings.no_worker_ms / 1_000;
            let message =
                format!("no worker was connected for {seconds} s; start some, then resume the run");
            self.apply(&run, Event::Deserted { message }, None)?;
        }
        Ok(())
    }

    /// Answers submissions that wait for slices, once there are enough or time is up.
    fn serve_planning(&mut self) {
        if self.planning.is_empty() {
            return;
        }
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
    fn place_if_changed(&mut self) {
        if std::mem::take(&mut self.unplaced) {
            self.place();
        }
    }

    /// See [`Driver::place_if_changed`].
    fn place(&mut self) {
        let inventory = self.sessions.inventory();
        for active in self.runs.values_mut() {
            let left = |unit| active.run.outcome(unit).is_none();
            let placements = place_again(active.run.plan(), &inventory, left);
            let open = active.run.open_components();
            let missing = homeless(active.run.plan(), &placements, &open);
            // Without any slice there is nothing to tell of its size.
            let told = missing != active.homeless && !inventory.slices.is_empty();
            if let Some(missing) = missing.as_ref().filter(|_| told) {
                tracing::warn!(run = %active.id, %missing, "a run waits for a larger slice");
            }
            active.homeless = missing;
            active.place(placements);
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
