//! One attempt: inputs in, unit computed, result staged and committed.
//!
//! It ends in one of three ways. The result is committed (or fenced, which is the coordinator's
//! business). Or it fails, and the coordinator is told why. Or it ends in silence: it is taken back
//! (revoked, or its session is over), or the agent stops. Stopping is no failure of the unit's: the
//! coordinator gives it to somebody else when the agent says goodbye.

use std::{path::PathBuf, time::Duration};

use orchestrator_proto::{
    INLINE_LIMIT_BYTES, Refusal, RefusalCode,
    domain::{AssignedWork, Assignment, UnitResult},
    v1,
};
use orchestrator_types::{Digest, FailureClass, FencingToken, SliceId};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tracing::Instrument as _;

use crate::{
    backoff::Backoff,
    blobs::Pin,
    client::TransferError,
    failure::{Failure, chain},
    health::Alarm,
    host::Host,
    pace::Pace,
    retry::until_answered,
    session::Running,
    supervisor::Supervisor,
};

/// How long a stopping agent waits for the coordinator's answer to a commit or a failure.
const FAREWELL: Duration = Duration::from_secs(2);

/// What an attempt is called on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) run: String,
    pub(crate) number: u32,
    pub(crate) token: FencingToken,
}

/// An attempt on one slice.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) unit: Unit,
    pub(crate) host: &'a Host,
    pub(crate) running: Running,
    pub(crate) supervisor: &'a mut Supervisor,
    pub(crate) backoff: &'a mut Backoff,
}

/// How an attempt ends without a commit.
enum End {
    /// Nobody wants to hear of it.
    TakenBack,
    /// The agent stops.
    Stopping,
    Failed(Failure),
}

/// How a conversation with the executor ended.
enum Said {
    Result(Box<v1::UnitResult>),
    Failure(v1::Failure),
    /// It lives and does not want to.
    Refused(Refusal),
    /// It is dead or as good as dead; this is what we saw of it.
    Lost(String),
    /// It must not go on.
    Condemned(Alarm),
}

impl Attempt<'_> {
    /// Runs the attempt to its end.
    pub(crate) async fn run(mut self, slice: &SliceId, assignment: Assignment) {
        let Unit { run, number, token } = &self.unit;
        let span = tracing::info_span!("attempt", run, unit = number, %token, %slice);
        let work = async move {
            match self.pursue(assignment).await {
                Ok(()) => {}
                Err(End::TakenBack) => tracing::info!("taken back by the coordinator"),
                Err(End::Stopping) => tracing::info!("left: the worker is stopping"),
                Err(End::Failed(failure)) => self.fail(failure).await,
            }
        };
        work.instrument(span).await;
    }

    /// A stopping agent drops a unit that is being computed, and waits a moment for the answer to
    /// a result that is handed in.
    async fn pursue(&mut self, assignment: Assignment) -> Result<(), End> {
        let (host, revoked) = (self.host, self.running.revoked().clone());
        let produced = self.produce(assignment);
        let (result, pin) = unless(&revoked, host.stopping.cancelled(), produced).await?;
        unless(&revoked, farewell(host), self.commit(result)).await?;
        drop(pin);
        Ok(())
    }

    /// Tells the coordinator, for as long as it wants to know and we are there.
    pub(crate) async fn fail(self, failure: Failure) {
        tracing::warn!(class = %failure.class, "failed: {}", failure.message);
        let request = v1::FailRequest {
            session: self.running.session().id(),
            run: self.unit.run,
            unit: self.unit.number,
            token: self.unit.token.0,
            failure: Some(failure.into()),
        };
        let (host, running) = (self.host, &self.running);
        let call = || host.client.fail(request.clone());
        tokio::select! {
            biased;
            () = running.revoked().cancelled() => {}
            () = farewell(host) => {}
            answer = until_answered(self.backoff, "fail", call) => {
                if let Err(refusal) = answer {
                    tracing::warn!(%refusal, "the failure is not taken");
                    running.session().hear(&refusal);
                }
            }
        }
    }

    /// Computes, and stages a blob that is too large to travel with the result. It stays here until
    /// the pin is dropped.
    async fn produce(&mut self, assignment: Assignment) -> Result<(UnitResult, Pin), Failure> {
        let assignment = self.admitted(assignment).await?;
        let inputs = self.inputs(&assignment.work).await?;
        let mut result = self.execute(assignment).await?;
        drop(inputs);
        let output = self.host.blobs.add(result.blob.digest, result.blob.size_bytes);
        let (client, path) = (&self.host.client, output.path());
        if result.blob.size_bytes.as_u64() < INLINE_LIMIT_BYTES {
            result.inline = Some(self.inline(path).await?);
            return Ok((result, output));
        }
        let call = || client.stage(result.blob, &path);
        let staged = until_answered(self.backoff, "stage", call).await;
        staged.map_err(|error| self.failed_transfer("the result cannot be staged", &error))?;
        Ok((result, output))
    }

    /// A blob that travels with its result.
    async fn inline(&self, path: PathBuf) -> Result<Vec<u8>, Failure> {
        let read = {
            let path = path.clone();
            self.host.blocking.run(move || std::fs::read(path)).await
        };
        let read = read.map_err(|error| Failure::new(FailureClass::Internal, error.to_string()))?;
        read.map_err(|source| {
            let error = TransferError::File { action: "read", path, source };
            Failure::transfer("the result cannot be handed in", &error)
        })
    }

    /// The assignment with its paths as they are on this host. A network folder may take its time.
    async fn admitted(&self, assignment: Assignment) -> Result<Assignment, Failure> {
        let data = self.host.data.clone();
        let looked = self.host.blocking.run(move || data.admit(assignment)).await;
        let looked = looked.map_err(|error| {
            Failure::new(FailureClass::Internal, format!("the paths were not looked at: {error}"))
        })?;
        looked.map_err(|error| Failure::new(FailureClass::Invalid, chain(&error)))
    }

    /// Brings every blob that the unit reads, and keeps it until the pins are dropped. Two slices
    /// may bring the same one at the same time: twice the traffic, the same file.
    async fn inputs(&mut self, work: &AssignedWork) -> Result<Vec<Pin>, Failure> {
        let AssignedWork::Rank(rank) = work else { return Ok(Vec::new()) };
        let mut pins = Vec::new();
        for digest in rank.blobs() {
            let pin = match self.host.blobs.pin(digest) {
                Some(pin) => pin,
                None => self.fetch(digest).await.map_err(|error| {
                    self.failed_transfer(&format!("input blob {digest} cannot be fetched"), &error)
                })?,
            };
            pins.push(pin);
        }
        Ok(pins)
    }

    async fn fetch(&mut self, digest: Digest) -> Result<Pin, TransferError> {
        let draft = self.host.blobs.draft(digest);
        let client = &self.host.client;
        let call = || client.fetch(digest, draft.path());
        let bytes = until_answered(self.backoff, "fetch", call).await?;
        let path = draft.path().to_owned();
        let kept = draft.keep(orchestrator_types::ByteCount::bytes(bytes));
        kept.map_err(|source| TransferError::File { action: "name", path, source })
    }

    async fn execute(&mut self, assignment: Assignment) -> Result<UnitResult, Failure> {
        let said = self.converse(assignment).await?;
        let broken = |message| Failure::new(FailureClass::Internal, message);
        match said {
            Said::Result(result) => {
                self.supervisor.succeeded();
                UnitResult::try_from(*result)
                    .map_err(|error| broken(format!("the executor's result is wrong: {error}")))
            }
            Said::Failure(failure) => {
                self.supervisor.succeeded();
                Err(self.supervisor.excuse(told(failure)).await)
            }
            Said::Refused(refusal) => {
                Err(broken(format!("the executor refuses the unit: {refusal}")))
            }
            Said::Lost(symptom) => Err(self.supervisor.post_mortem(&symptom).await),
            Said::Condemned(alarm) => Err(self.supervisor.condemn(alarm).await),
        }
    }

    async fn converse(&mut self, assignment: Assignment) -> Result<Said, Failure> {
        if assignment.alone {
            self.supervisor.renew().await;
        }
        let no_executor = |error| {
            Failure::new(FailureClass::Infrastructure, format!("no executor: {}", chain(&error)))
        };
        let mut executor = self.supervisor.client().await.map_err(no_executor)?;
        let silence = self.host.limits.silence;
        let stalled = || Said::Lost(format!("it made no progress for {} s", silence.as_secs_f64()));
        let request = v1::ExecuteRequest { assignment: Some(assignment.into()) };
        let said = async {
            let events = match timeout(silence, executor.execute(request)).await {
                Ok(Ok(reply)) => reply.into_inner(),
                Ok(Err(status)) => return refused(status.into()),
                Err(_) => return stalled(),
            };
            listen(events, &self.running, silence).await.unwrap_or_else(stalled)
        };
        tokio::select! {
            biased;
            alarm = self.supervisor.alarm() => Ok(Said::Condemned(alarm)),
            said = said => Ok(said),
        }
    }

    async fn commit(&mut self, result: UnitResult) -> Result<(), Failure> {
        let finished = v1::Finished {
            run: self.unit.run.clone(),
            unit: self.unit.number,
            token: self.unit.token.0,
            result: Some(result.into()),
        };
        let session = self.running.session().id();
        let request = v1::CommitRequest { session, finished: vec![finished] };
        let client = &self.host.client;
        let call = || client.commit(request.clone());
        let answer = until_answered(self.backoff, "commit", call).await;
        let reply = answer.map_err(|refusal| {
            self.running.session().hear(&refusal);
            Failure::refused("the result is not taken", &refusal)
        })?;
        let answer = reply.answers.into_iter().next().unwrap_or_default();
        match answer.outcome() {
            v1::CommitOutcome::Committed | v1::CommitOutcome::AlreadyCommitted => {
                tracing::debug!("committed");
            }
            v1::CommitOutcome::Noted => tracing::info!("the executor survived; that is noted"),
            v1::CommitOutcome::Fenced => tracing::info!("too late: the attempt was taken back"),
            // The coordinator has failed the attempt already.
            v1::CommitOutcome::Refused => tracing::error!("refused: {}", answer.problem),
            v1::CommitOutcome::Unspecified => tracing::error!("the commit's answer says nothing"),
        }
        Ok(())
    }

    fn failed_transfer(&self, what: &str, error: &TransferError) -> Failure {
        if let Some(refusal) = error.refusal() {
            self.running.session().hear(refusal);
        }
        Failure::transfer(what, error)
    }
}

/// Does a part of an attempt, unless the coordinator takes it back or the agent stops first.
async fn unless<T>(
    revoked: &CancellationToken,
    stop: impl Future<Output = ()>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, End> {
    tokio::select! {
        biased;
        () = revoked.cancelled() => Err(End::TakenBack),
        () = stop => Err(End::Stopping),
        outcome = work => outcome.map_err(End::Failed),
    }
}

/// Over when a stopping agent must not wait for the coordinator any longer.
async fn farewell(host: &Host) {
    host.stopping.cancelled().await;
    sleep(FAREWELL).await;
}

/// Hears the executor out; `None` if it makes no progress for `silence`. Dropping the stream, as a
/// cancelled attempt does, tells the executor to stop.
async fn listen(
    mut events: Streaming<v1::ExecuteEvent>,
    running: &Running,
    silence: Duration,
) -> Option<Said> {
    use v1::execute_event::Event;
    let mut pace = Pace::begin(Instant::now());
    loop {
        match timeout_at(pace.deadline(silence), events.message()).await.ok()? {
            Ok(Some(v1::ExecuteEvent { event })) => match event {
                Some(Event::Progress(progress)) => {
                    pace.hear(&progress, Instant::now());
                    running.report(progress);
                }
                Some(Event::Result(result)) => return Some(Said::Result(Box::new(result))),
                Some(Event::Failure(failure)) => return Some(Said::Failure(failure)),
                // An event of a newer minor version.
                None => {}
            },
            Ok(None) => return Some(Said::Lost("it ended its report without a result".to_owned())),
            Err(status) => return Some(refused(status.into())),
        }
    }
}

/// A broken connection and a word of refusal arrive in the same way.
fn refused(refusal: Refusal) -> Said {
    match refusal.code {
        RefusalCode::Invalid
        | RefusalCode::NotFound
        | RefusalCode::Stale
        | RefusalCode::Denied
        | RefusalCode::DoesNotFit => Said::Refused(refusal),
        RefusalCode::Unavailable
        | RefusalCode::Overloaded
        | RefusalCode::TooSlow
        | RefusalCode::Internal => Said::Lost(format!("its connection broke ({refusal})")),
    }
}

/// The executor's own word for what went wrong.
fn told(failure: v1::Failure) -> Failure {
    let class = FailureClass::try_from(failure.class());
    // A class that we do not know is a defect of ours, whatever it was meant to say.
    Failure { class: class.unwrap_or(FailureClass::Internal), message: failure.message }
}
