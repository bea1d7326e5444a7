//! Why there is no run folder.

use std::{
    io,
    path::{Path, PathBuf},
};

use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_report::{FoldError, parquet::WriteError};
use orchestrator_types::{RunId, UnitId};

use crate::{
    blobs::BlobError,
    durable::{DISK_FULL, disk_full},
    store::StoreError,
};

/// A run folder that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResultsError {
    /// The store cannot be read.
    #[error("the results cannot be read from the store")]
    Store(#[from] StoreError),
    /// A blob that a committed result names cannot be read.
    #[error("a result's blob cannot be read")]
    Blob(#[from] BlobError),
    /// A blob or partial result is not what its unit makes.
    #[error("the result of unit {unit} cannot be read: {problem}")]
    Unit {
        /// The unit.
        unit: UnitId,
        /// What does not fit.
        problem: String,
    },
    /// It was made for an end that no longer holds.
    #[error("the run was opened again; watch it to its end, then ask again")]
    OpenedAgain,
    /// Results contradict each other.
    #[error("the results do not belong together")]
    Fold(#[from] FoldError),
    /// A table cannot be written.
    #[error("a table cannot be written")]
    Table(#[from] WriteError),
    /// A document cannot be written as JSON.
    #[error("a document cannot be written")]
    Json(#[source] serde_json::Error),
    /// A file of the folder cannot be written.
    #[error("the run folder cannot be written")]
    Write(#[source] io::Error),
    /// A file or folder cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// For `map_err` around a call to the file system.
pub(super) fn file<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> ResultsError + 'a {
    move |source| ResultsError::File { action, path: path.to_owned(), source }
}

impl ResultsError {
    /// What the asker of `run`'s results is told.
    pub(super) fn refusal(&self, run: &RunId) -> Refusal {
        match self {
            Self::Blob(BlobError::Missing(_) | BlobError::Damaged(_)) => {
                let Refusal { code, message } = crate::refusal(RefusalCode::Internal, self);
                let advice = format!("`orchestrator resume {run}` computes it again");
                Refusal::new(code, format!("{message}; {advice}"))
            }
            Self::OpenedAgain => crate::refusal(RefusalCode::Unavailable, self),
            Self::Write(source) | Self::File { source, .. } if disk_full(source) => {
                Refusal::new(RefusalCode::Unavailable, DISK_FULL)
            }
            other => crate::refusal(RefusalCode::Internal, other),
        }
    }
}

impl From<ResultsError> for Refusal {
    fn from(error: ResultsError) -> Self {
        crate::refusal(RefusalCode::Internal, &error)
    }
}
