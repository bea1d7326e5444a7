//! Why a store cannot be used.

use std::path::PathBuf;

use crate::durable::{DISK_FULL, disk_full};

/// A store that cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else works with it.
    #[error("the store in {path} is in use by another process; wait until it ends, or stop it")]
    InUse {
        /// Its folder.
        path: PathBuf,
    },
    /// Its folder is on a file system that other hosts may write to.
    #[error(
        "{path} is on a network's file system ({kind}), where a store may be damaged by a cut \
         connection or by two coordinators at once; choose a folder on a local disk, or allow it \
         with `--network-store` if you know that only this host uses it and that its locks work"
    )]
    Network {
        /// The folder.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
    /// There is none.
    #[error("there is no store in {path}; nothing was run there yet")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// Written by a later release.
    #[error(
        "the store in {path} has format {found}, and this release reads format {known}; use the \
         release that wrote it, or move the folder away"
    )]
    Newer {
        /// Its folder.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format that this build knows.
        known: i64,
    },
    /// Its pages do not fit together.
    #[error("the store in {path} is damaged: {finding}; restore a copy, or move it away")]
    Damaged {
        /// Its folder.
        path: PathBuf,
        /// What SQLite's check says first.
        finding: String,
    },
    /// A row holds what this build would never write.
    #[error("the store holds an unreadable {what}")]
    Row {
        /// Which field.
        what: &'static str,
        /// Why it is unreadable.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file or folder beside the database cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// SQLite refuses.
    #[error("the store cannot {action}")]
    Database {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
}

impl StoreError {
    /// For `map_err` around a statement.
    pub(super) const fn database(action: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database { action, source }
    }

    /// Why nothing can be written, if that is what this says: the disk is full or fails. Such an
    /// error passes without us.
    pub(crate) fn unwritable(&self) -> Option<String> {
        use rusqlite::ErrorCode;
        let full = match self {
            Self::Database { source: rusqlite::Error::SqliteFailure(failure, _), .. } => {
                match failure.code {
                    ErrorCode::DiskFull => true,
                    ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly => {
                        false
                    }
                    _ => return None,
                }
            }
            Self::File { source, .. } => disk_full(source),
            _ => return None,
        };
        Some(if full {
            DISK_FULL.to_owned()
        } else {
            let cause = std::error::Error::source(self).map(ToString::to_string);
            format!(
                "the coordinator cannot write to its disk ({}); it goes on by itself when it can",
                cause.unwrap_or_default()
            )
        })
    }

    pub(crate) fn row<E>(what: &'static str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Self::Row { what, source: source.into() }
    }
}
