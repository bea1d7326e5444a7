//! The wire: generated messages, conversions to and from the domain, limits, and the one table of
//! errors and status codes.
//!
//! Invariant: generated types stop here and in the thin gRPC handlers. A conversion names every
//! field, so that a new one breaks the build instead of being dropped.

mod blocking;
mod connection;
mod from_wire;
mod health;
mod status;
#[cfg(test)]
mod tests;
mod to_wire;

pub use blocking::{Blocking, Defect};
pub use connection::{
    CHUNK_BYTES, CONTROL_TIMEOUT, ConnectError, Dial, INLINE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES,
    QUESTION_LIMIT_BYTES, Stream, TRANSFER_TIMEOUT, connect, connect_by, connect_unix, server,
};
pub use from_wire::{InvalidMessage, run_state};
pub use health::Health;
pub use status::{Refusal, RefusalCode};
pub use to_wire::wire_run_state;

/// What the messages become: for processes that carry out work and decide nothing, and so do not
/// depend on the crates that decide.
pub mod domain {
    pub use orchestrator_plan::{
        DatasetSource, Direction, EncodeImages, EncodeTexts, MOST_TOWERS, ModelSource, SliceOffer,
        SourceKind, TextSet, recipe,
    };
    pub use orchestrator_run::{
        AssignedRank, AssignedWork, Assignment, Blob, ExecutorReading, ImageCounts,
        QuarantinedSample, Timing, UnitResult,
    };
}

/// Version of the messages and of their meaning.
pub const PROTOCOL_VERSION: u32 = 3;

/// Oldest version that this build still speaks. A release keeps the one before its own.
pub const PROTOCOL_MIN: u32 = 3;

/// Generated from `proto/orchestrator/v1`.
pub mod v1 {
    #![expect(
        clippy::pedantic,
        clippy::large_enum_variant,
        missing_docs,
        reason = "generated code; the documentation stands in the .proto files"
    )]
    tonic::include_proto!("orchestrator.v1");
}

/// The messages and services as protobuf describes them, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Identity of this build. A worker and a coordinator of different builds refuse each other, since
/// their numbers could differ.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
