//! The service's handlers: decode, call, encode.
//!
//! Absent on purpose: decisions. Calls that change something are answered by the driver; a handler
//! that is dropped with its connection changes nothing that the driver has taken in.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use orchestrator_proto::{
    Blocking, CONTROL_TIMEOUT, INLINE_LIMIT_BYTES, InvalidMessage, PROTOCOL_MIN, PROTOCOL_VERSION,
    Refusal, RefusalCode, TRANSFER_TIMEOUT, v1,
};
use orchestrator_run::{Blob, UnitResult};
use orchestrator_types::{
    Digest, FailureClass, FencingToken, RunId, SessionId, UnitId,
    planted::{Bug, is_planted},
    wording::{one_line, told},
};
use tokio::{
    sync::{broadcast, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    access::Caller,
    audit::Audit,
    blobs::Blobs,
    calls::Place,
    driver::{
        self, AttemptReport, CommitOutcome, DriverHandle, FailedUnit, FinishedUnit, LeaseCall,
        Pause, Registered, Registration, Resumed, Resumption,
    },
    event::Live,
    life::Life,
    lost,
    metrics::Metrics,
    results::Results,
    submit, transfer,
    watch::{EVENTS_AHEAD, Watcher},
};

/// Longest that a worker's call for work may wait: well below any proxy's patience.
const LONGEST_WAIT_MS: u32 = 60_000;
/// Most units of one lease: what a worker holds and does not compute, others wait for.
const MOST_LEASES: u32 = 64;

/// What the handlers reach.
#[derive(Clone)]
pub(crate) struct Handlers {
    pub driver: DriverHandle,
    pub blobs: Arc<Blobs>,
    pub audit: Audit,
    pub pause: Pause,
    pub results: Arc<Results>,
    pub live: broadcast::Sender<Arc<Live>>,
    pub state: PathBuf,
    pub build: String,
    pub slice_wait: Duration,
    pub blocking: Blocking,
    pub metrics: Metrics,
    pub tasks: TaskTracker,
    pub life: Life,
}

type Answer<T> = Result<Response<T>, Status>;
type Outgoing<T> = ReceiverStream<Result<T, Status>>;

pub(crate) fn name<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error: T::Err| Refusal::new(RefusalCode::Invalid, error.to_string()))
}

fn digest(bytes: &[u8]) -> Result<Digest, Refusal> {
    bytes.try_into().map_err(|_| Refusal::new(RefusalCode::Invalid, "a digest has 32 bytes"))
}

#[tonic::async_trait]
impl v1::coordinator_server::Coordinator for Handlers {
    type WatchStream = Outgoing<v1::RunEvent>;
    type ResultsStream = Outgoing<v1::FileChunk>;
    type FetchStream = Outgoing<v1::BlobChunk>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Answer<v1::SubmitReply> {
        let caller = Caller::of(&request);
        let submitted = self.submitted(request.into_inner(), caller.name()).await;
        let subject = match &submitted {
            Ok((run, _)) => format!("run {run}"),
            Err(_) => "no run".to_owned(),
        };
        self.audit.note(&caller, "submit", &subject, &submitted).await;
        let (run, units) = submitted?;
        Ok(Response::new(v1::SubmitReply { run: run.into(), units }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        let place = Place::of(&request);
        let v1::WatchRequest { run, after } = request.into_inner();
        let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
        let (state, live) = (self.state.clone(), self.live.subscribe());
        let (run, blocking) = (name(&run)?, self.blocking);
        let watcher = Watcher { state, run, after, live, sender, blocking };
        let watching = watcher.work_until(self.life.clone());
        self.tasks.spawn(async move {
            let _place = place;
            watching.await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Answer<v1::ResumeReply> {
        let by = Caller::of(&request);
        let run: RunId = name(&request.into_inner().run)?;
        let (asked, caller) = (run.clone(), by.clone());
        // Before anything is read for somebody who may not ask for it.
        let ask = |reply| driver::Request::MayChange(asked, caller, reply);
        let allowed = self.driver.ask(CONTROL_TIMEOUT, ask).await;
        if allowed.is_err() {
            self.audit.note(&by, "resume", &format!("run {run}"), &allowed).await;
        }
        allowed?;
        // The driver judges the slices: a run of which nothing is open needs none.
        let wait = self.slice_wait + CONTROL_TIMEOUT;
        drop(self.driver.ask(wait, driver::Request::Inventory).await);
        let lost = self.lost_blobs(&run).await?;
        let (subject, call) = (format!("run {run}"), Resumption { run, by: by.clone(), lost });
        let ask = |reply| driver::Request::Resume(call, reply);
        let resumed = self.driver.ask(CONTROL_TIMEOUT, ask).await;
        self.audit.note(&by, "resume", &subject, &resumed).await;
        let Resumed { committed, units, after } = resumed?;
        Ok(Response::new(v1::ResumeReply { committed, units, after }))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Answer<v1::CancelReply> {
        let by = Caller::of(&request);
        let run: RunId = name(&request.into_inner().run)?;
        let (subject, caller) = (format!("run {run}"), by.clone());
        let ask = |reply| driver::Request::Cancel(run, caller, reply);
        let cancelled = self.driver.ask(CONTROL_TIMEOUT, ask).await;
        self.audit.note(&by, "cancel", &subject, &cancelled).await;
        cancelled?;
        Ok(Response::new(v1::CancelReply {}))
    }

    async fn results(&self, request: Request<v1::ResultsRequest>) -> Answer<Self::ResultsStream> {
        let place = Place::of(&request);
        let v1::ResultsRequest { run, files } = request.into_inner();
        let run = name(&run)?;
        // A report that nobody waits for any more is made all the same; a stop waits for it.
        let (results, working) = (self.results.clone(), self.tasks.token());
        let making = self.blocking.drive(async move {
            let _working = working;
            Box::pin(results.folder(&run)).await
        });
        let folder = making.await.map_err(Refusal::from)??;
        let chunks = transfer::send_files(self.blocking, &self.tasks, place, folder, files);
        Ok(Response::new(ReceiverStream::new(chunks)))
    }

    async fn register(&self, request: Request<v1::RegisterRequest>) -> Answer<v1::RegisterReply> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let session = self.session(&caller, "register", &request.session).await;
        let worker = self.registration(request, session, &caller)?;
        let protocol = PROTOCOL_VERSION;
        let subject = format!("worker {}, session {}", worker.node, worker.session);
        let ask = |reply| driver::Request::Register(worker, reply);
        let registered = self.driver.ask(CONTROL_TIMEOUT, ask).await;
        self.audit.note(&caller, "register", &subject, &registered).await;
        let Registered { epoch, keep, heartbeat_ms, lease_ms } = registered?;
        let keep = keep.into_iter().map(|token| token.0).collect();
        Ok(Response::new(v1::RegisterReply { protocol, epoch, heartbeat_ms, lease_ms, keep }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Answer<v1::HeartbeatReply> {
        let caller = Caller::of(&request);
        let v1::HeartbeatRequest { session, attempts } = request.into_inner();
        let report = |v1::AttemptProgress { token, done, total }| AttemptReport {
            token: FencingToken(token),
            done,
            total,
        };
        let session = self.session(&caller, "heartbeat", &session).await?;
        let attempts = attempts.into_iter().map(report).collect();
        let ask = |reply| driver::Request::Heartbeat(session, attempts, reply);
        let revoked = self.driver.ask(CONTROL_TIMEOUT, ask).await?;
        let revoked = revoked.into_iter().map(|token| token.0).collect();
        Ok(Response::new(v1::HeartbeatReply { revoked }))
    }

    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Answer<v1::LeaseReply> {
        let caller = Caller::of(&request);
        let v1::LeaseRequest { session, slice, request_id, wait_ms, count } = request.into_inner();
        let wait_ms = wait_ms.min(LONGEST_WAIT_MS).into();
        let session = self.session(&caller, "lease", &session).await?;
        let slice = name(&slice)?;
        let count = count.min(MOST_LEASES);
        let call = LeaseCall { session, slice, request_id, wait_ms, count };
        let ask = |reply| driver::Request::Lease(call, reply);
        let deadline = CONTROL_TIMEOUT + Duration::from_millis(wait_ms);
        let granted = self.driver.ask(deadline, ask).await?;
        let assignments = granted.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::LeaseReply { assignments }))
    }

    async fn stage(&self, request: Request<Streaming<v1::BlobChunk>>) -> Answer<v1::StageReply> {
        let chunks = request.into_inner();
        let staging = transfer::stage(
            self.blobs.clone(),
            self.pause.clone(),
            self.blocking,
            &self.tasks,
            chunks,
        );
        let too_slow = |_| Refusal::new(RefusalCode::TooSlow, "the blob did not arrive in time");
        let (digest, size_bytes) = timeout(TRANSFER_TIMEOUT, staging).await.map_err(too_slow)??;
        self.metrics.stored(size_bytes);
        let digest = digest.as_bytes().to_vec();
        Ok(Response::new(v1::StageReply { digest, size_bytes }))
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitReply> {
        let caller = Caller::of(&request);
        let v1::CommitRequest { session, finished } = request.into_inner();
        let session = self.session(&caller, "commit", &session).await?;
        // One wrong result does not hold up the others.
        let mut read = Vec::with_capacity(finished.len());
        for one in finished.into_iter().map(read_finished) {
            read.push(match one {
                Ok(one) => self.with_blob(one).await?,
                Err(refusal) => Err(refusal.message),
            });
        }
        let good = read.iter().flatten().cloned().collect();
        let ask = |reply| driver::Request::Commit(session, good, reply);
        let mut outcomes = self.driver.ask(CONTROL_TIMEOUT, ask).await?.into_iter();
        let answers = read.into_iter().map(|one| match one {
            Ok(_) => outcomes.next().map(answer).unwrap_or_default(),
            Err(problem) => answer(CommitOutcome::Refused(problem)),
        });
        Ok(Response::new(v1::CommitReply { answers: answers.collect() }))
    }

    async fn goodbye(&self, request: Request<v1::GoodbyeRequest>) -> Answer<v1::GoodbyeReply> {
        let caller = Caller::of(&request);
        let v1::GoodbyeRequest { session, reason } = request.into_inner();
        let session = self.session(&caller, "goodbye", &session).await?;
        let subject = format!("session {session}");
        let ask = |reply| driver::Request::Goodbye(session, reason, reply);
        let left = self.driver.ask(CONTROL_TIMEOUT, ask).await;
        self.audit.note(&caller, "goodbye", &subject, &left).await;
        left?;
        Ok(Response::new(v1::GoodbyeReply {}))
    }

    async fn fail(&self, request: Request<v1::FailRequest>) -> Answer<v1::FailReply> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let session = self.session(&caller, "fail", &request.session).await?;
        let failed = failed(request, session)?;
        let ask = |reply| driver::Request::Fail(failed, reply);
        self.driver.ask(CONTROL_TIMEOUT, ask).await?;
        Ok(Response::new(v1::FailReply {}))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Answer<Self::FetchStream> {
        let place = Place::of(&request);
        let digest = digest(&request.into_inner().digest)?;
        let inline = transfer::Inline { state: self.state.clone(), blocking: self.blocking };
        let chunks = transfer::fetch(self.blobs.clone(), inline, &self.tasks, place, digest);
        Ok(Response::new(ReceiverStream::new(chunks)))
    }
}

impl Handlers {
    /// A session that the caller names; that of somebody else is refused, and noted.
    async fn session(
        &self,
        caller: &Caller,
        call: &'static str,
        text: &str,
    ) -> Result<SessionId, Refusal> {
        let session = caller.session(text);
        if let Err(Refusal { code: RefusalCode::Denied, .. }) = &session {
            self.audit.note(caller, call, "a session of somebody else", &session).await;
        }
        session
    }

    /// Plans, stores and starts a run.
    async fn submitted(
        &self,
        request: v1::SubmitRequest,
        owner: Option<String>,
    ) -> Result<(RunId, u32), Refusal> {
        let wait = self.slice_wait + CONTROL_TIMEOUT;
        let inventory = self.driver.ask(wait, driver::Request::Inventory).await?;
        let build = self.build.clone();
        let planning = move || submit::planned(request, &inventory, build, owner);
        let planned = self.blocking.run(planning).await.map_err(Refusal::from)??;
        let ask = |reply| driver::Request::Submit(Box::new(planned), reply);
        self.driver.ask(CONTROL_TIMEOUT, ask).await
    }

    /// Blobs of a run that its results need and that are gone or damaged.
    async fn lost_blobs(&self, run: &RunId) -> Result<BTreeSet<Digest>, Refusal> {
        lost::blobs(self.blocking, &self.state, &self.blobs, run).await
    }

    /// Refuses a worker that would speak or compute differently.
    fn registration(
        &self,
        request: v1::RegisterRequest,
        session: Result<SessionId, Refusal>,
        caller: &Caller,
    ) -> Result<Registration, Refusal> {
        let v1::RegisterRequest {
            protocol_min,
            protocol_max,
            build,
            node,
            slices,
            libtorch,
            session: _,
            held,
            withdrawn,
        } = request;
        let stale = |what: &str, theirs: &str, ours: &str| {
            let message = format!(
                "worker {node} has {what} {theirs}, the coordinator {ours}; install the same \
                 release on both"
            );
            Err(Refusal::new(RefusalCode::Stale, message))
        };
        if protocol_max < PROTOCOL_MIN || protocol_min > PROTOCOL_VERSION {
            let theirs = format!("{protocol_min} to {protocol_max}");
            let ours = format!("{PROTOCOL_MIN} to {PROTOCOL_VERSION}");
            return stale("protocol versions", &theirs, &ours);
        }
        if build != self.build {
            return stale("build", &build, &self.build);
        }
        let node: orchestrator_types::NodeName = name(&node)?;
        let slices = slices.into_iter().map(|slice| slice.offer(node.clone()));
        let slices = slices.collect::<Result<Vec<_>, InvalidMessage>>()?;
        let prefix = format!("{node}.");
        if slices.is_empty() || slices.iter().any(|slice| !slice.id.as_str().starts_with(&prefix)) {
            let message =
                format!("worker {node} offers no slice, or one not named {node}.<number>");
            return Err(Refusal::new(RefusalCode::Invalid, message));
        }
        let held = held.into_iter().map(FencingToken).collect();
        // Told to people only: one that cannot be read is left out.
        let withdrawn = withdrawn.into_iter().filter_map(|withdrawn| {
            let v1::WithdrawnSlice { slice, reason } = withdrawn;
            let reason = one_line(&reason);
            Some((slice?.offer(node.clone()).ok()?, reason))
        });
        let withdrawn = withdrawn.collect();
        // Last: a worker of another release shall hear that, whatever its sessions are called.
        let (session, identity) = (session?, caller.name());
        Ok(Registration { session, identity, node, slices, libtorch, held, withdrawn })
    }

    /// A result whose blob is here, or what is wrong with it. An error of the disk is neither.
    async fn with_blob(
        &self,
        finished: FinishedUnit,
    ) -> Result<Result<FinishedUnit, String>, Refusal> {
        let UnitResult { blob, inline, .. } = &finished.result;
        if let Some(inline) = inline {
            let whole = require_inline(finished.unit, *blob, inline);
            return Ok(whole.map(|()| finished));
        }
        let staged = self.blobs.size(blob.digest).await?;
        if staged == Some(blob.size_bytes.as_u64()) || is_planted(Bug::BlobNotLookedFor) {
            return Ok(Ok(finished));
        }
        Ok(Err(format!(
            "blob {} of unit {} with {} bytes is not staged; stage it before the commit",
            blob.digest,
            finished.unit,
            blob.size_bytes.as_u64()
        )))
    }
}

/// Refuses an inline blob that is not what its result says, or too large for a row.
fn require_inline(unit: UnitId, blob: Blob, inline: &[u8]) -> Result<(), String> {
    let size = inline.len() as u64;
    if size >= INLINE_LIMIT_BYTES {
        return Err(format!(
            "unit {unit} brings {size} bytes with its result, and only blobs smaller than \
             {INLINE_LIMIT_BYTES} bytes may come so; stage it"
        ));
    }
    if Digest::of(inline) == blob.digest && size == blob.size_bytes.as_u64() {
        return Ok(());
    }
    Err(format!("the blob that unit {unit} brings with its result is not {}", blob.digest))
}

fn read_finished(finished: v1::Finished) -> Result<FinishedUnit, Refusal> {
    let v1::Finished { run, unit, token, result } = finished;
    let missing = || Refusal::new(RefusalCode::Invalid, "a commit needs a result");
    Ok(FinishedUnit {
        run: name(&run)?,
        unit: UnitId(unit),
        token: FencingToken(token),
        result: result.ok_or_else(missing)?.try_into()?,
    })
}

fn answer(outcome: CommitOutcome) -> v1::CommitAnswer {
    let (outcome, problem) = match outcome {
        CommitOutcome::Committed => (v1::CommitOutcome::Committed, String::new()),
        CommitOutcome::AlreadyCommitted => (v1::CommitOutcome::AlreadyCommitted, String::new()),
        CommitOutcome::Fenced => (v1::CommitOutcome::Fenced, String::new()),
        CommitOutcome::Noted => (v1::CommitOutcome::Noted, String::new()),
        CommitOutcome::Refused(problem) => (v1::CommitOutcome::Refused, problem),
    };
    v1::CommitAnswer { outcome: outcome.into(), problem }
}

fn failed(request: v1::FailRequest, session: SessionId) -> Result<FailedUnit, Refusal> {
    let v1::FailRequest { session: _, run, unit: _, token, failure } = request;
    let missing = || Refusal::new(RefusalCode::Invalid, "a failure needs a class and a message");
    let v1::Failure { class, message } = failure.ok_or_else(missing)?;
    let class = v1::FailureClass::try_from(class).map_err(|_| missing())?;
    Ok(FailedUnit {
        session,
        run: name(&run)?,
        token: FencingToken(token),
        class: FailureClass::try_from(class)?,
        // A worker's words: kept short, and unable to drive a terminal wherever they are shown.
        message: told(&message),
    })
}
