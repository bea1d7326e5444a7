//! Where and how a tower runs.

use orchestrator_torch::Device;
use orchestrator_types::Precision;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// By libtorch's fused kernels, which never hold all scores.
    Fused,
    /// As written in the paper: product, softmax, product. To show what it would cost.
    Math,
}

/// Where a tower's weights lie, and how it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The device.
    pub device: Device,
    /// The number format of weights and hidden states.
    pub precision: Precision,
    /// Tokens that a block works on at a time (at least one row): bounds its temporaries.
    pub chunk_tokens: u32,
    /// How attention is computed.
    pub attention: Attention,
}

impl Placement {
    /// The CPU, with fused attention, rows all at once.
    pub const fn cpu(precision: Precision) -> Self {
        Self { device: Device::Cpu, precision, chunk_tokens: u32::MAX, attention: Attention::Fused }
    }

    pub(crate) fn device(self) -> tch::Device {
        match self.device {
            Device::Cpu => tch::Device::Cpu,
            Device::Cuda(index) => tch::Device::Cuda(index.into()),
        }
    }

    /// Rows whose input is made hidden states at a time: pixels take several times the bytes of what
    /// they become.
    pub(crate) fn embedding_rows(self, tokens: i64) -> i64 {
        (self.chunk_rows(tokens) / 4).max(1)
    }

    /// Rows of `tokens` tokens that a block works on at a time.
    pub(crate) fn chunk_rows(self, tokens: i64) -> i64 {
        (i64::from(self.chunk_tokens) / tokens.max(1)).max(1)
    }
}
