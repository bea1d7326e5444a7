//! Bytes in and out: chunks of a stream on one side, blobs and files on the other, and a bounded
//! channel between them.

use std::{path::PathBuf, sync::Arc};

use orchestrator_proto::{Blocking, CHUNK_BYTES, Refusal, RefusalCode, v1};
use orchestrator_types::Digest;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

use crate::{
    blobs::{BlobError, BlobWriter, Blobs},
    durable::{DISK_FULL, disk_full},
    results::FolderReader,
    store::Reader,
};

/// Chunks between network and disk: enough to keep both busy, 4 MiB at most.
pub(crate) const CHUNKS_AHEAD: usize = 4;

impl From<BlobError> for Refusal {
    fn from(error: BlobError) -> Self {
        let code = match error {
            BlobError::Missing(_) => RefusalCode::NotFound,
            // A bucket that is away or refuses us: as long as that lasts, it is not the unit's
            // fault. A full disk, the same.
            BlobError::Object { .. } | BlobError::Leaving(_) => RefusalCode::Unavailable,
            BlobError::File { ref source, .. } if disk_full(source) => RefusalCode::Unavailable,
            BlobError::Damaged(_) | BlobError::File { .. } | BlobError::Defect(_) => {
                RefusalCode::Internal
            }
        };
        if let BlobError::File { ref source, .. } = error
            && disk_full(source)
        {
            let refusal = crate::refusal(code, &error);
            // Its caller tries again for as long as it takes, and the store may notice nothing.
            tracing::error!("{DISK_FULL}: {}", refusal.message);
            return Self::new(code, format!("{DISK_FULL}: {}", refusal.message));
        }
        crate::refusal(code, &error)
    }
}

/// Stores a stream of chunks; the blob is durable when this returns. Dropped half-way, it leaves
/// nothing.
pub(crate) async fn stage(
    blobs: Arc<Blobs>,
    tasks: &TaskTracker,
    chunks: impl Stream<Item = Result<v1::BlobChunk, Status>> + Send + Unpin + 'static,
) -> Result<(Digest, u64), Status> {
    // A caller that goes away drops this future. The task sees it, and tidies up.
    let wanted = CancellationToken::new();
    let _guard = wanted.clone().drop_guard();
    let staging = tasks.spawn(async move {
        let mut writer = blobs.create().await.map_err(Refusal::from)?;
        let status = match wanted.run_until_cancelled(pour(chunks, &mut writer)).await {
            // A connection that breaks may look like the end of its stream.
            Some(Ok(())) if !wanted.is_cancelled() => {
                return Ok(writer.keep().await.map_err(Refusal::from)?);
            }
            Some(Ok(())) | None => Status::cancelled("nobody waits for the blob"),
            Some(Err(status)) => status,
        };
        writer.abandon().await;
        Err(status)
    });
    let lost = |_| Refusal::new(RefusalCode::Unavailable, "the blob was not stored; send it again");
    staging.await.map_err(lost)?
}

async fn pour(
    mut chunks: impl Stream<Item = Result<v1::BlobChunk, Status>> + Unpin,
    writer: &mut BlobWriter,
) -> Result<(), Status> {
    while let Some(chunk) = chunks.next().await {
        writer.write(chunk?.data).await.map_err(Refusal::from)?;
    }
    Ok(())
}

/// The chunks of a blob; an error ends the stream, also that its bytes are not those of its name.
pub(crate) fn fetch(
    blobs: Arc<Blobs>,
    inline: Inline,
    tasks: &TaskTracker,
    digest: Digest,
) -> mpsc::Receiver<Result<v1::BlobChunk, Status>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    tasks.spawn(async move {
        if let Err(error) = send_blob(&blobs, &inline, digest, &sender).await {
            // A reader that has gone away needs no reason.
            drop(sender.send(Err(error.into())).await);
        }
    });
    receiver
}

/// Sends chunks until the end, or until nobody wants them.
async fn send_blob(
    blobs: &Blobs,
    inline: &Inline,
    digest: Digest,
    sender: &mpsc::Sender<Result<v1::BlobChunk, Status>>,
) -> Result<(), Refusal> {
    let mut reader = match blobs.read(digest).await {
        Ok(reader) => reader,
        Err(missing @ BlobError::Missing(_)) => {
            let data = inline.find(digest).await?.ok_or(missing)?;
            // A reader that has gone away needs nothing.
            drop(sender.send(Ok(v1::BlobChunk { data })).await);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    loop {
        let data = reader.chunk(CHUNK_BYTES).await?;
        if data.is_empty() || sender.send(Ok(v1::BlobChunk { data })).await.is_err() {
            return Ok(());
        }
    }
}

/// Blobs that are stored with the results of their units.
#[derive(Clone, Debug)]
pub(crate) struct Inline {
    pub state: PathBuf,
    pub blocking: Blocking,
}

impl Inline {
    async fn find(&self, digest: Digest) -> Result<Option<Vec<u8>>, Refusal> {
        let state = self.state.clone();
        let find = move || Reader::open(&state)?.input(digest);
        let found = self.blocking.run(find).await??;
        Ok(found.filter(|bytes| Digest::of(bytes) == digest))
    }
}

/// The chunks of a run folder's files: those with these names, or all.
pub(crate) fn send_files(
    blocking: Blocking,
    tasks: &TaskTracker,
    folder: PathBuf,
    wanted: Vec<String>,
) -> mpsc::Receiver<Result<v1::FileChunk, Status>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    tasks.spawn(async move {
        if let Err(refusal) = send_folder(blocking, folder, wanted, &sender).await {
            // A reader that has gone away needs no reason.
            drop(sender.send(Err(refusal.into())).await);
        }
    });
    receiver
}

async fn send_folder(
    blocking: Blocking,
    folder: PathBuf,
    wanted: Vec<String>,
    sender: &mpsc::Sender<Result<v1::FileChunk, Status>>,
) -> Result<(), Refusal> {
    let mut reader = blocking.run(move || FolderReader::open(folder, &wanted)).await??;
    loop {
        let read = move || reader.chunk().map(|chunk| (chunk, reader));
        let (chunk, rest) = blocking.run(read).await??;
        reader = rest;
        let Some(chunk) = chunk else { return Ok(()) };
        if sender.send(Ok(chunk)).await.is_err() {
            return Ok(());
        }
    }
}
