//! Workers: sessions, leases, results.

use orchestrator_plan::Unit;
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::{Asker, Assignment, Attempt, Event, Millis, UnitResult, validate};
use orchestrator_types::{
    FailureClass, FencingToken, NodeName, RunId, SessionId, UnitId,
    planted::{Bug, is_planted},
};

use super::{
    CommitOutcome, Driver, Registered, Registration, Reply,
    active::{ActiveRun, Answer, Arrived, Book, Granted},
    history::History,
    request::{AttemptReport, FailedUnit, FinishedUnit, LeaseCall},
    sessions::Answered,
};
use orchestrator_tls::may_be_of_one;

use crate::{
    event::RunEvent,
    store::{StoreError, UnitStage},
};

/// A slice that waits for a unit.
pub(super) struct Waiting {
    call: LeaseCall,
    deadline: Millis,
    reply: Reply<Vec<Assignment>>,
}

/// How a session ends.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// Silence, a restart: what it had counts as lost.
    Lost(String),
    /// Its worker says goodbye and hands back what it has.
    Left(String),
}

fn session_over(session: &SessionId) -> Refusal {
    let message = format!("session {session} is over; register again");
    Refusal::new(RefusalCode::Stale, message)
}

fn name_taken(worker: &Registration) -> Refusal {
    let message = format!(
        "another worker has taken the name {} since; give each worker a name of its own",
        worker.node
    );
    Refusal::new(RefusalCode::Invalid, message)
}

/// A name is free again when its worker has said goodbye or was silent for a lease.
fn name_of_another(worker: &Registration) -> Refusal {
    let message = format!(
        "the name {} belongs to a worker with another certificate; give each worker a name of its \
         own, or those that share names one certificate",
        worker.node
    );
    Refusal::new(RefusalCode::Denied, message)
}

/// Whether a result can be true, and what its failure means if not: a wrong result says nothing
/// about the unit, while other bytes behind a path stay other bytes.
fn acceptable(
    active: &ActiveRun,
    unit: &Unit,
    attempt: &Attempt,
    result: &UnitResult,
) -> Result<(), (FailureClass, String)> {
    validate(unit, result).map_err(|problem| (FailureClass::Internal, problem))?;
    if !attempt.terms.set_aside.is_empty() {
        // Samples that were not read have no bytes to compare.
        return Ok(());
    }
    let same = active.samples.check(unit, result);
    same.map_err(|error| (FailureClass::Invalid, error.to_string()))
}

impl Driver {
    /// Takes a worker in, or in again: of what it holds, it keeps what still counts.
    pub(super) fn register(
        &mut self,
        worker: Registration,
    ) -> Result<Result<Registered, Refusal>, StoreError> {
        if self.sessions.was_replaced(&worker.session) {
            return Ok(Err(name_taken(&worker)));
        }
        let replaced = self.sessions.replaced_by(&worker);
        if replaced.iter().any(|session| !may_be_of_one(session, &worker.session)) {
            return Ok(Err(name_of_another(&worker)));
        }
        for session in replaced {
            self.end_session(&session, &Ending::Lost("it registered again".to_owned()))?;
            self.sessions.note_replaced(&session);
        }
        self.forget_unheld(&worker)?;
        let keep = self.still_live(&worker);
        self.sessions.add(worker, self.now);
        self.unplaced = true;
        Ok(Ok(Registered {
            epoch: self.store.epoch(),
            keep,
            heartbeat_ms: self.settings.heartbeat_ms,
            lease_ms: self.settings.lease_ms,
        }))
    }

    /// Attempts that outlived an earlier coordinator and that their worker does not know: the reply
    /// that granted them was lost.
    fn forget_unheld(&mut self, worker: &Registration) -> Result<(), StoreError> {
        let mut unheld: Vec<(RunId, FencingToken)> = Vec::new();
        for (run, active) in &self.runs {
            let inherited = active.granted.iter().filter(|(_, granted)| granted.inherited);
            let own = inherited.filter(|(token, _)| {
                let attempt = active.run.live().get(token);
                attempt.is_some_and(|attempt| attempt.session == worker.session)
            });
            let unknown = own.filter(|(token, _)| !worker.held.contains(token));
            unheld.extend(unknown.map(|(token, _)| (run.clone(), *token)));
        }
        self.fail_all(unheld, "its worker does not know it")
    }

    fn still_live(&mut self, worker: &Registration) -> Vec<FencingToken> {
        let (mut keep, now) = (Vec::new(), self.now);
        for token in &worker.held {
            for active in self.runs.values_mut() {
                let attempt = active.run.live().get(token);
                if attempt.is_some_and(|attempt| attempt.session == worker.session) {
                    active.hear_of(*token, now);
                    keep.push(*token);
                }
            }
        }
        keep
    }

    /// The one way in which a session ends.
    pub(super) fn end_session(
        &mut self,
        session: &SessionId,
        ending: &Ending,
    ) -> Result<(), StoreError> {
        let Some(gone) = self.sessions.remove(session) else { return Ok(()) };
        let (Ending::Lost(reason) | Ending::Left(reason)) = ending;
        tracing::warn!(node = %gone.node, %session, reason, "a worker is gone");
        for waiting in self.waiting.extract_if(.., |waiting| waiting.call.session == *session) {
            self.outbox.reply(waiting.reply, Err(session_over(session)));
        }
        let runs: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in runs {
            if is_planted(Bug::SilentlyForgotten) {
                break;
            }
            let active = self.runs.get_mut(&run).expect("its key was just read");
            if active.run.live().values().any(|attempt| attempt.session == *session) {
                let (node, reason) = (gone.node.clone(), reason.to_owned());
                let mut book =
                    Book { store: &self.store, outbox: &mut self.outbox, at: self.at_unix_ms };
                active.record(RunEvent::WorkerLost { node, reason }, &mut book)?;
                let session = session.clone();
                let event = match ending {
                    Ending::Lost(_) => Event::SessionLost { session },
                    Ending::Left(_) => Event::Released { session },
                };
                self.apply(&run, event, None)?;
            }
        }
        self.unplaced = true;
        Ok(())
    }

    /// Renews a session with all its attempts; returns those that must stop.
    pub(super) fn heartbeat(
        &mut self,
        session: &SessionId,
        attempts: &[AttemptReport],
    ) -> Result<Vec<FencingToken>, Refusal> {
        self.metrics.heartbeat();
        let known = self.sessions.get_mut(session).ok_or_else(|| session_over(session))?;
        known.seen = self.now;
        if !known.registered {
            return Err(session_over(session));
        }
        let (mut revoked, now) = (Vec::new(), self.now);
        for report in attempts {
            let live = self.runs.values_mut().find(|active| {
                let attempt = active.run.live().get(&report.token);
                attempt.is_some_and(|attempt| attempt.session == *session)
            });
            match live {
                Some(active) => {
                    active.hear_of(report.token, now);
                    active.progress.report(*report);
                }
                None => revoked.push(report.token),
            }
        }
        Ok(revoked)
    }

    /// Attempts of which no worker speaks: the reply that granted them was lost, or their end was.
    pub(super) fn expire_unheard(&mut self, lease_ms: u64) -> Result<(), StoreError> {
        if is_planted(Bug::SilentlyForgotten) {
            return Ok(());
        }
        let mut expired: Vec<(RunId, FencingToken)> = Vec::new();
        for (run, active) in &self.runs {
            let late = |granted: &Granted| granted.heard.after(lease_ms) <= self.now;
            let late = active.granted.iter().filter(|(_, granted)| late(granted));
            expired.extend(late.map(|(token, _)| (run.clone(), *token)));
        }
        self.fail_all(expired, "its worker does not report it")
    }

    fn fail_all(
        &mut self,
        attempts: Vec<(RunId, FencingToken)>,
        message: &str,
    ) -> Result<(), StoreError> {
        for (run, token) in attempts {
            let (class, message) = (FailureClass::Infrastructure, message.to_owned());
            self.apply(&run, Event::Failed { token, class, message }, None)?;
        }
        Ok(())
    }

    /// Answers a slice at once if its request was answered before; otherwise it waits its turn.
    pub(super) fn lease(&mut self, call: LeaseCall, reply: Reply<Vec<Assignment>>) {
        let session = self.sessions.get(&call.session).filter(|session| session.registered);
        let Some(session) = session else {
            return self.outbox.reply(reply, Err(session_over(&call.session)));
        };
        // Only heartbeats renew a session: one that cannot tell of its attempts is as good as lost.
        if !session.slices.iter().any(|offer| offer.id == call.slice) {
            let message = format!("slice {} was not registered by this session", call.slice);
            return self.outbox.reply(reply, Err(Refusal::new(RefusalCode::Invalid, message)));
        }
        let answered = session.answered.get(&call.slice);
        if let Some(same) = answered.filter(|answered| answered.request_id == call.request_id) {
            let assignments = self.again(same);
            if !assignments.is_empty() {
                return self.outbox.reply(reply, Ok(assignments));
            }
        }
        // A slice waits once: a newer call takes the older one's place.
        self.waiting.retain(|waiting| waiting.call.slice != call.slice);
        let deadline = self.now.after(call.wait_ms);
        self.waiting.push(Waiting { call, deadline, reply });
    }

    /// What was granted, as far as it still counts.
    fn again(&self, answered: &Answered) -> Vec<Assignment> {
        let live = answered.attempts.iter().filter_map(|(run, token)| {
            let active = self.runs.get(run)?;
            Some(active.assignment(active.run.live().get(token)?))
        });
        live.collect()
    }

    /// Grants what can be granted, in the order in which slices began to wait.
    pub(super) fn serve_waiting(&mut self) -> Result<(), StoreError> {
        for waiting in std::mem::take(&mut self.waiting) {
            if waiting.reply.is_closed() {
                continue;
            }
            let granted = self.grant(&waiting.call)?;
            if granted.is_empty() && waiting.deadline > self.now {
                self.waiting.push(waiting);
            } else {
                self.outbox.reply(waiting.reply, Ok(granted));
            }
        }
        Ok(())
    }

    /// Answers slices that have waited long enough while nothing can be granted.
    pub(super) fn let_go_waiting(&mut self) {
        let now = self.now;
        for waiting in self.waiting.extract_if(.., |waiting| waiting.deadline <= now) {
            self.outbox.reply(waiting.reply, Ok(Vec::new()));
        }
    }

    /// The first units that the slice may run, of the oldest run that has some.
    fn grant(&mut self, call: &LeaseCall) -> Result<Vec<Assignment>, StoreError> {
        let Some(node) = self.sessions.get(&call.session).map(|session| session.node.clone())
        else {
            return Ok(Vec::new());
        };
        let (mut assignments, mut attempts) = (Vec::new(), Vec::new());
        let runs: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in runs {
            let Some(asker) = self.asker(call, &run, &node) else { continue };
            while assignments.len() < call.count.max(1) as usize {
                let token = self.store.next_token()?;
                let event = Event::SliceFree { asker: asker.clone(), token };
                let Some(Answer::Granted) = self.apply(&run, event, None)? else { break };
                self.store.use_token();
                assignments.push(self.granted(call, &run, token)?);
                attempts.push((run.clone(), token));
            }
        }
        if let Some(session) = self.sessions.get_mut(&call.session)
            && !attempts.is_empty()
        {
            let answered = Answered { request_id: call.request_id.clone(), attempts };
            session.answered.insert(call.slice.clone(), answered);
        }
        Ok(assignments)
    }

    fn asker(&self, call: &LeaseCall, run: &RunId, node: &NodeName) -> Option<Asker> {
        let active = &self.runs[run];
        let placement = active.placed.get(&call.slice)?;
        Some(Asker {
            session: call.session.clone(),
            node: node.clone(),
            slice: call.slice.clone(),
            components: placement.components.clone(),
            elsewhere: active.elsewhere(node),
        })
    }

    fn granted(
        &mut self,
        call: &LeaseCall,
        run: &RunId,
        token: FencingToken,
    ) -> Result<Assignment, StoreError> {
        let active = self.runs.get_mut(run).expect("a run with a live attempt is active");
        let (at_unix_ms, heard) = (self.at_unix_ms, self.now);
        let granted = Granted { at_unix_ms, heard, inherited: false };
        active.granted.insert(token, granted);
        if let Some(session) = self.sessions.get(&call.session) {
            active.know_slice(&call.slice, &session.libtorch, &self.store)?;
        }
        Ok(active.assignment(&active.run.live()[&token]))
    }

    /// Takes in a result whose blob is here.
    pub(super) fn commit(
        &mut self,
        session: &SessionId,
        finished: &FinishedUnit,
    ) -> Result<CommitOutcome, StoreError> {
        let FinishedUnit { run, unit, token, result } = finished;
        let Some(active) = self.runs.get(run) else { return self.late(run, *unit, *token) };
        let Some(planned) = active.run.plan().unit(*unit) else {
            let message = format!("run {run} has no unit {unit}");
            return Ok(CommitOutcome::Refused(message));
        };
        let attempt = active.run.live().get(token);
        if let Some(attempt) = attempt.filter(|attempt| attempt.unit == *unit) {
            if attempt.session != *session {
                let message = format!("attempt {token} belongs to another session");
                return Ok(CommitOutcome::Refused(message));
            }
            if let Err((class, problem)) = acceptable(active, &planned, attempt, result) {
                let message = format!("the result of unit {unit} is refused: {problem}");
                let event = Event::Failed { token: *token, class, message: message.clone() };
                self.apply(run, event, None)?;
                return Ok(CommitOutcome::Refused(message));
            }
            let slice = attempt.slice.clone();
            self.sessions.told(session, &slice, result.account.as_ref());
        }
        let set_aside = !result.quarantined.is_empty();
        let event = Event::Finished { token: *token, unit: *unit, set_aside };
        match self.apply(run, event, Some(Arrived { unit: &planned, result }))? {
            Some(Answer::Commit(outcome)) => Ok(outcome),
            Some(Answer::Granted) | None => unreachable!("a result is always answered"),
        }
    }

    /// A result for a run that is not in work.
    fn late(
        &mut self,
        run: &RunId,
        unit: UnitId,
        token: FencingToken,
    ) -> Result<CommitOutcome, StoreError> {
        let Some((key, _)) = self.store.run_state(run)? else {
            return Ok(CommitOutcome::Refused(super::runs::unknown(run).message));
        };
        let row = self.store.unit(key, unit)?;
        if row.is_some_and(|row| row.stage == UnitStage::Committed && row.token == Some(token)) {
            return Ok(CommitOutcome::AlreadyCommitted);
        }
        let mut history = History::new(key, &self.store)?;
        let event = RunEvent::LateResult { unit, token };
        history.record(run, event, self.at_unix_ms, &mut self.outbox)?;
        history.write(self.at_unix_ms, &self.store)?;
        Ok(CommitOutcome::Fenced)
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
        arrived: Option<Arrived<'_>>,
    ) -> Result<Option<Answer>, StoreError> {
        let Some(active) = self.runs.get_mut(run) else { return Ok(None) };
        let mut book = Book { store: &self.store, outbox: &mut self.outbox, at: self.at_unix_ms };
        let mut answer = None;
        for command in active.run.step(event, self.now) {
            answer = active.perform(command, arrived, &mut book)?.or(answer);
        }
        self.forget_if_ended(run);
        Ok(answer)
    }
}
