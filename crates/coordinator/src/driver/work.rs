//! Workers: sessions, leases, results.

use orchestrator_plan::Unit;
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::{Assignment, Event, Millis, UnitResult, validate};
use orchestrator_types::{FailureClass, FencingToken, RunId, SessionId, UnitId};

use super::{
    CommitOutcome, Driver, Registered, Registration, Reply,
    active::{ActiveRun, Answer, Book},
    request::{AttemptReport, FailedUnit, FinishedUnit, LeaseCall},
    sessions::Answered,
};
use crate::{
    event::{Live, RunEvent},
    store::{StoreError, UnitStage},
};

/// A slice that waits for a unit.
pub(super) struct Waiting {
    call: LeaseCall,
    deadline: Millis,
    reply: Reply<Option<Assignment>>,
}

fn session_over(session: &SessionId) -> Refusal {
    let message = format!("session {session} is over; register again");
    Refusal::new(RefusalCode::Stale, message)
}

/// Whether a result can be true, and what its failure means if not: a wrong result says nothing
/// about the unit, while other bytes behind a path stay other bytes.
fn acceptable(
    active: &ActiveRun,
    unit: &Unit,
    result: &UnitResult,
) -> Result<(), (FailureClass, String)> {
    validate(unit, result).map_err(|problem| (FailureClass::Internal, problem))?;
    let same = active.samples.check(unit, result);
    same.map_err(|error| (FailureClass::Invalid, error.to_string()))
}

impl Driver {
    pub(super) fn register(
        &mut self,
        worker: Registration,
    ) -> Result<Result<Registered, Refusal>, StoreError> {
        for session in self.sessions.replaced_by(&worker) {
            self.lose(&session, "it registered again")?;
        }
        let session: SessionId = crate::fresh_name();
        self.sessions.add(session.clone(), worker, self.now);
        self.place();
        Ok(Ok(Registered {
            session,
            epoch: self.store.epoch(),
            heartbeat_ms: self.settings.heartbeat_ms,
            lease_ms: self.settings.lease_ms,
        }))
    }

    /// The one way in which a session ends.
    pub(super) fn lose(&mut self, session: &SessionId, reason: &str) -> Result<(), StoreError> {
        let Some(gone) = self.sessions.remove(session) else { return Ok(()) };
        tracing::warn!(node = %gone.node, %session, reason, "a worker is lost");
        for waiting in self.waiting.extract_if(.., |waiting| waiting.call.session == *session) {
            self.outbox.reply(waiting.reply, Err(session_over(session)));
        }
        let runs: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in runs {
            let active = self.runs.get_mut(&run).expect("its key was just read");
            if active.run.live().values().any(|attempt| attempt.session == *session) {
                let (node, reason) = (gone.node.clone(), reason.to_owned());
                let mut book =
                    Book { store: &self.store, outbox: &mut self.outbox, at: self.at_unix_ms };
                active.record(RunEvent::WorkerLost { node, reason }, &mut book)?;
                self.apply(&run, Event::SessionLost { session: session.clone() }, None)?;
            }
        }
        self.place();
        Ok(())
    }

    /// Renews a session with all its attempts; returns those that must stop.
    pub(super) fn heartbeat(
        &mut self,
        session: &SessionId,
        attempts: &[AttemptReport],
    ) -> Result<Vec<FencingToken>, Refusal> {
        let known = self.sessions.get_mut(session).ok_or_else(|| session_over(session))?;
        known.seen = self.now;
        let mut revoked = Vec::new();
        for report in attempts {
            let live = self.runs.values_mut().find(|active| {
                let attempt = active.run.live().get(&report.token);
                attempt.is_some_and(|attempt| attempt.session == *session)
            });
            match live {
                Some(active) => {
                    active.untaken.remove(&report.token);
                    active.progress.report(*report);
                }
                None => revoked.push(report.token),
            }
        }
        Ok(revoked)
    }

    /// Attempts that no worker ever spoke of: the reply that granted them was lost.
    pub(super) fn expire_untaken(&mut self, lease_ms: u64) -> Result<(), StoreError> {
        let mut expired: Vec<(RunId, FencingToken)> = Vec::new();
        for (run, active) in &self.runs {
            let late = active.untaken.iter().filter(|(_, at)| at.after(lease_ms) <= self.now);
            expired.extend(late.map(|(token, _)| (run.clone(), *token)));
        }
        for (run, token) in expired {
            let class = FailureClass::Infrastructure;
            let message = "its worker never reported it".to_owned();
            self.apply(&run, Event::Failed { token, class, message }, None)?;
        }
        Ok(())
    }

    /// Answers a slice at once if its request was answered before; otherwise it waits its turn.
    pub(super) fn lease(&mut self, call: LeaseCall, reply: Reply<Option<Assignment>>) {
        let Some(session) = self.sessions.get_mut(&call.session) else {
            return self.outbox.reply(reply, Err(session_over(&call.session)));
        };
        // Only heartbeats renew a session: one that cannot tell of its attempts is as good as lost.
        if !session.slices.iter().any(|offer| offer.id == call.slice) {
            let message = format!("slice {} was not registered by this session", call.slice);
            return self.outbox.reply(reply, Err(Refusal::new(RefusalCode::Invalid, message)));
        }
        let answered = session.answered.get(&call.slice);
        if let Some(same) = answered.filter(|answered| answered.request_id == call.request_id)
            && let Some(active) = self.runs.get(&same.run)
            && let Some(attempt) = active.run.live().get(&same.token)
        {
            let assignment = active.assignment(attempt);
            return self.outbox.reply(reply, Ok(Some(assignment)));
        }
        // A slice waits once: a newer call takes the older one's place.
        self.waiting.retain(|waiting| waiting.call.slice != call.slice);
        let deadline = self.now.after(call.wait_ms);
        self.waiting.push(Waiting { call, deadline, reply });
    }

    /// Grants what can be granted, in the order in which slices began to wait.
    pub(super) fn serve_waiting(&mut self) -> Result<(), StoreError> {
        for waiting in std::mem::take(&mut self.waiting) {
            if waiting.reply.is_closed() {
                continue;
            }
            match self.grant(&waiting.call)? {
                Some(assignment) => self.outbox.reply(waiting.reply, Ok(Some(assignment))),
                None if waiting.deadline <= self.now => {
                    self.outbox.reply(waiting.reply, Ok(None));
                }
                None => self.waiting.push(waiting),
            }
        }
        Ok(())
    }

    /// The first unit that the slice may run, of the oldest run that has one.
    fn grant(&mut self, call: &LeaseCall) -> Result<Option<Assignment>, StoreError> {
        let runs: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in runs {
            let placement = self.runs[&run].placed.get(&call.slice);
            let Some(components) = placement.map(|placement| placement.components.clone()) else {
                continue;
            };
            let token = self.store.next_token()?;
            let (session, slice) = (call.session.clone(), call.slice.clone());
            let event = Event::SliceFree { session, slice, components, token };
            if let Some(Answer::Granted(attempt)) = self.apply(&run, event, None)? {
                self.store.use_token();
                return self.granted(call, &run, attempt.token).map(Some);
            }
        }
        Ok(None)
    }

    fn granted(
        &mut self,
        call: &LeaseCall,
        run: &RunId,
        token: FencingToken,
    ) -> Result<Assignment, StoreError> {
        let active = self.runs.get_mut(run).expect("a run with a live attempt is active");
        active.untaken.insert(token, self.now);
        if let Some(session) = self.sessions.get_mut(&call.session) {
            active.know_slice(&call.slice, &session.libtorch, &self.store)?;
            let request_id = call.request_id.clone();
            let answered = Answered { request_id, run: run.clone(), token };
            session.answered.insert(call.slice.clone(), answered);
        }
        Ok(active.assignment(&active.run.live()[&token]))
    }

    pub(super) fn commit(
        &mut self,
        finished: &FinishedUnit,
    ) -> Result<Result<CommitOutcome, Refusal>, StoreError> {
        let FinishedUnit { session, run, unit, token, result } = finished;
        let Some(active) = self.runs.get(run) else { return self.late(run, *unit, *token) };
        let attempt = active.run.live().get(token);
        if let Some(attempt) = attempt.filter(|attempt| attempt.unit == *unit) {
            if attempt.session != *session {
                return Ok(Err(session_over(session)));
            }
            let planned = &active.run.plan().units[unit.0 as usize];
            if let Err((class, problem)) = acceptable(active, planned, result) {
                let message = format!("the result of unit {unit} is refused: {problem}");
                let event = Event::Failed { token: *token, class, message: message.clone() };
                self.apply(run, event, None)?;
                return Ok(Err(Refusal::new(RefusalCode::Invalid, message)));
            }
            let slice = attempt.slice.clone();
            self.sessions.told(session, &slice, result.account.as_ref());
        }
        let set_aside = !result.quarantined.is_empty();
        let event = Event::Finished { token: *token, unit: *unit, set_aside };
        match self.apply(run, event, Some(result))? {
            Some(Answer::Commit(outcome)) => Ok(Ok(outcome)),
            Some(Answer::Granted(_)) | None => unreachable!("a result is always answered"),
        }
    }

    /// A result for a run that is not in work.
    fn late(
        &mut self,
        run: &RunId,
        unit: UnitId,
        token: FencingToken,
    ) -> Result<Result<CommitOutcome, Refusal>, StoreError> {
        let Some((key, _)) = self.store.run_state(run)? else {
            return Ok(Err(super::runs::unknown(run)));
        };
        let row = self.store.unit(key, unit)?;
        if row.is_some_and(|row| row.stage == UnitStage::Committed && row.token == Some(token)) {
            return Ok(Ok(CommitOutcome::AlreadyCommitted));
        }
        let sequence = self.store.next_sequence(key)?;
        let event = RunEvent::LateResult { unit, token };
        let recorded = self.store.append(key, sequence, event, self.at_unix_ms)?;
        self.outbox.tell(Live::Recorded(run.clone(), recorded));
        Ok(Ok(CommitOutcome::Fenced))
    }

    pub(super) fn fail(&mut self, failed: FailedUnit) -> Result<Result<(), Refusal>, StoreError> {
        let FailedUnit { session, run, token, class, message } = failed;
        let attempt = self.runs.get(&run).and_then(|active| active.run.live().get(&token));
        // The failure of an attempt that no longer counts changes nothing.
        if attempt.is_some_and(|attempt| attempt.session == session) {
            self.apply(&run, Event::Failed { token, class, message }, None)?;
        }
        Ok(Ok(()))
    }

    /// Steps a run and writes what follows. A run that has ended is no longer active.
    pub(super) fn apply(
        &mut self,
        run: &RunId,
        event: Event,
        result: Option<&UnitResult>,
    ) -> Result<Option<Answer>, StoreError> {
        let Some(active) = self.runs.get_mut(run) else { return Ok(None) };
        let mut book = Book { store: &self.store, outbox: &mut self.outbox, at: self.at_unix_ms };
        let mut answer = None;
        for command in active.run.step(event, self.now) {
            answer = active.perform(command, result, &mut book)?.or(answer);
        }
        self.forget_if_ended(run);
        Ok(answer)
    }
}
