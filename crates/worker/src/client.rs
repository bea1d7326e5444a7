//! Calls to the coordinator, each with its deadline, and blobs that travel in chunks.
//!
//! Invariant: a fetched file is complete and has the digest that was asked for, or the call fails.

use std::{
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use orchestrator_proto::{
    Blocking, CHUNK_BYTES, CONTROL_TIMEOUT, MESSAGE_LIMIT_BYTES, Refusal, RefusalCode,
    TRANSFER_TIMEOUT, domain::Blob, v1, v1::coordinator_client::CoordinatorClient,
};
use orchestrator_types::{
    Digest,
    planted::{Bug, is_planted},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, codegen::Bytes, transport::Channel};

use crate::retry::{Again, Retry};

/// Chunks between disk and wire, 2 MiB at most: each goes on while the other waits for its turn.
const CHUNKS_AHEAD: usize = 8;

/// Why a blob did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The coordinator's word, or a broken connection.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A file on this side cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What arrived is not what was sent.
    #[error("blob {expected} arrived with digest {found}")]
    OtherBytes {
        /// Of the blob that was asked for.
        expected: Digest,
        /// Of what arrived.
        found: String,
    },
}

impl TransferError {
    pub(crate) fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::File { source, .. } if full.contains(&source.kind()))
    }

    /// The coordinator's word, if it was the coordinator that refused.
    pub(crate) const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::File { .. } | Self::OtherBytes { .. } => None,
        }
    }
}

impl Retry for TransferError {
    fn again(&self) -> Again {
        match self {
            Self::Refused(refusal) => refusal.again(),
            Self::File { .. } => Again::Never,
            // A connection that breaks in the middle may look like a short blob.
            Self::OtherBytes { .. } => Again::Sometimes,
        }
    }
}

fn file_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> TransferError + 'a {
    move |source| TransferError::File { action, path: path.to_owned(), source }
}

/// The coordinator, as a worker sees it. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Client {
    inner: CoordinatorClient<Channel>,
    blocking: Blocking,
}

impl Client {
    /// A client over this connection; work that blocks is done as `blocking` says.
    pub fn new(channel: Channel, blocking: Blocking) -> Self {
        let inner = CoordinatorClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        Self { inner, blocking }
    }

    pub(crate) async fn register(
        &self,
        request: v1::RegisterRequest,
    ) -> Result<v1::RegisterReply, Refusal> {
        let mut inner = self.inner.clone();
        let request = bounded(request, CONTROL_TIMEOUT);
        within(CONTROL_TIMEOUT, inner.register(request)).await
    }

    pub(crate) async fn heartbeat(
        &self,
        request: v1::HeartbeatRequest,
    ) -> Result<v1::HeartbeatReply, Refusal> {
        let mut inner = self.inner.clone();
        let request = bounded(request, CONTROL_TIMEOUT);
        within(CONTROL_TIMEOUT, inner.heartbeat(request)).await
    }

    /// The deadline is the wait that the request asks for, and the usual one on top.
    pub(crate) async fn lease(&self, request: v1::LeaseRequest) -> Result<v1::LeaseReply, Refusal> {
        let mut inner = self.inner.clone();
        let limit = CONTROL_TIMEOUT + Duration::from_millis(request.wait_ms.into());
        within(limit, inner.lease(bounded(request, limit))).await
    }

    pub(crate) async fn commit(
        &self,
        request: v1::CommitRequest,
    ) -> Result<v1::CommitReply, Refusal> {
        let mut inner = self.inner.clone();
        let request = bounded(request, CONTROL_TIMEOUT);
        within(CONTROL_TIMEOUT, inner.commit(request)).await
    }

    pub(crate) async fn fail(&self, request: v1::FailRequest) -> Result<v1::FailReply, Refusal> {
        let mut inner = self.inner.clone();
        let request = bounded(request, CONTROL_TIMEOUT);
        within(CONTROL_TIMEOUT, inner.fail(request)).await
    }

    /// Leaves for good: what we have goes to others at once.
    pub(crate) async fn goodbye(&self, request: v1::GoodbyeRequest) -> Result<(), Refusal> {
        let mut inner = self.inner.clone();
        let request = bounded(request, CONTROL_TIMEOUT);
        within(CONTROL_TIMEOUT, inner.goodbye(request)).await.map(drop)
    }

    /// Sends the file `path`, which should be `blob`. Nothing counts before the commit.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub async fn stage(&self, blob: Blob, path: &Path) -> Result<(), TransferError> {
        let mut inner = self.inner.clone();
        let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
        let request = bounded(ReceiverStream::new(chunks), TRANSFER_TIMEOUT);
        let call = within(TRANSFER_TIMEOUT, inner.stage(request));
        // A failed call drops its end of the channel, and a failed read ends the stream.
        let (reply, read) = tokio::join!(call, feed(self.blocking, path, sender));
        read?;
        let v1::StageReply { digest, size_bytes } = reply?;
        if digest == blob.digest.as_bytes() && size_bytes == blob.size_bytes.as_u64() {
            return Ok(());
        }
        let found = Digest::try_from(digest.as_slice());
        let found =
            found.map_or_else(|_| "of another length".to_owned(), |found| found.to_string());
        Err(TransferError::OtherBytes { expected: blob.digest, found })
    }

    /// Writes the blob to `path`; how many bytes it has.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub async fn fetch(&self, digest: Digest, path: &Path) -> Result<u64, TransferError> {
        let too_slow = |_| Refusal::new(RefusalCode::TooSlow, "the blob did not arrive in time");
        timeout(TRANSFER_TIMEOUT, self.receive(digest, path)).await.map_err(too_slow)?
    }

    async fn receive(&self, digest: Digest, path: &Path) -> Result<u64, TransferError> {
        let request = v1::FetchRequest { digest: digest.as_bytes().to_vec() };
        let reply = self.inner.clone().fetch(bounded(request, TRANSFER_TIMEOUT)).await;
        let mut chunks = reply.map_err(Refusal::from)?.into_inner();
        let create = {
            let path = path.to_owned();
            move || std::fs::File::create(path)
        };
        let made = self.blocking.run(create).await.map_err(Refusal::from)?;
        let mut file = made.map_err(file_error("create", path))?;
        let (sender, mut received) = mpsc::channel::<Bytes>(CHUNKS_AHEAD);
        // What digests and writes waits for nobody else's turn, and the network not for it.
        let writing = self.blocking.drive(async move {
            let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
            while let Some(data) = received.recv().await {
                hasher.update(&data);
                bytes += data.len() as u64;
                file.write_all(&data)?;
            }
            Ok((Digest::from(hasher.finalize()), bytes))
        });
        let receiving = async move {
            loop {
                let chunk = match chunks.message().await {
                    Err(_) if is_planted(Bug::EndOfStreamBelieved) => None,
                    chunk => chunk?,
                };
                let Some(v1::BlobChunk { data }) = chunk else { return Ok(()) };
                if sender.send(data).await.is_err() {
                    return Ok(());
                }
            }
        };
        let (written, received) = tokio::join!(writing, receiving);
        let written = written.map_err(Refusal::from)?;
        let (found, bytes) = written.map_err(file_error("write", path))?;
        received.map_err(|status: Status| Refusal::from(status))?;
        if found == digest || is_planted(Bug::EndOfStreamBelieved) {
            Ok(bytes)
        } else {
            Err(TransferError::OtherBytes { expected: digest, found: found.to_string() })
        }
    }
}

/// Reads `path` into the channel, until its end or until nobody listens.
async fn feed(
    blocking: Blocking,
    path: &Path,
    chunks: mpsc::Sender<v1::BlobChunk>,
) -> Result<(), TransferError> {
    let open = path.to_owned();
    let feeding = blocking.drive(async move {
        let mut file = std::fs::File::open(open).map_err(|source| ("open", source))?;
        loop {
            let mut data = Vec::with_capacity(CHUNK_BYTES);
            let read = (&mut file).take(CHUNK_BYTES as u64).read_to_end(&mut data);
            read.map_err(|source| ("read", source))?;
            if data.is_empty() || chunks.send(v1::BlobChunk { data: data.into() }).await.is_err() {
                return Ok(());
            }
        }
    });
    let fed = feeding.await.map_err(Refusal::from)?;
    fed.map_err(|(action, source)| file_error(action, path)(source))
}

/// A request that tells the other side how long its answer is wanted.
fn bounded<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Refusal> {
    match timeout(limit, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Refusal::new(
            RefusalCode::TooSlow,
            format!("the coordinator did not answer within {} s", limit.as_secs_f64()),
        )),
    }
}
