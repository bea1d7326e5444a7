//! What the driver is asked, and the way in.

use std::{collections::BTreeSet, time::Duration};

use orchestrator_plan::{Inventory, Plan, SliceOffer};
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_run::{Assignment, UnitResult};
use orchestrator_types::{
    Digest, FailureClass, FencingToken, NodeName, RunId, SessionId, SliceId, UnitId,
};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::timeout,
};

use super::Pause;
use crate::{access::Caller, life::Life, store::Submission, view::Snapshot};

/// Requests that may wait: a worker has a handful in flight, so this is a thousand workers in one
/// turn of a few milliseconds. Beyond it, callers are told to try again.
const QUEUE: usize = 4_096;

/// Longest that a panicking thread takes to unwind.
const UNWINDING: Duration = Duration::from_millis(100);

/// The way back.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// One call, with the way back. Answered once its effects are durable.
pub(crate) enum Request {
    /// The slices, once the expected ones are there.
    Inventory(Reply<Inventory>),
    /// Everything as it stands, for people who look.
    Snapshot(Reply<Snapshot>),
    Submit(Box<Submitted>, Reply<(RunId, u32)>),
    /// Whether this caller may end or continue a run.
    MayChange(RunId, Caller, Reply<()>),
    Resume(Resumption, Reply<Resumed>),
    /// A run ends because of this caller.
    Cancel(RunId, Caller, Reply<()>),
    Register(Registration, Reply<Registered>),
    /// Answered with the reported attempts that must stop.
    Heartbeat(SessionId, Vec<AttemptReport>, Reply<Vec<FencingToken>>),
    /// Answered with nothing when the wait is over.
    Lease(LeaseCall, Reply<Vec<Assignment>>),
    /// Answered in the same order.
    Commit(SessionId, Vec<FinishedUnit>, Reply<Vec<CommitOutcome>>),
    Fail(FailedUnit, Reply<()>),
    /// A session ends on purpose, for this reason.
    Goodbye(SessionId, String, Reply<()>),
}

/// A run to store and start.
pub(crate) struct Submitted {
    pub submission: Submission,
    pub plan: Plan,
}

/// A run to go on with.
#[derive(Clone, Debug)]
pub(crate) struct Resumption {
    pub run: RunId,
    pub by: Caller,
    /// Blobs that are gone or damaged: units that made them are computed again.
    pub lost: BTreeSet<Digest>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resumed {
    pub committed: u32,
    pub units: u32,
    /// The last event before it went on.
    pub after: u64,
}

/// A worker that wants to work. Versions were compared already.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub session: SessionId,
    /// Who it is, by its certificate.
    pub identity: Option<String>,
    pub node: NodeName,
    pub slices: Vec<SliceOffer>,
    pub libtorch: String,
    /// Attempts that it still has.
    pub held: Vec<FencingToken>,
    /// Slices that it has and does not offer, with the reasons.
    pub withdrawn: Vec<(SliceOffer, String)>,
}

/// What a worker must know to keep its session.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub epoch: u64,
    /// Of the held attempts, those that still count.
    pub keep: Vec<FencingToken>,
    pub heartbeat_ms: u32,
    pub lease_ms: u32,
}

/// How far an attempt has come, in whatever the executor counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptReport {
    pub token: FencingToken,
    pub done: u64,
    pub total: u64,
}

/// A slice that has nothing to do.
#[derive(Clone, Debug)]
pub(crate) struct LeaseCall {
    pub session: SessionId,
    pub slice: SliceId,
    pub request_id: String,
    pub wait_ms: u64,
    /// Units wanted, at least one.
    pub count: u32,
}

/// A result whose blob is staged.
#[derive(Clone, Debug)]
pub(crate) struct FinishedUnit {
    pub run: RunId,
    pub unit: UnitId,
    pub token: FencingToken,
    pub result: UnitResult,
}

/// An attempt without a result.
#[derive(Clone, Debug)]
pub(crate) struct FailedUnit {
    pub session: SessionId,
    pub run: RunId,
    pub token: FencingToken,
    pub class: FailureClass,
    pub message: String,
}

/// What became of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    /// It counts.
    Committed,
    /// It counted before; that reply was lost.
    AlreadyCommitted,
    /// It came too late.
    Fenced,
    /// It came from a probe: that it came is all that counts.
    Noted,
    /// It cannot be true, and this is why; its attempt has failed.
    Refused(String),
}

/// The handlers' end of the driver's channel.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    requests: mpsc::Sender<Request>,
    life: Life,
    pause: Pause,
}

/// The driver's channel.
pub(crate) fn handle(life: Life, pause: Pause) -> (DriverHandle, mpsc::Receiver<Request>) {
    let (requests, receiver) = mpsc::channel(QUEUE);
    (DriverHandle { requests, life, pause }, receiver)
}

impl DriverHandle {
    /// Sends a request and awaits its answer for at most `deadline`.
    pub(crate) async fn ask<T>(
        &self,
        deadline: Duration,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let unavailable = |message| Refusal::new(RefusalCode::Unavailable, message);
        self.requests.try_send(request(reply)).map_err(|error| match error {
            TrySendError::Full(_) => {
                Refusal::new(RefusalCode::Overloaded, "the coordinator is overloaded; try again")
            }
            TrySendError::Closed(_) => {
                let defect = self.life.refusal();
                defect.unwrap_or_else(|| unavailable("the coordinator is stopping"))
            }
        })?;
        match timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                // A thread that panics drops the request before it is known to have ended.
                drop(timeout(UNWINDING, self.life.ended()).await);
                let message = "the coordinator could not store this, or is stopping; try again";
                let known = self.life.refusal().or_else(|| self.pause.refusal());
                Err(known.unwrap_or_else(|| unavailable(message)))
            }
            Err(_) => Err(Refusal::new(
                RefusalCode::TooSlow,
                format!("the coordinator took longer than {} ms", deadline.as_millis()),
            )),
        }
    }
}
