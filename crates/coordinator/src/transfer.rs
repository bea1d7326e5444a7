//! Bytes in and out: chunks of a stream on one side, a file on the other, and a bounded channel
//! with a blocking task between them.

use std::{path::PathBuf, sync::Arc};

use orchestrator_proto::{CHUNK_BYTES, Refusal, RefusalCode, v1};
use orchestrator_types::Digest;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::{
    blobs::{BlobError, Blobs},
    results,
};

/// Chunks between network and disk: enough to keep both busy, 4 MiB at most.
pub(crate) const CHUNKS_AHEAD: usize = 4;

impl From<BlobError> for Refusal {
    fn from(error: BlobError) -> Self {
        let code = match error {
            BlobError::Missing(_) => RefusalCode::NotFound,
            BlobError::Damaged(_) | BlobError::File { .. } => RefusalCode::Internal,
        };
        crate::refusal(code, &error)
    }
}

/// Stores a stream of chunks; the blob is durable when this returns. Dropped half-way, it leaves
/// nothing.
pub(crate) async fn stage(
    blobs: Arc<Blobs>,
    tasks: &TaskTracker,
    mut chunks: impl Stream<Item = Result<v1::BlobChunk, Status>> + Unpin,
) -> Result<(Digest, u64), Status> {
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(CHUNKS_AHEAD);
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let writing = tasks.spawn_blocking(move || {
        let mut writer = blobs.create()?;
        while let Some(bytes) = receiver.blocking_recv() {
            writer.write(&bytes)?;
        }
        // Without the word that the stream is complete, the file goes.
        finished.blocking_recv().map_or(Ok(None), |()| writer.keep(&blobs).map(Some))
    });
    while let Some(chunk) = chunks.next().await {
        if sender.send(chunk?.data).await.is_err() {
            // The writer has ended with an error, which it tells below.
            break;
        }
    }
    drop(sender);
    if finish.send(()).is_err() {
        tracing::debug!("a blob could not be written; its error follows");
    }
    let lost = || Refusal::new(RefusalCode::Unavailable, "the blob was not stored; send it again");
    let kept = writing.await.map_err(|_| lost())?.map_err(Refusal::from)?;
    Ok(kept.ok_or_else(lost)?)
}

/// The chunks of a blob; an error ends the stream, also that its bytes are not those of its name.
pub(crate) fn fetch(
    blobs: Arc<Blobs>,
    tasks: &TaskTracker,
    digest: Digest,
) -> mpsc::Receiver<Result<v1::BlobChunk, Status>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    tasks.spawn_blocking(move || {
        let send = |chunk: Result<v1::BlobChunk, BlobError>| {
            // A reader that has gone away needs no more.
            sender.blocking_send(chunk.map_err(|error| Refusal::from(error).into())).is_ok()
        };
        if let Err(error) = send_blob(&blobs, digest, |data| send(Ok(v1::BlobChunk { data }))) {
            send(Err(error));
        }
    });
    receiver
}

/// Sends chunks until the end, or until `send` says that nobody wants them.
fn send_blob(
    blobs: &Blobs,
    digest: Digest,
    send: impl Fn(Vec<u8>) -> bool,
) -> Result<(), BlobError> {
    let mut reader = blobs.read(digest)?;
    loop {
        let data = reader.chunk(CHUNK_BYTES)?;
        if data.is_empty() || !send(data) {
            return Ok(());
        }
    }
}

/// The chunks of a run folder's files: those with these names, or all.
pub(crate) fn send_files(
    tasks: &TaskTracker,
    folder: PathBuf,
    wanted: Vec<String>,
) -> mpsc::Receiver<Result<v1::FileChunk, Status>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    tasks.spawn_blocking(move || {
        let sent = results::send(&folder, &wanted, |chunk| sender.blocking_send(Ok(chunk)).is_ok());
        if let Err(refusal) = sent {
            // A reader that has gone away needs no reason.
            drop(sender.blocking_send(Err(refusal.into())));
        }
    });
    receiver
}
