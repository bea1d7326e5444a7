//! The one table between our refusals and gRPC's status codes.

use orchestrator_types::wording::told;
use tonic::{Code, Status, metadata::AsciiMetadataValue};

/// Where the kind of a refusal stands beside its code, which several kinds may share.
const KIND: &str = "orchestrator-refusal";

/// Why a call was refused; both ends of the wire speak this, never raw codes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of refusal it is.
    pub code: RefusalCode,
    /// For people: what, where, what to do.
    pub message: String,
}

/// Kinds of refusal that a caller can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The request is malformed.
    Invalid,
    /// No such run, blob, session or unit.
    NotFound,
    /// Versions differ, or the session is over: register again or upgrade.
    Stale,
    /// Its certificate does not allow the caller to do this.
    Denied,
    /// The plan does not fit the slices.
    DoesNotFit,
    /// The service is stopping or not there: try again.
    Unavailable,
    /// The service answers as many calls as it can: try again, later each time.
    Overloaded,
    /// Took longer than its deadline.
    TooSlow,
    /// A defect, or a full disk on the other side.
    Internal,
}

/// Kinds, codes and names. Of the kinds that share a code the first is what a peer means that names
/// none.
const TABLE: [(RefusalCode, Code, &str); 9] = [
    (RefusalCode::Invalid, Code::InvalidArgument, "invalid"),
    (RefusalCode::NotFound, Code::NotFound, "not-found"),
    (RefusalCode::Stale, Code::FailedPrecondition, "stale"),
    (RefusalCode::Denied, Code::PermissionDenied, "denied"),
    (RefusalCode::DoesNotFit, Code::ResourceExhausted, "does-not-fit"),
    (RefusalCode::Unavailable, Code::Unavailable, "unavailable"),
    (RefusalCode::Overloaded, Code::Unavailable, "overloaded"),
    (RefusalCode::TooSlow, Code::DeadlineExceeded, "too-slow"),
    (RefusalCode::Internal, Code::Internal, "internal"),
];

impl Refusal {
    /// A refusal of this kind with this message.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let found = TABLE.iter().find(|(ours, ..)| *ours == refusal.code);
        let (code, name) = found.map_or((Code::Internal, "internal"), |row| (row.1, row.2));
        // A header: HTTP/2 allows 16 KiB for all of them, and a byte that is no ASCII takes three. It
        // may repeat what the caller sent, and is shown on terminals.
        let mut status = Self::new(code, told(&refusal.message));
        status.metadata_mut().insert(KIND, AsciiMetadataValue::from_static(name));
        status
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let named = status.metadata().get(KIND).and_then(|name| name.to_str().ok());
        let same = |row: &&(RefusalCode, Code, &str)| row.1 == status.code();
        let found = TABLE.iter().filter(same).find(|row| Some(row.2) == named);
        let found = found.or_else(|| TABLE.iter().find(same));
        let code = match (found, status.code()) {
            (Some((ours, ..)), _) => *ours,
            // A connection that breaks in the middle of a call arrives as one of these.
            (None, Code::Cancelled | Code::Unknown | Code::Aborted) => RefusalCode::Unavailable,
            // A message above the limit: sent again, it is as large.
            (None, Code::OutOfRange) => RefusalCode::Invalid,
            (None, _) => RefusalCode::Internal,
        };
        Self::new(code, status.message())
    }
}
