//! The driver with real runs and a real store, a clock that stands still, and no network.

mod owners;
mod pause;
mod resume;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use orchestrator_plan::{SliceOffer, Work};
use orchestrator_run::{AssignedWork, Assignment, QuarantinedSample, RunState, UnitResult};
use orchestrator_types::{
    ByteCount, Digest, FailureClass, FencingToken, SampleId, SessionId, SliceId,
};
use tokio::sync::oneshot;

use super::{request::FailedUnit, *};
use crate::{
    event::{Recorded, RunEvent},
    fixtures,
    store::{Reader, UnitStage},
};

const LEASE_MS: u32 = 1_000;
const NO_WORKER_MS: u64 = 120_000;

#[derive(Default)]
struct StandingClock(AtomicU64);

impl Clock for StandingClock {
    fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::Relaxed))
    }

    fn unix_ms(&self) -> i64 {
        1_700_000_000_000 + self.now().0.cast_signed()
    }
}

struct Bench {
    driver: Driver,
    clock: Arc<StandingClock>,
    live: broadcast::Receiver<Arc<Live>>,
    state: tempfile::TempDir,
}

struct Worker {
    session: SessionId,
    slice: SliceId,
}

impl Bench {
    fn new() -> Self {
        Self::in_folder(tempfile::tempdir().unwrap())
    }

    fn in_folder(state: tempfile::TempDir) -> Self {
        let settings = Settings {
            state: state.path().to_owned(),
            build: orchestrator_proto::BUILD.to_owned(),
            heartbeat_ms: 200,
            lease_ms: LEASE_MS,
            expected_slices: 1,
            slice_wait_ms: 500,
            continue_interrupted: true,
            stragglers: Stragglers::default(),
            no_worker_ms: NO_WORKER_MS,
            insecure: false,
        };
        let clock = Arc::new(StandingClock::default());
        let (sender, live) = broadcast::channel(10_000);
        let store = Store::open(state.path()).unwrap();
        let driver = Driver::new(store, settings, clock.clone(), sender, Pause::default()).unwrap();
        Self { driver, clock, live, state }
    }

    /// As after `kill -9`, and started again.
    fn crash_and_restart(self) -> Self {
        let Self { driver, state, .. } = self;
        drop(driver);
        Self::in_folder(state)
    }

    fn pass(&mut self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
        self.driver.turn(Vec::new()).unwrap();
    }

    fn send<T>(
        &mut self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> oneshot::Receiver<Result<T, Refusal>> {
        let (reply, answer) = oneshot::channel();
        // A failed turn is seen by its missing answer.
        drop(self.driver.turn(vec![request(reply)]));
        answer
    }

    fn ask<T>(&mut self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Refusal> {
        self.send(request).try_recv().expect("answered at once")
    }

    fn worker(&mut self, node: &str) -> Worker {
        self.worker_with(fixtures::offer(node, 0))
    }

    fn worker_with(&mut self, offer: SliceOffer) -> Worker {
        let worker = Worker { session: crate::fresh_name(), slice: offer.id.clone() };
        let registration = Registration {
            identity: None,
            session: worker.session.clone(),
            node: offer.node.clone(),
            slices: vec![offer],
            libtorch: "2.11.0".into(),
            held: Vec::new(),
            withdrawn: Vec::new(),
        };
        self.ask(|reply| Request::Register(registration, reply)).unwrap();
        worker
    }

    fn lose(&mut self, worker: &Worker) {
        self.driver.end_session(&worker.session, &Ending::Lost("test".into())).unwrap();
    }

    fn submit(&mut self, request_id: &str) -> (RunId, u32) {
        let inventory = self.ask(Request::Inventory).unwrap();
        let submitted = Box::new(fixtures::submitted(request_id, &inventory));
        self.ask(|reply| Request::Submit(submitted, reply)).unwrap()
    }

    fn call(worker: &Worker, request_id: &str, wait_ms: u64) -> LeaseCall {
        LeaseCall {
            session: worker.session.clone(),
            slice: worker.slice.clone(),
            request_id: request_id.into(),
            wait_ms,
            count: 1,
        }
    }

    fn lease(&mut self, worker: &Worker) -> Option<Assignment> {
        let call = Self::call(worker, &crate::fresh_name::<SessionId>().to_string(), 0);
        self.ask(|reply| Request::Lease(call, reply)).unwrap().pop()
    }

    fn commit(
        &mut self,
        worker: &Worker,
        assignment: &Assignment,
    ) -> Result<CommitOutcome, Refusal> {
        let result = fixtures::result(assignment);
        self.commit_with(worker, assignment, result)
    }

    fn commit_with(
        &mut self,
        worker: &Worker,
        assignment: &Assignment,
        result: UnitResult,
    ) -> Result<CommitOutcome, Refusal> {
        let finished = vec![FinishedUnit {
            run: assignment.run.clone(),
            unit: assignment.unit,
            token: assignment.token,
            result,
        }];
        let session = worker.session.clone();
        let answers = self.ask(|reply| Request::Commit(session, finished, reply));
        answers.map(|mut answers| answers.pop().expect("one result, one answer"))
    }

    fn heartbeat(&mut self, worker: &Worker, tokens: &[FencingToken]) -> Vec<FencingToken> {
        let report = |&token| AttemptReport { token, done: 1, total: 2 };
        let reports = tokens.iter().map(report).collect();
        let session = worker.session.clone();
        self.ask(|reply| Request::Heartbeat(session, reports, reply)).unwrap()
    }

    /// Leases and commits until nothing is left; the number of commits.
    fn finish(&mut self, worker: &Worker) -> u32 {
        let mut commits = 0;
        while let Some(assignment) = self.lease(worker) {
            assert_eq!(self.commit(worker, &assignment), Ok(CommitOutcome::Committed));
            commits += 1;
        }
        commits
    }

    fn events(&self, run: &RunId) -> Vec<Recorded> {
        Reader::open(self.state.path()).unwrap().events(run, 0, 10_000).unwrap()
    }

    fn count(&self, run: &RunId, wanted: impl Fn(&RunEvent) -> bool) -> usize {
        self.events(run).iter().filter(|recorded| wanted(&recorded.event)).count()
    }

    fn state_of(&self, run: &RunId) -> RunState {
        Reader::open(self.state.path()).unwrap().run(run).unwrap().unwrap().state
    }

    /// Told live, in order, without progress.
    fn told(&mut self) -> Vec<Recorded> {
        let mut told = Vec::new();
        while let Ok(live) = self.live.try_recv() {
            if let Live::Recorded(_, recorded) = &*live {
                told.push(recorded.clone());
            }
        }
        told
    }
}

#[test]
fn a_run_ends_complete_with_every_unit_committed_once() {
    let mut bench = Bench::new();
    let worker = bench.worker("n");
    let (run, units) = bench.submit("r");
    assert_eq!(bench.finish(&worker), units);
    assert_eq!(bench.state_of(&run), RunState::Complete);
    let rows = Reader::open(bench.state.path()).unwrap().units(&run).unwrap();
    assert_eq!(rows.len(), units as usize);
    assert!(rows.iter().all(|row| row.stage == UnitStage::Committed && row.attempts == 1));
    let events = bench.events(&run);
    let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=u64::from(units) * 2 + 2).collect::<Vec<_>>());
    assert!(events.last().unwrap().event.is_end());
    assert_eq!(bench.told(), events, "live events are the stored ones, in order");
    assert!(bench.driver.runs.is_empty(), "an ended run takes no memory");
}

#[test]
fn ranking_units_get_the_blobs_of_the_units_they_need() {
    let mut bench = Bench::new();
    let worker = bench.worker("n");
    bench.submit("r");
    let mut blobs = BTreeMap::new();
    let mut ranks = 0;
    while let Some(assignment) = bench.lease(&worker) {
        if let AssignedWork::Rank(rank) = &assignment.work {
            ranks += 1;
            let plan = bench.driver.runs[&assignment.run].run.plan().clone();
            let Work::Rank(planned) = plan.unit(assignment.unit).unwrap().work else {
                panic!("a unit keeps its kind")
            };
            let expected = |units: orchestrator_plan::UnitRange| -> Vec<Digest> {
                units.iter().map(|unit| blobs[&unit]).collect()
            };
            assert_eq!(rank.text_blobs, expected(planned.text_units));
            let images: Vec<Digest> = rank.image_blobs.iter().map(|(_, blob)| *blob).collect();
            assert_eq!(images, expected(planned.image_units));
        }
        blobs.insert(assignment.unit, fixtures::result(&assignment).blob.digest);
        bench.commit(&worker, &assignment).unwrap();
    }
    assert!(ranks > 0);
}

#[test]
fn the_same_request_gets_the_same_answer() {
    let mut bench = Bench::new();
    let worker = bench.worker("n");
    let first = bench.submit("r");
    assert_eq!(bench.submit("r"), first);
    let call = Bench::call(&worker, "lease-1", 0);
    let mut granted = bench.ask(|reply| Request::Lease(call.clone(), reply)).unwrap();
    let again = bench.ask(|reply| Request::Lease(call, reply)).unwrap();
    assert_eq!(again, granted);
    let granted = granted.pop().unwrap();
    assert_eq!(bench.commit(&worker, &granted), Ok(CommitOutcome::Committed));
    assert_eq!(bench.commit(&worker, &granted), Ok(CommitOutcome::AlreadyCommitted));
    bench.finish(&worker);
    let late = bench.commit(&worker, &granted);
    assert_eq!(late, Ok(CommitOutcome::AlreadyCommitted), "also after the end of the run");
}

#[test]
fn a_silent_worker_loses_its_units_and_its_late_result_is_fenced() {
    let mut bench = Bench::new();
    let lost = bench.worker("a");
    let (run, units) = bench.submit("r");
    let held = bench.lease(&lost).unwrap();
    bench.pass(u64::from(LEASE_MS) - 1);
    assert_eq!(bench.driver.runs[&run].run.live().len(), 1);
    bench.pass(1);
    assert!(bench.driver.runs[&run].run.live().is_empty());
    let other = bench.worker("b");
    bench.pass(250);
    assert_eq!(bench.finish(&other), units);
    assert_eq!(bench.commit(&lost, &held), Ok(CommitOutcome::Fenced));
    assert_eq!(bench.count(&run, |event| matches!(event, RunEvent::WorkerLost { .. })), 1);
    assert_eq!(bench.count(&run, |event| matches!(event, RunEvent::LateResult { .. })), 1);
    assert_eq!(bench.state_of(&run), RunState::Complete);
    let session = lost.session.clone();
    let refused = bench.ask(|reply| Request::Heartbeat(session, Vec::new(), reply));
    assert_eq!(refused.unwrap_err().code, RefusalCode::Stale);
}

#[test]
fn a_worker_that_asks_for_work_and_sends_no_heartbeat_is_lost() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, _) = bench.submit("r");
    for _ in 0..4 {
        bench.lease(&worker).unwrap();
        bench.pass(u64::from(LEASE_MS) / 4);
    }
    assert!(bench.driver.runs[&run].run.live().is_empty());
    assert_eq!(bench.count(&run, |event| matches!(event, RunEvent::WorkerLost { .. })), 1);
}

#[test]
fn a_worker_that_registers_again_gives_its_units_back_at_once() {
    let mut bench = Bench::new();
    let first = bench.worker("a");
    let (run, units) = bench.submit("r");
    let held = bench.lease(&first).unwrap();
    let second = bench.worker("a");
    bench.pass(250);
    assert_eq!(bench.finish(&second), units);
    assert_eq!(bench.commit(&first, &held), Ok(CommitOutcome::Fenced));
    assert_eq!(bench.state_of(&run), RunState::Complete);
}

#[test]
fn a_lease_that_nobody_took_ends_although_the_worker_lives() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, _) = bench.submit("r");
    let (lost, taken) = (bench.lease(&worker).unwrap(), bench.lease(&worker).unwrap());
    for _ in 0..4 {
        bench.pass(u64::from(LEASE_MS) / 4);
        assert_eq!(bench.heartbeat(&worker, &[taken.token]), []);
    }
    let live: Vec<FencingToken> = bench.driver.runs[&run].run.live().keys().copied().collect();
    assert_eq!(live, [taken.token]);
    assert_eq!(bench.heartbeat(&worker, &[lost.token]), [lost.token]);
}

#[test]
fn a_crash_loses_no_commit_and_another_number_of_slices_goes_on() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    let done = bench.lease(&worker).unwrap();
    bench.commit(&worker, &done).unwrap();
    let held = bench.lease(&worker).unwrap();
    let mut bench = bench.crash_and_restart();
    assert_eq!(bench.commit(&worker, &done), Ok(CommitOutcome::AlreadyCommitted));
    assert_eq!(bench.commit(&worker, &held), Ok(CommitOutcome::Committed), "it outlived us");
    let (b, c) = (bench.worker("b"), bench.worker("c"));
    let mut commits = 0;
    loop {
        let (left, right) = (bench.lease(&b), bench.lease(&c));
        for (worker, assignment) in [(&b, &left), (&c, &right)] {
            if let Some(assignment) = assignment {
                assert!(assignment.token > held.token);
                assert_eq!(bench.commit(worker, assignment), Ok(CommitOutcome::Committed));
                commits += 1;
            }
        }
        if left.is_none() && right.is_none() {
            break;
        }
    }
    assert_eq!(commits, units - 2);
    assert_eq!(bench.state_of(&run), RunState::Complete);
}

#[test]
fn a_waiting_slice_is_served_when_a_run_starts_and_let_go_when_time_is_up() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let call = Bench::call(&worker, "x", 300);
    let mut waiting = bench.send(|reply| Request::Lease(call, reply));
    assert!(waiting.try_recv().is_err());
    bench.submit("r");
    assert_eq!(waiting.try_recv().unwrap().unwrap().len(), 1);

    let idle = bench.worker("idle");
    bench.driver.runs.clear();
    let call = Bench::call(&idle, "y", 300);
    let mut waiting = bench.send(|reply| Request::Lease(call, reply));
    bench.pass(299);
    assert!(waiting.try_recv().is_err());
    bench.pass(1);
    assert_eq!(waiting.try_recv().unwrap(), Ok(Vec::new()));
}

#[test]
fn planning_waits_for_slices_and_says_what_is_missing() {
    let mut bench = Bench::new();
    let mut waiting = bench.send(Request::Inventory);
    bench.pass(499);
    assert!(waiting.try_recv().is_err());
    bench.pass(1);
    let refusal = waiting.try_recv().unwrap().unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Unavailable);
    assert!(refusal.message.contains("no worker is connected"), "{refusal}");
    let mut waiting = bench.send(Request::Inventory);
    bench.worker("a");
    assert_eq!(waiting.try_recv().unwrap().unwrap().slices.len(), 1);
}

#[test]
fn a_result_that_cannot_be_true_is_refused_and_its_unit_tried_again() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    let assignment = bench.lease(&worker).unwrap();
    let mut lie = fixtures::result(&assignment);
    lie.rows += 100_000;
    let outcome = bench.commit_with(&worker, &assignment, lie).unwrap();
    assert!(
        matches!(&outcome, CommitOutcome::Refused(problem) if problem.contains("rows")),
        "{outcome:?}"
    );
    bench.pass(250);
    assert_eq!(bench.finish(&worker), units);
    assert_eq!(bench.count(&run, |event| matches!(event, RunEvent::UnitFailed { .. })), 1);
}

#[test]
fn a_bad_sample_is_told_once_however_many_units_meet_it() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, _) = bench.submit("r");
    let mut met = 0;
    while let Some(assignment) = bench.lease(&worker) {
        let mut result = fixtures::result(&assignment);
        if let AssignedWork::EncodeImages(work) = &assignment.work
            && work.dataset.name.as_str() == "a"
            && work.shard.start == 0
        {
            met += 1;
            let sample = SampleId("x.jpg".into());
            let bad = QuarantinedSample { position: 3, sample, reason: "torn".into() };
            result.quarantined.push(bad);
        }
        bench.commit_with(&worker, &assignment, result).unwrap();
    }
    assert!(met > 1, "two batches encode the same images");
    let told = bench.count(&run, |event| matches!(event, RunEvent::SampleQuarantined { .. }));
    assert_eq!(told, 1);
}

#[test]
fn a_unit_that_can_never_work_ends_the_run_incomplete() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, _) = bench.submit("r");
    let assignment = bench.lease(&worker).unwrap();
    let failed = FailedUnit {
        session: worker.session.clone(),
        run: run.clone(),
        token: assignment.token,
        class: FailureClass::Invalid,
        message: "no such file".into(),
    };
    bench.ask(|reply| Request::Fail(failed, reply)).unwrap();
    bench.finish(&worker);
    assert_eq!(bench.state_of(&run), RunState::Incomplete);
    let rows = Reader::open(bench.state.path()).unwrap().units(&run).unwrap();
    let failed = rows.iter().filter(|row| row.stage == UnitStage::Failed).count();
    assert!(failed > 1, "units that need it are given up with it");
}

#[test]
fn a_turn_that_cannot_be_stored_answers_nobody_and_changes_nothing() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    let before = bench.lease(&worker).unwrap();
    bench.told();
    bench.driver.store.refuse_writes(true);
    let call = Bench::call(&worker, "x", 0);
    let mut unanswered = bench.send(|reply| Request::Lease(call, reply));
    assert!(unanswered.try_recv().is_err());
    assert!(bench.driver.turn(Vec::new()).is_ok(), "nothing is written, nothing can fail");
    assert_eq!(bench.told(), []);
    assert_eq!(bench.heartbeat(&worker, &[before.token]), [], "it still counts");
    bench.driver.store.refuse_writes(false);
    bench.pass(1_000);
    assert_eq!(bench.commit(&worker, &before), Ok(CommitOutcome::Committed));
    assert_eq!(bench.finish(&worker), units - 1);
    assert_eq!(bench.state_of(&run), RunState::Complete);
}

/// Found by the simulation: a run that ended in memory only was never heard of again.
#[test]
fn a_run_whose_end_cannot_be_stored_has_not_ended() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    let (run, units) = bench.submit("r");
    for _ in 1..units {
        let assignment = bench.lease(&worker).unwrap();
        assert_eq!(bench.commit(&worker, &assignment), Ok(CommitOutcome::Committed));
    }
    let last = bench.lease(&worker).unwrap();
    bench.driver.store.refuses_commits = true;
    let finished = FinishedUnit {
        run: last.run.clone(),
        unit: last.unit,
        token: last.token,
        result: fixtures::result(&last),
    };
    let session = worker.session.clone();
    let mut unanswered = bench.send(|reply| Request::Commit(session, vec![finished], reply));
    assert!(unanswered.try_recv().is_err());
    assert_eq!(bench.state_of(&run), RunState::Running);
    bench.driver.store.refuses_commits = false;
    bench.pass(1_000);
    assert_eq!(bench.heartbeat(&worker, &[last.token]), [], "it still counts");
    assert_eq!(bench.commit(&worker, &last), Ok(CommitOutcome::Committed));
    assert_eq!(bench.state_of(&run), RunState::Complete);
}

#[test]
fn progress_never_goes_back_when_an_attempt_is_lost() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    bench.submit("r");
    let mut told: BTreeMap<_, u64> = BTreeMap::new();
    for round in 0..2 {
        while let Some(assignment) = bench.lease(&worker) {
            bench.heartbeat(&worker, &[assignment.token]);
            bench.pass(150);
            if round == 0 {
                let failed = FailedUnit {
                    session: worker.session.clone(),
                    run: assignment.run,
                    token: assignment.token,
                    class: FailureClass::Crash,
                    message: "killed".into(),
                };
                bench.ask(|reply| Request::Fail(failed, reply)).unwrap();
                break;
            }
            bench.commit(&worker, &assignment).unwrap();
        }
        bench.heartbeat(&worker, &[]);
        bench.pass(300);
    }
    let mut seen = 0;
    while let Ok(live) = bench.live.try_recv() {
        if let Live::Progress(_, _, progress) = &*live {
            let before = told.insert(progress.component, progress.done).unwrap_or(0);
            assert!(progress.done >= before, "{progress:?} after {before}");
            seen += 1;
        }
    }
    assert!(seen > 3);
}

#[test]
fn progress_is_told_at_most_every_tenth_of_a_second_and_ends_at_its_total() {
    let mut bench = Bench::new();
    let worker = bench.worker("a");
    bench.submit("r");
    while let Some(assignment) = bench.lease(&worker) {
        bench.heartbeat(&worker, &[assignment.token]);
        bench.pass(60);
        bench.commit(&worker, &assignment).unwrap();
    }
    let mut last: BTreeMap<_, (i64, u64, u64)> = BTreeMap::new();
    while let Ok(live) = bench.live.try_recv() {
        if let Live::Progress(_, at, progress) = &*live {
            let known = last.insert(progress.component, (*at, progress.done, progress.total));
            if let Some((before, done, total)) = known {
                assert!(progress.done == total || *at >= before + 100);
                assert!(progress.done >= done || progress.done == total);
            }
        }
    }
    assert_eq!(last.len(), 3);
    assert!(last.values().all(|(_, done, total)| done == total), "{last:?}");
}
