//! The words of the project: newtypes that every other crate speaks in.
//!
//! Invariant: a value of a type in here is valid by construction. There is no I/O, no clock and no
//! decision here; a type moves in when a second crate needs it.

mod allocator;
mod byte_count;
mod caption_choice;
mod component;
mod data_root;
mod device;
mod digest;
mod failure;
mod health;
mod ids;
mod memory;
pub mod planted;
mod precision;
mod shard;
pub mod wording;

pub use allocator::{AllocatorSettings, AllocatorSettingsError};
pub use byte_count::{ByteCount, ParseByteCountError};
pub use caption_choice::CaptionChoice;
pub use component::Component;
pub use data_root::below_data_root;
pub use device::{DeviceId, ParseDeviceIdError};
pub use digest::{Digest, ParseDigestError};
pub use failure::FailureClass;
pub use health::{DeviceNews, DeviceUse, ProcessUse, XidClass};
pub use ids::{
    DataRootName, DatasetName, FencingToken, NodeName, ParseNameError, RunId, SampleId, SessionId,
    SliceId, TrialId, UnitId,
};
pub use memory::{MemoryTerms, OnOom};
pub use precision::{ParsePrecisionError, Precision};
pub use shard::{Shard, shards};

/// What a component of a process is doing; the axis along which memory and time are reported.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Weights are being read and placed on the device.
    Load,
    /// First forward passes, whose cost is not representative.
    WarmUp,
    /// Samples are being evaluated.
    Run,
}
