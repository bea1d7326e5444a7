//! Forward passes: pixels and token ids in, embeddings and scores out. The only user of `tch`.
//!
//! Invariants:
//! - Plain slices cross the border of this crate; no tensor does.
//! - Every operator runs in inference mode, on the calling thread alone (`Session`), through
//!   tch's fallible calls. What libtorch throws becomes an [`EngineError`]; a refused allocation is
//!   always [`EngineError::OutOfMemory`].
//! - An embedding depends on its own sample and on the *shape* of the call it was made in, never
//!   on the other samples of that call, on the thread or on what ran before. Matrix products round
//!   differently for different shapes, so callers that need equal bits use equal shapes.
//!
//! Absent so far: int8.

mod borrowed;
mod error;
mod layers;
mod placement;
mod score;
mod session;
mod text;
mod tower;
mod vision;
mod weights;

pub use error::EngineError;
pub use orchestrator_torch::Device;
pub use placement::{Attention, Placement};
pub use score::Scorer;
pub use text::TextEncoder;
pub use vision::{Pixels, VisionEncoder};

/// The version of libtorch in use, as `2.11.0`.
pub fn libtorch_version() -> &'static str {
    orchestrator_torch::version()
}

/// What libtorch computes with on this processor, on which the last bits of an embedding depend;
/// see [`orchestrator_torch::cpu_kernels`].
pub fn cpu_kernels() -> Result<String, EngineError> {
    Ok(orchestrator_torch::cpu_kernels()?)
}

#[cfg(test)]
mod input_tests;
#[cfg(test)]
mod reference_tests;
