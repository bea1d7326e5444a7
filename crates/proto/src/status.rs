//! The one table between our refusals and gRPC's status codes.

use tonic::{Code, Status};

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
    /// The plan does not fit the slices.
    DoesNotFit,
    /// The service is stopping or not there: try again.
    Unavailable,
    /// Took longer than its deadline.
    TooSlow,
    /// A defect, or a full disk on the other side.
    Internal,
}

const TABLE: [(RefusalCode, Code); 7] = [
    (RefusalCode::Invalid, Code::InvalidArgument),
    (RefusalCode::NotFound, Code::NotFound),
    (RefusalCode::Stale, Code::FailedPrecondition),
    (RefusalCode::DoesNotFit, Code::ResourceExhausted),
    (RefusalCode::Unavailable, Code::Unavailable),
    (RefusalCode::TooSlow, Code::DeadlineExceeded),
    (RefusalCode::Internal, Code::Internal),
];

impl Refusal {
    /// A refusal of this kind with this message.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = TABLE.iter().find(|(ours, _)| *ours == refusal.code);
        Self::new(code.map_or(Code::Internal, |(_, code)| *code), refusal.message)
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let found = TABLE.iter().find(|(_, code)| *code == status.code());
        let code = match (found, status.code()) {
            (Some((ours, _)), _) => *ours,
            // A connection that breaks in the middle of a call arrives as one of these.
            (None, Code::Cancelled | Code::Unknown | Code::Aborted) => RefusalCode::Unavailable,
            (None, _) => RefusalCode::Internal,
        };
        Self::new(code, status.message())
    }
}
