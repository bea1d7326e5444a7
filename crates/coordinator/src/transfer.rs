//! Bytes in and out: chunks of a stream on one side, blobs and files on the other, and a bounded
//! channel between them.

use std::{path::PathBuf, sync::Arc};

use orchestrator_proto::{Blocking, CHUNK_BYTES, Refusal, RefusalCode, TRANSFER_TIMEOUT, v1};
use orchestrator_types::Digest;
use tokio::sync::mpsc::{self, error::SendTimeoutError};
use tokio_stream::{Stream, StreamExt};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Status, codegen::Bytes};

use crate::{
    blobs::{BlobError, BlobWriter, Blobs},
    calls::Place,
    driver::Pause,
    durable::disk_full,
    results::FolderReader,
    store::Reader,
};

/// Chunks between network and disk: enough to keep both busy while other threads have their turn,
/// 4 MiB at most.
pub(crate) const CHUNKS_AHEAD: usize = 16;

impl From<BlobError> for Refusal {
    fn from(error: BlobError) -> Self {
        let code = match error {
            BlobError::Missing(_) => RefusalCode::NotFound,
            // A bucket that is away or refuses us: as long as that lasts, it is not the unit's
            // fault.
            BlobError::Object { .. } | BlobError::Leaving(_) => RefusalCode::Unavailable,
            BlobError::Damaged(_) | BlobError::File { .. } | BlobError::Defect(_) => {
                RefusalCode::Internal
            }
        };
        crate::refusal(code, &error)
    }
}

/// Stores a stream of chunks; the blob is durable when this returns. Dropped half-way, it leaves
/// nothing. One that does not fit on the disk pauses the coordinator.
pub(crate) async fn stage(
    blobs: Arc<Blobs>,
    pause: Pause,
    blocking: Blocking,
    tasks: &TaskTracker,
    chunks: impl Stream<Item = Result<v1::BlobChunk, Status>> + Send + Unpin + 'static,
) -> Result<(Digest, u64), Status> {
    // A caller that goes away drops this future. The task sees it, and tidies up.
    let wanted = CancellationToken::new();
    let _guard = wanted.clone().drop_guard();
    let staging = tasks.spawn(async move {
        let mut writer = blobs.create().await.map_err(|error| unwritten(error, 0, &pause))?;
        writer.on_this_thread();
        let (sender, received) = mpsc::channel(CHUNKS_AHEAD);
        // What writes and digests waits for nobody else's turn, and the network not for it.
        let pouring = blocking.drive(pour(received, writer, pause.clone()));
        let receiving = wanted.run_until_cancelled(receive(chunks, sender));
        let (poured, received) = tokio::join!(pouring, receiving);
        let (writer, written) = poured.map_err(Refusal::from)?;
        let status = match (written, received) {
            (Err(refusal), _) => refusal.into(),
            // A connection that breaks may look like the end of its stream.
            (Ok(()), Some(Ok(()))) if !wanted.is_cancelled() => {
                let bytes = writer.size_bytes();
                let kept = writer.keep().await;
                return Ok(kept.map_err(|error| unwritten(error, bytes, &pause))?);
            }
            (Ok(()), Some(Ok(())) | None) => Status::cancelled("nobody waits for the blob"),
            (Ok(()), Some(Err(status))) => status,
        };
        writer.abandon().await;
        Err(status)
    });
    let lost = |_| Refusal::new(RefusalCode::Unavailable, "the blob was not stored; send it again");
    staging.await.map_err(lost)?
}

/// Passes chunks on until their end, or until nobody takes them.
async fn receive(
    mut chunks: impl Stream<Item = Result<v1::BlobChunk, Status>> + Unpin,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), Status> {
    while let Some(chunk) = chunks.next().await {
        if sender.send(chunk?.data).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn pour(
    mut chunks: mpsc::Receiver<Bytes>,
    mut writer: BlobWriter,
    pause: Pause,
) -> (BlobWriter, Result<(), Refusal>) {
    while let Some(data) = chunks.recv().await {
        if let Err(error) = writer.write(data).await {
            let refusal = unwritten(error, writer.size_bytes(), &pause);
            return (writer, Err(refusal));
        }
    }
    (writer, Ok(()))
}

/// Why a blob, of which `bytes` have come, is not stored. Its sender tries again for as long as a
/// disk is full, and the store may notice nothing of it.
fn unwritten(error: BlobError, bytes: u64, pause: &Pause) -> Refusal {
    match &error {
        BlobError::File { path, source, .. } if disk_full(source) => {
            pause.blob_did_not_fit(path.parent().unwrap_or(path), bytes)
        }
        _ => error.into(),
    }
}

/// The chunks of a blob; an error ends the stream, also that its bytes are not those of its name.
pub(crate) fn fetch(
    blobs: Arc<Blobs>,
    inline: Inline,
    tasks: &TaskTracker,
    place: Place,
    digest: Digest,
) -> mpsc::Receiver<Result<v1::BlobChunk, Status>> {
    let (mut pieces, receiver) = Pieces::new(place);
    tasks.spawn(async move {
        let blocking = inline.blocking;
        // What reads and digests waits for nobody else's turn.
        let sending = blocking.drive(async move {
            let sent = send_blob(&blobs, &inline, digest, &mut pieces).await;
            pieces.end(sent);
        });
        if let Err(defect) = sending.await {
            tracing::error!(%defect, "a blob was not sent to its end");
        }
    });
    receiver
}

/// Sends chunks until the end, or until nobody wants them.
async fn send_blob(
    blobs: &Blobs,
    inline: &Inline,
    digest: Digest,
    pieces: &mut Pieces<v1::BlobChunk>,
) -> Result<(), Refusal> {
    let mut reader = match blobs.read(digest).await {
        Ok(reader) => reader,
        Err(missing @ BlobError::Missing(_)) => {
            let data = inline.find(digest).await?.ok_or(missing)?.into();
            return pieces.send(v1::BlobChunk { data }).await.map(drop);
        }
        Err(error) => return Err(error.into()),
    };
    reader.on_this_thread();
    loop {
        let data = reader.chunk(CHUNK_BYTES).await?;
        if data.is_empty() || !pieces.send(v1::BlobChunk { data: data.into() }).await? {
            return Ok(());
        }
    }
}

/// The sending end of an answer in pieces, and its place among the calls in work.
struct Pieces<T> {
    sender: mpsc::Sender<Result<T, Status>>,
    /// Room for the word of what went wrong: a slow reader must never take a part for the whole.
    last: mpsc::OwnedPermit<Result<T, Status>>,
    _place: Place,
}

impl<T> Pieces<T> {
    fn new(place: Place) -> (Self, mpsc::Receiver<Result<T, Status>>) {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD + 1);
        let last = sender.clone().try_reserve_owned().expect("a new channel has room");
        (Self { sender, last, _place: place }, receiver)
    }

    /// Sends one piece; `false` if its reader has gone away.
    async fn send(&mut self, piece: T) -> Result<bool, Refusal> {
        match self.sender.send_timeout(Ok(piece), TRANSFER_TIMEOUT).await {
            Ok(()) => Ok(true),
            Err(SendTimeoutError::Closed(_)) => Ok(false),
            Err(SendTimeoutError::Timeout(_)) => {
                let limit = TRANSFER_TIMEOUT.as_secs();
                let message = format!("the reader has taken nothing for {limit} s");
                Err(Refusal::new(RefusalCode::TooSlow, message))
            }
        }
    }

    fn end(self, sent: Result<(), Refusal>) {
        if let Err(refusal) = sent {
            self.last.send(Err(refusal.into()));
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
    place: Place,
    folder: PathBuf,
    wanted: Vec<String>,
) -> mpsc::Receiver<Result<v1::FileChunk, Status>> {
    let (mut pieces, receiver) = Pieces::new(place);
    tasks.spawn(async move {
        let sent = send_folder(blocking, folder, wanted, &mut pieces).await;
        pieces.end(sent);
    });
    receiver
}

async fn send_folder(
    blocking: Blocking,
    folder: PathBuf,
    wanted: Vec<String>,
    pieces: &mut Pieces<v1::FileChunk>,
) -> Result<(), Refusal> {
    let mut reader = blocking.run(move || FolderReader::open(folder, &wanted)).await??;
    loop {
        let read = move || reader.chunk().map(|chunk| (chunk, reader));
        let (chunk, rest) = blocking.run(read).await??;
        reader = rest;
        let Some(chunk) = chunk else { return Ok(()) };
        if !pieces.send(chunk).await? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_told_that_it_got_a_part() {
        let (mut pieces, mut receiver) = Pieces::new(Place::default());
        let sending = async {
            let mut sent = Ok(true);
            while let Ok(true) = sent {
                sent = pieces.send(1).await;
            }
            pieces.end(sent.map(drop));
        };
        sending.await;
        let mut read = Vec::new();
        while let Some(piece) = receiver.recv().await {
            read.push(piece.map_err(|status| status.code()));
        }
        let mut expected = vec![Ok(1); CHUNKS_AHEAD];
        expected.push(Err(tonic::Code::DeadlineExceeded));
        assert_eq!(read, expected);
    }
}
