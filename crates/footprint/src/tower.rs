//! What a walk needs to know of a tower and of how it is run.

use orchestrator_types::{ByteCount, Precision};

/// What comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Token ids.
    Tokens,
    /// Pictures of this many numbers: channels × height × width.
    Pixels(u64),
}

/// The sizes of one tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tower {
    /// What comes in.
    pub input: Input,
    /// Blocks.
    pub layers: u32,
    /// Numbers of a token's hidden state.
    pub width: u32,
    /// Attention heads; divides `width`.
    pub heads: u32,
    /// Numbers inside the feed-forward part.
    pub mlp: u32,
    /// Numbers of an embedding.
    pub embedding_width: u32,
    /// Numbers of all weights.
    pub parameters: u64,
}

/// The kind of device that runs it; decides rounding and workspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The counting allocator: every byte as asked for.
    Cpu,
    /// The caching allocator of CUDA: blocks of 512 bytes.
    Cuda,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// In tiles; scores are never in memory as a whole.
    Fused,
    /// Product, softmax, product, with all scores in memory.
    Math,
}

/// How a tower is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// On what.
    pub kind: Kind,
    /// In which number format.
    pub precision: Precision,
    /// A block works on this many tokens at a time (at least one row), in place.
    pub chunk_tokens: u32,
    /// How.
    pub attention: Attention,
}

impl Setting {
    /// Tokens that a block works on at a time: enough to keep every multiprocessor of a large GPU
    /// busy (products of 32 k rows lose about 3 % to the last wave), few enough that temporaries stay
    /// a fraction of a large batch's hidden state.
    pub const CHUNK_TOKENS: u32 = 32_768;

    /// The engine's own way on a device, in a precision.
    pub const fn new(kind: Kind, precision: Precision) -> Self {
        let (chunk_tokens, attention) = (Self::CHUNK_TOKENS, Attention::Fused);
        Self { kind, precision, chunk_tokens, attention }
    }

    /// Rows of `tokens` tokens that a block works on at a time.
    pub const fn chunk_rows(self, tokens: u32) -> u32 {
        let rows = self.chunk_tokens / if tokens == 0 { 1 } else { tokens };
        if rows == 0 { 1 } else { rows }
    }

    /// Rows whose input is made hidden states at a time.
    pub const fn embedding_rows(self, tokens: u32) -> u32 {
        let rows = self.chunk_rows(tokens) / 4;
        if rows == 0 { 1 } else { rows }
    }
}

impl Tower {
    /// Weights as loaded.
    pub const fn weights(&self, precision: Precision) -> ByteCount {
        ByteCount::bytes(self.parameters.saturating_mul(precision.element_bytes()))
    }

    /// Most that loading holds beside the weights: query, key and value before they are one; where
    /// numbers are rounded, a matrix in single precision on its way; on a GPU, where they are stored
    /// in another format (`stored` bytes a number), the largest tensor as it arrives.
    pub fn loading(&self, kind: Kind, precision: Precision, stored: u64) -> ByteCount {
        let (width, mlp) = (u64::from(self.width), u64::from(self.mlp));
        let element = precision.element_bytes();
        let stacked = 3 * width * width * element;
        let single = if precision == Precision::Fp32 { 0 } else { 4 * width * mlp };
        let arriving = match kind {
            Kind::Cuda if stored != element => {
                let blocks = u64::from(self.layers) * (4 * width * width + 2 * width * mlp);
                // The input's table is the largest.
                stored * self.parameters.saturating_sub(blocks).max(width * mlp)
            }
            Kind::Cpu | Kind::Cuda => 0,
        };
        ByteCount::bytes(stacked.max(single + arriving.min(stored * width * mlp)).max(arriving))
    }
}
