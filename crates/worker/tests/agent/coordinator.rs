//! The coordinator that the tests use: hands out a list of units and notes what comes back.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use orchestrator_proto::{
    PROTOCOL_VERSION, Refusal, RefusalCode, server,
    v1::{
        self,
        coordinator_server::{Coordinator, CoordinatorServer},
    },
};
use orchestrator_types::Digest;
use tokio::{net::TcpListener, sync::Notify, time::timeout};
use tokio_stream::{
    StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

/// Everything in a test happens within this, or never.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was asked and answered so far, and what to answer next.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) units: VecDeque<v1::Assignment>,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    /// Blobs that came in a call of their own.
    pub(crate) staged: Vec<Digest>,
    pub(crate) registered: Vec<v1::RegisterRequest>,
    /// The session that counts; any other is over.
    pub(crate) session: String,
    pub(crate) leased: BTreeMap<(String, String), v1::Assignment>,
    pub(crate) progress: Vec<v1::AttemptProgress>,
    pub(crate) revoked: Vec<u64>,
    pub(crate) committed: Vec<v1::Finished>,
    pub(crate) failed: Vec<v1::FailRequest>,
    pub(crate) goodbyes: Vec<v1::GoodbyeRequest>,
    /// Attempts of a worker that says hello count no more.
    pub(crate) forgets: bool,
    /// So many answers are lost after the deed was done.
    pub(crate) lost_answers: u32,
    /// Registration is refused with this.
    pub(crate) refuses: Option<Refusal>,
    /// No heartbeat is answered.
    pub(crate) deaf_to_heartbeats: bool,
    /// Fetched bytes arrive changed.
    pub(crate) damages_blobs: bool,
}

#[derive(Clone, Default)]
struct Desk {
    notes: Arc<Mutex<Notes>>,
    changed: Arc<Notify>,
}

/// A coordinator that listens until it is dropped.
pub(crate) struct StandIn {
    desk: Desk,
    address: SocketAddr,
    serving: Option<AbortOnDropHandle<()>>,
}

impl StandIn {
    pub(crate) async fn start() -> Self {
        let mut stand_in =
            Self { desk: Desk::default(), address: "127.0.0.1:0".parse().unwrap(), serving: None };
        stand_in.listen().await;
        stand_in
    }

    /// Listens (again), at the same address as before.
    pub(crate) async fn listen(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let service = CoordinatorServer::new(self.desk.clone());
        let incoming = TcpListenerStream::new(listener);
        let serving = server().add_service(service).serve_with_incoming(incoming);
        let task = tokio::spawn(async move { serving.await.unwrap() });
        self.serving = Some(AbortOnDropHandle::new(task));
    }

    /// Goes away with all that it knew of sessions.
    pub(crate) fn crash(&mut self) {
        self.serving = None;
        self.notes().session.clear();
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.desk.notes.lock().unwrap()
    }

    /// Changes what is answered, and wakes those who wait.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Notes) -> T) -> T {
        self.desk.change(change)
    }

    /// Waits until the notes say so.
    pub(crate) async fn until(&self, what: &str, holds: impl FnMut(&mut Notes) -> bool) {
        let held = timeout(PATIENCE, self.desk.until(holds)).await;
        assert!(held.is_ok(), "still waiting for {what}");
    }
}

impl Desk {
    fn change<T>(&self, change: impl FnOnce(&mut Notes) -> T) -> T {
        let value = change(&mut self.notes.lock().unwrap());
        self.changed.notify_waiters();
        value
    }

    async fn until(&self, mut holds: impl FnMut(&mut Notes) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if holds(&mut self.notes.lock().unwrap()) {
                return;
            }
            changed.await;
        }
    }

    /// Does something in a session that counts, and perhaps loses the answer.
    fn answer<T>(
        &self,
        session: &str,
        act: impl FnOnce(&mut Notes) -> T,
    ) -> Result<Response<T>, Status> {
        self.change(|notes| {
            if notes.session != session {
                return Err(Refusal::new(RefusalCode::Stale, "this session is over").into());
            }
            let value = act(notes);
            if notes.lost_answers > 0 {
                notes.lost_answers -= 1;
                return Err(Status::unavailable("the connection broke"));
            }
            Ok(Response::new(value))
        })
    }
}

#[tonic::async_trait]
impl Coordinator for Desk {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterReply>, Status> {
        self.change(|notes| {
            if let Some(refusal) = &notes.refuses {
                return Err(refusal.clone().into());
            }
            let request = request.into_inner();
            notes.session.clone_from(&request.session);
            let keep = if notes.forgets { Vec::new() } else { request.held.clone() };
            notes.registered.push(request);
            Ok(Response::new(v1::RegisterReply {
                protocol: PROTOCOL_VERSION,
                epoch: 1,
                heartbeat_ms: 50,
                lease_ms: 5000,
                keep,
            }))
        })
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatReply>, Status> {
        let v1::HeartbeatRequest { session, attempts } = request.into_inner();
        if self.notes.lock().unwrap().deaf_to_heartbeats {
            return Err(Status::unavailable("nobody hears"));
        }
        self.answer(&session, |notes| {
            notes.progress = attempts;
            v1::HeartbeatReply { revoked: notes.revoked.clone() }
        })
    }

    async fn lease(
        &self,
        request: Request<v1::LeaseRequest>,
    ) -> Result<Response<v1::LeaseReply>, Status> {
        let v1::LeaseRequest { session, request_id, wait_ms, .. } = request.into_inner();
        let key = (session.clone(), request_id);
        let ready = self.until(|notes| {
            let known = notes.leased.contains_key(&key);
            known || notes.session != session || !notes.units.is_empty()
        });
        drop(timeout(Duration::from_millis(wait_ms.into()), ready).await);
        self.answer(&session, |notes| {
            if !notes.leased.contains_key(&key)
                && let Some(unit) = notes.units.pop_front()
            {
                notes.leased.insert(key.clone(), unit);
            }
            v1::LeaseReply { assignments: notes.leased.get(&key).cloned().into_iter().collect() }
        })
    }

    async fn stage(
        &self,
        request: Request<Streaming<v1::BlobChunk>>,
    ) -> Result<Response<v1::StageReply>, Status> {
        let (mut chunks, mut bytes) = (request.into_inner(), Vec::new());
        while let Some(chunk) = chunks.next().await {
            bytes.extend(chunk?.data);
        }
        let (digest, size_bytes) = (Digest::of(&bytes), bytes.len() as u64);
        self.change(|notes| {
            notes.staged.push(digest);
            notes.blobs.insert(digest, bytes);
        });
        Ok(Response::new(v1::StageReply { digest: digest.as_bytes().to_vec(), size_bytes }))
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitReply>, Status> {
        let v1::CommitRequest { session, finished } = request.into_inner();
        self.answer(&session, |notes| {
            let answers = finished.into_iter().map(|one| {
                let outcome = if notes.committed.iter().any(|known| known.token == one.token) {
                    v1::CommitOutcome::AlreadyCommitted
                } else {
                    let inline = one.result.as_ref().and_then(|result| result.inline_blob.clone());
                    if let Some(bytes) = inline {
                        notes.blobs.insert(Digest::of(&bytes), bytes);
                    }
                    notes.committed.push(one);
                    v1::CommitOutcome::Committed
                };
                v1::CommitAnswer { outcome: outcome.into(), problem: String::new() }
            });
            v1::CommitReply { answers: answers.collect() }
        })
    }

    async fn goodbye(
        &self,
        request: Request<v1::GoodbyeRequest>,
    ) -> Result<Response<v1::GoodbyeReply>, Status> {
        let request = request.into_inner();
        let session = request.session.clone();
        self.answer(&session, |notes| {
            notes.goodbyes.push(request);
            v1::GoodbyeReply {}
        })
    }

    async fn fail(
        &self,
        request: Request<v1::FailRequest>,
    ) -> Result<Response<v1::FailReply>, Status> {
        let request = request.into_inner();
        let session = request.session.clone();
        self.answer(&session, |notes| {
            notes.failed.push(request);
            v1::FailReply {}
        })
    }

    type FetchStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::BlobChunk, Status>>>;

    async fn fetch(
        &self,
        request: Request<v1::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let digest = Digest::try_from(request.into_inner().digest.as_slice()).unwrap();
        let notes = self.notes.lock().unwrap();
        let missing = || Refusal::new(RefusalCode::NotFound, "there is no such blob");
        let mut bytes = notes.blobs.get(&digest).ok_or_else(missing)?.clone();
        if notes.damages_blobs {
            bytes.push(0);
        }
        let chunks: Vec<_> =
            bytes.chunks(5).map(|data| Ok(v1::BlobChunk { data: data.to_vec().into() })).collect();
        Ok(Response::new(tokio_stream::iter(chunks)))
    }

    // What clients call; no agent does.

    type WatchStream = ReceiverStream<Result<v1::RunEvent, Status>>;
    type ResultsStream = ReceiverStream<Result<v1::FileChunk, Status>>;

    async fn submit(
        &self,
        _: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitReply>, Status> {
        Err(Status::unimplemented("submit"))
    }

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("watch"))
    }

    async fn resume(
        &self,
        _: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeReply>, Status> {
        Err(Status::unimplemented("resume"))
    }

    async fn cancel(
        &self,
        _: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        Err(Status::unimplemented("cancel"))
    }

    async fn results(
        &self,
        _: Request<v1::ResultsRequest>,
    ) -> Result<Response<Self::ResultsStream>, Status> {
        Err(Status::unimplemented("results"))
    }
}
