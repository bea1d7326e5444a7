//! One slice: takes a unit, has it computed, takes the next one.

use std::sync::Arc;

use orchestrator_proto::{Refusal, RefusalCode, domain::Assignment, v1};
use orchestrator_types::{FailureClass, FencingToken, SliceId};
use tokio::time::sleep;

use crate::{
    ExecutorError,
    attempt::{Attempt, Unit},
    backoff::Backoff,
    failure::Failure,
    host::Host,
    retry::until_answered,
    session::Session,
    supervisor::Supervisor,
};

/// How long the coordinator may hold a request for a unit while there is none.
const LEASE_WAIT_MS: u32 = 5_000;

/// A slice with its executor.
#[derive(Debug)]
pub(crate) struct Slice {
    id: SliceId,
    host: Arc<Host>,
    supervisor: Supervisor,
    backoff: Backoff,
    /// Leases asked for and answered, over all sessions.
    leases: u64,
}

/// A slice that has no executor, and gets none unless it is regained.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) slice: Slice,
    /// Why there is none.
    pub(crate) error: ExecutorError,
}

impl Slice {
    pub(crate) fn new(id: SliceId, host: Arc<Host>, supervisor: Supervisor) -> Self {
        let backoff = Backoff::of(id.as_str());
        Self { id, host, supervisor, backoff, leases: 0 }
    }

    /// Works until the session is over or the agent drains, and gives the slice back. Dropping the
    /// future kills the executor.
    ///
    /// # Errors
    /// [`GivenUp`], when the executor does not start any more, or may not.
    pub(crate) async fn serve(mut self, session: Arc<Session>) -> Result<Self, GivenUp> {
        let host = Arc::clone(&self.host);
        loop {
            let leased = tokio::select! {
                biased;
                () = host.draining.cancelled() => break,
                () = session.over() => break,
                leased = self.next(&session) => leased,
            };
            match leased {
                Ok(assignment) => Box::pin(self.attempt(&session, assignment)).await,
                Err(error) => {
                    self.supervisor.retire().await;
                    return Err(GivenUp { slice: self, error });
                }
            }
        }
        Ok(self)
    }

    /// The next unit. A dropped request may have been granted: the unit comes back to the
    /// coordinator with the agent's goodbye.
    async fn next(&mut self, session: &Session) -> Result<v1::Assignment, ExecutorError> {
        loop {
            self.supervisor.up().await?;
            let times = session.times();
            let request = v1::LeaseRequest {
                session: session.id(),
                slice: self.id.to_string(),
                request_id: format!("{}-{}", self.id, self.leases),
                wait_ms: LEASE_WAIT_MS,
                count: 1,
            };
            let client = &self.host.client;
            let call = || client.lease(request.clone());
            let reply = match until_answered(&mut self.backoff, "lease", call).await {
                Ok(reply) => reply,
                Err(refusal) => {
                    // Nothing but a coordinator that does not know us should refuse a lease for
                    // good. If anything else does, saying hello again brings it to light.
                    tracing::warn!(slice = %self.id, %refusal, "no lease: saying hello again");
                    sleep(self.backoff.after_failure()).await;
                    session.say_hello();
                    session.taken_in_after(times).await;
                    continue;
                }
            };
            self.leases += 1;
            if let Some(assignment) = reply.assignments.into_iter().next() {
                return Ok(assignment);
            }
        }
    }

    async fn attempt(&mut self, session: &Arc<Session>, assignment: v1::Assignment) {
        let token = FencingToken(assignment.token);
        let unit = Unit { run: assignment.run.clone(), number: assignment.unit, token };
        let attempt = Attempt {
            unit,
            host: &self.host,
            running: session.begin(token),
            supervisor: &mut self.supervisor,
            backoff: &mut self.backoff,
        };
        match Assignment::try_from(assignment) {
            Ok(assignment) => Box::pin(attempt.run(&self.id, assignment)).await,
            Err(error) => {
                let refusal = Refusal::new(RefusalCode::Invalid, error.to_string());
                let message = format!("the worker does not understand its unit: {refusal}");
                attempt.fail(Failure::new(FailureClass::Internal, message)).await;
            }
        }
    }

    pub(crate) const fn id(&self) -> &SliceId {
        &self.id
    }

    /// Returns when the slice, which was given up because it is fenced, may be used again.
    pub(crate) async fn regained(mut self) -> Self {
        self.supervisor.regained().await;
        self
    }

    /// Ends the executor; returns when it is reaped.
    pub(crate) async fn stop(mut self) {
        self.supervisor.retire().await;
    }
}
