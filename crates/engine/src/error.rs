//! What can go wrong in a forward pass, and the one place where libtorch's words are sorted.

use orchestrator_types::Precision;
use tch::TchError;

use orchestrator_torch::{
    Device,
    allocator::{self, FreeTotal},
    out_of_memory::{self, Kind},
};

/// A call that gave no result.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// An allocation was refused. The engine is intact; a smaller batch may pass.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device's context is dead: nothing in this process will run on it again.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// libtorch refused an operator.
    #[error("libtorch: {0}")]
    Torch(String),
    /// libtorch could not be set up for this thread.
    #[error(transparent)]
    Setup(#[from] orchestrator_torch::TorchError),
    /// The precision is not built yet.
    #[error("precision {0} is not built yet; use fp32, fp16 or bf16")]
    Precision(Precision),
    /// A slice does not have the length that the other arguments call for.
    #[error("{what}: {found} values where {expected} are called for")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Length called for.
        expected: usize,
        /// Length given.
        found: usize,
    },
    /// Texts are longer than the model reads.
    #[error("texts of {length} tokens; the model reads 1 to {context}")]
    TextLength {
        /// Tokens of each text.
        length: usize,
        /// Most tokens that the model reads.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("text {text} has token id {id}; the model knows 0 to {last}")]
    TokenId {
        /// Position of the text in the call.
        text: usize,
        /// The id.
        id: i64,
        /// The largest id.
        last: i64,
    },
    /// A text without the token at which it is pooled.
    #[error("text {text} has no end-of-text token {id}")]
    NoEndOfText {
        /// Position of the text in the call.
        text: usize,
        /// The end-of-text token's id.
        id: i64,
    },
}

impl From<TchError> for EngineError {
    fn from(error: TchError) -> Self {
        let text = match error {
            TchError::Torch(text) => text,
            other => other.to_string(),
        };
        // A C++ stack trace follows; it helps nobody who reads a report.
        let first = text.split("\nException raised from").next().unwrap_or_default().trim_end();
        match out_of_memory::classify(&text, free_now(first)) {
            Some(Kind::Device | Kind::Host | Kind::Masked) => Self::OutOfMemory(first.to_owned()),
            Some(Kind::Fatal) => Self::DeviceLost(first.to_owned()),
            None => Self::Torch(first.to_owned()),
        }
    }
}

/// What the device has left, where that tells whether memory was the reason.
fn free_now(text: &str) -> Option<FreeTotal> {
    let ambiguous = text.contains("CUBLAS_STATUS_") || text.contains("CUDNN_STATUS_");
    let ask = || allocator::free_and_total(Device::Cuda(0)).ok().flatten();
    ambiguous.then(ask).flatten()
}

/// Checks a slice's length.
pub(crate) fn check_length(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), EngineError> {
    if expected == found { Ok(()) } else { Err(EngineError::Length { what, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_allocation_is_out_of_memory_and_nothing_else_is() {
        let huge = tch::Tensor::f_zeros([1 << 50], (tch::Kind::Float, tch::Device::Cpu));
        assert!(matches!(huge.map_err(EngineError::from), Err(EngineError::OutOfMemory(_))));
        let ones = tch::Tensor::from_slice(&[1.0_f32, 1.0]);
        let wrong = EngineError::from(ones.f_view([3]).unwrap_err());
        assert!(matches!(&wrong, EngineError::Torch(text) if !text.contains("frame #")), "{wrong}");
    }
}
