//! Why an attempt gives no result, and the one place where that becomes a class.

use std::{error::Error, io, path::PathBuf};

use orchestrator_data::{
    dataset::DatasetErrors, preprocess::RecipeError, tokenizer::TokenizerError,
};
use orchestrator_engine::EngineError;
use orchestrator_ledger::{Owner, Refusal};
use orchestrator_model::ModelError;
use orchestrator_tasks::{EmbeddingError, RankError, RelevanceError, TileShapeError};
use orchestrator_torch::out_of_memory;
use orchestrator_types::{ByteCount, Digest, FailureClass, SampleId};

use crate::slice::TermsError;

/// What ended an attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecuteError {
    /// The model folder is not one that can be evaluated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The dataset cannot be used.
    #[error(transparent)]
    Dataset(#[from] DatasetErrors),
    /// The model's preprocessing cannot be reproduced.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The model's tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A forward pass failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The book can never have room.
    #[error(transparent)]
    Refused(Refusal),
    /// The book has no room beside what the unit itself holds.
    #[error(
        "never fits: {owner} asked for {asked} beside {beside}, and the slice's quota is {quota}; \
         {missing} missing; raise the quota, or lower batch or precision"
    )]
    NoRoom {
        /// Who asked.
        owner: Owner,
        /// For how much.
        asked: ByteCount,
        /// What the unit holds already, by name.
        beside: String,
        /// All that the slice may hold.
        quota: ByteCount,
        /// Bytes that the quota is too small by.
        missing: ByteCount,
    },
    /// The run's terms for memory cannot be kept.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// libtorch's own housekeeping failed.
    #[error(transparent)]
    Torch(#[from] orchestrator_torch::TorchError),
    /// Embeddings have no direction.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    /// Queries and candidates do not belong together.
    #[error(transparent)]
    Relevance(#[from] RelevanceError),
    /// Scores give no ranking.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A tile of scores has the wrong shape.
    #[error(transparent)]
    Tile(#[from] TileShapeError),
    /// Other bytes lie here than the plan was made for.
    #[error(
        "{what} at {}: found digest {found}, the plan was made for {planned}; give every worker \
         the same files, or submit again", .place.display()
    )]
    OtherBytes {
        /// The weights, the sample list or the preprocessing.
        what: &'static str,
        /// Folder or file.
        place: PathBuf,
        /// Digest of what lies here.
        found: Digest,
        /// Digest in the assignment.
        planned: Digest,
    },
    /// Inputs of one unit contradict each other.
    #[error("{0}")]
    Mismatch(String),
    /// A sample that cannot be read, where such samples are not to be set aside.
    #[error(
        "sample {sample} (position {position}): {reason}; mend it, or set `on_bad_sample: quarantine`"
    )]
    BadSample {
        /// Position in the dataset.
        position: u32,
        /// Its identity.
        sample: SampleId,
        /// What is wrong with it.
        reason: String,
    },
    /// A sample that this worker may not read.
    #[error(
        "sample {sample}: {} is in none of this worker's data roots; move it there, or start the \
         worker with one more `--data-root NAME=DIR`", .path.display()
    )]
    Outside {
        /// Its identity.
        sample: SampleId,
        /// Where the dataset says that it lies.
        path: PathBuf,
    },
    /// A blob is not what its name says.
    #[error("blob {digest}: {problem}")]
    Blob {
        /// The blob's name.
        digest: Digest,
        /// What is wrong with it.
        problem: String,
    },
    /// A file or folder of ours cannot be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A defect of ours.
    #[error("panic: {0}; this is a defect, please report it")]
    Panic(String),
    /// Nobody waits for the result any more.
    #[error("cancelled")]
    Cancelled,
}

impl From<Refusal> for ExecuteError {
    /// One unit runs at a time, and whatever it does not need was let go for it: nobody is left who
    /// could return anything, so that *not now* is *never*.
    fn from(refusal: Refusal) -> Self {
        let Refusal::NotNow { owner, asked, free, missing, holders } = refusal else {
            return Self::Refused(refusal);
        };
        let held = holders.iter().map(|holder| holder.bytes.as_u64()).sum::<u64>();
        let names: Vec<String> =
            holders.iter().map(|holder| format!("{} ({})", holder.owner, holder.bytes)).collect();
        let quota = ByteCount::bytes(held.saturating_add(free.as_u64()));
        Self::NoRoom { owner, asked, beside: names.join(", "), quota, missing }
    }
}

impl ExecuteError {
    /// What the failure says about the unit.
    pub(crate) fn class(&self) -> FailureClass {
        if self.device_is_lost() {
            return FailureClass::Crash;
        }
        match self {
            Self::Model(_)
            | Self::Dataset(_)
            | Self::Recipe(_)
            | Self::Tokenizer(_)
            | Self::OtherBytes { .. }
            | Self::Mismatch(_)
            | Self::BadSample { .. }
            | Self::Outside { .. }
            | Self::Embedding(_)
            | Self::Relevance(_)
            | Self::Rank(RankError::NotFinite { .. }) => FailureClass::Invalid,
            Self::Engine(error) => class_of_engine(error),
            Self::Refused(_) | Self::NoRoom { .. } => FailureClass::Resource,
            Self::Terms(error) => class_of_terms(error),
            Self::File { source, .. } => class_of_file(source.kind()),
            Self::Torch(_)
            | Self::Rank(_)
            | Self::Tile(_)
            | Self::Blob { .. }
            | Self::Panic(_)
            | Self::Cancelled => FailureClass::Internal,
        }
    }

    /// Whether the device will give nothing but errors from now on, in whatever call that came up.
    pub(crate) fn device_is_lost(&self) -> bool {
        let text = match self {
            Self::Engine(EngineError::DeviceLost(_)) => return true,
            Self::Engine(EngineError::Setup(error))
            | Self::Torch(error)
            | Self::Terms(TermsError::Torch(error)) => error.to_string(),
            _ => return false,
        };
        out_of_memory::classify(&text, None) == Some(out_of_memory::Kind::Fatal)
    }

    /// The error with all its causes, on one line.
    pub(crate) fn message(&self) -> String {
        let mut message = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        message
    }
}

const fn class_of_engine(error: &EngineError) -> FailureClass {
    match error {
        EngineError::OutOfMemory(_) => FailureClass::Resource,
        EngineError::DeviceLost(_) => FailureClass::Crash,
        // A tokenizer that does not belong to the model, or a precision that is not built.
        EngineError::Precision(_)
        | EngineError::TextLength { .. }
        | EngineError::TokenId { .. }
        | EngineError::NoEndOfText { .. } => FailureClass::Invalid,
        EngineError::Torch(_) | EngineError::Setup(_) | EngineError::Length { .. } => {
            FailureClass::Internal
        }
    }
}

const fn class_of_terms(error: &TermsError) -> FailureClass {
    match error {
        TermsError::Quota(_) | TermsError::Refused(_) => FailureClass::Resource,
        TermsError::Settled { .. } => FailureClass::Invalid,
        TermsError::Torch(_) => FailureClass::Internal,
    }
}

fn class_of_file(kind: io::ErrorKind) -> FailureClass {
    match kind {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::FileTooLarge
        | io::ErrorKind::OutOfMemory => FailureClass::Resource,
        _ => FailureClass::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_beside_its_own_unit_never_fits() {
        let ledger = orchestrator_ledger::Ledger::new(ByteCount::mib(8));
        let _texts = ledger.lease(Owner::Texts, ByteCount::mib(6)).unwrap();
        let refusal = ledger.lease(Owner::ScoreTiles, ByteCount::mib(3)).unwrap_err();
        let error = ExecuteError::from(refusal);
        assert_eq!(error.class(), FailureClass::Resource);
        assert_eq!(
            error.message(),
            "never fits: score tiles asked for 3.00 MiB beside texts (6.00 MiB), and the slice's \
             quota is 8.00 MiB; 1.00 MiB missing; raise the quota, or lower batch or precision"
        );
    }

    #[test]
    fn a_message_holds_every_cause_once() {
        let source = io::Error::from(io::ErrorKind::StorageFull);
        let error = ExecuteError::File { action: "write", path: "blobs/x".into(), source };
        assert_eq!(error.message(), "cannot write blobs/x: no storage space");
        assert_eq!(error.class(), FailureClass::Resource);
        let engine = ExecuteError::from(EngineError::OutOfMemory("4 bytes".to_owned()));
        assert_eq!(engine.message(), "out of memory: 4 bytes");
        assert_eq!(engine.class(), FailureClass::Resource);
    }
}
