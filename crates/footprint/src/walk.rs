//! The walk: one forward pass as a sequence of allocations and releases.

use orchestrator_types::{ByteCount, Precision};

use crate::{Attention, Input, Kind, Setting, Tower};

/// The largest live set of a forward pass, weights excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Its size.
    pub peak: ByteCount,
    /// Where it is reached.
    pub at: &'static str,
}

/// Walks over one forward pass of `rows` rows of `tokens` tokens.
///
/// Formulas: every tensor is rows × tokens × its width × the precision's element size. Where a kernel
/// needs a workspace, its size is that of libtorch 2.11's own source (`FlashAttentionKernel.cpp` for
/// the CPU); what a walk cannot know is left to the correction by probes.
pub fn walk(tower: &Tower, setting: Setting, rows: u32, tokens: u32) -> Walk {
    let mut pass = Pass::new(tower, setting, rows, tokens);
    pass.embeddings();
    // Every block but the last is the same; one is enough.
    if tower.layers > 1 {
        pass.block();
    }
    pass.last_block();
    pass.head();
    Walk { peak: ByteCount::bytes(pass.peak), at: pass.at }
}

/// Bytes that attention written out takes in one layer: scores, their softmax, and the mix of values.
pub fn math_attention(tower: &Tower, setting: Setting, rows: u32, tokens: u32) -> ByteCount {
    let element = setting.precision.element_bytes();
    let rows = u64::from(setting.chunk_rows(tokens).min(rows));
    let tokens = u64::from(tokens);
    let scores = rows * u64::from(tower.heads) * tokens * tokens * element;
    let mix = rows * tokens * u64::from(tower.width) * element;
    ByteCount::bytes(2 * scores + mix)
}

struct Pass<'a> {
    tower: &'a Tower,
    setting: Setting,
    rows: u64,
    /// Rows that a block works on at a time.
    chunk: u64,
    tokens: u64,
    /// Bytes of a number of the tower.
    element: u64,
    live: u64,
    peak: u64,
    at: &'static str,
}

impl<'a> Pass<'a> {
    fn new(tower: &'a Tower, setting: Setting, rows: u32, tokens: u32) -> Self {
        let chunk = setting.chunk_rows(tokens).min(rows.max(1));
        let element = setting.precision.element_bytes();
        Self {
            tower,
            setting,
            rows: rows.into(),
            chunk: chunk.into(),
            tokens: tokens.into(),
            element,
            live: 0,
            peak: 0,
            at: "input",
        }
    }

    /// Allocates; gives back what to release.
    fn take(&mut self, at: &'static str, bytes: u64) -> u64 {
        let bytes = match self.setting.kind {
            Kind::Cpu => bytes,
            Kind::Cuda => bytes.next_multiple_of(512),
        };
        self.live += bytes;
        if self.live > self.peak {
            (self.peak, self.at) = (self.live, at);
        }
        bytes
    }

    fn release(&mut self, bytes: u64) {
        self.live -= bytes;
    }

    /// Something that is returned at once: a workspace.
    fn touch(&mut self, at: &'static str, bytes: u64) {
        let taken = self.take(at, bytes);
        self.release(taken);
    }

    /// Bytes of `count` rows of all tokens, `width` numbers each.
    fn hidden(&self, count: u64, width: u64) -> u64 {
        count * self.tokens * width * self.element
    }

    fn width(&self) -> u64 {
        self.tower.width.into()
    }

    /// A layer norm's result, after its statistics (two numbers per token) are gone.
    fn norm(&mut self, at: &'static str, count: u64) -> u64 {
        let out = self.take(at, self.hidden(count, self.width()));
        let statistics = if self.setting.kind == Kind::Cpu { self.element } else { 4 };
        self.touch(at, 2 * count * self.tokens * statistics);
        out
    }

    fn embeddings(&mut self) {
        let width = self.width();
        match self.tower.input {
            Input::Tokens => {
                let ids = self.take("input", self.rows * self.tokens * 8);
                let hidden = self.hidden(self.rows, width);
                self.take("embeddings", hidden);
                self.release(ids);
            }
            Input::Pixels(pixels) => self.patches(pixels),
        }
    }

    fn patches(&mut self, pixels: u64) {
        // Bytes on their way to a GPU, numbers on the CPU.
        let each = if self.setting.kind == Kind::Cpu { 4 } else { 1 };
        let input = self.take("input", self.rows * pixels * each);
        let width = self.width();
        let part = u64::from(self.setting.embedding_rows(u32::try_from(self.tokens).unwrap_or(1)));
        let part = part.min(self.rows);
        let whole = part == self.rows;
        if !whole {
            self.take("embeddings", self.hidden(self.rows, width));
        }
        let numbers = part * pixels;
        let mut raw = 0;
        if self.setting.kind == Kind::Cuda {
            raw = self.take("normalised pixels", numbers * 4);
        }
        if self.element != 4 {
            let cast = self.take("pixels", numbers * self.element);
            self.release(raw);
            raw = cast;
        }
        let patches = self.take("patches", numbers * self.element);
        self.release(raw);
        let tokens = self.tokens - 1;
        let product = self.take("patch embeddings", part * tokens * width * self.element);
        self.release(patches);
        let sum = self.take("position embeddings", self.hidden(part, width));
        self.release(product);
        let normed = self.norm("first norm", part);
        self.release(sum);
        if !whole {
            self.release(normed);
        }
        self.release(input);
    }

    fn block(&mut self) {
        let (chunk, width) = (self.chunk, self.width());
        let normed = self.norm("norm", chunk);
        let fused = self.take("query, key and value", self.hidden(chunk, 3 * width));
        self.release(normed);
        let attended = self.attention(self.tokens);
        self.release(fused);
        let out = self.take("attention's projection", self.hidden(chunk, width));
        self.release(attended + out);
        self.perceptron(chunk * self.tokens);
    }

    /// The pooled token of each row alone; all tokens serve as keys and values.
    fn last_block(&mut self) {
        let (chunk, width) = (self.chunk, self.width());
        let picked = self.take("pooled states", self.rows * width * self.element);
        let normed = self.norm("norm", chunk);
        let fused = self.take("key and value", self.hidden(chunk, 2 * width));
        let query = self.take("pooled query", chunk * width * self.element);
        self.release(normed);
        let attended = self.attention(1);
        self.release(fused + query);
        let out = self.take("attention's projection", chunk * width * self.element);
        self.release(attended + out);
        self.perceptron(chunk);
        let hidden = self.live - picked;
        self.release(hidden);
    }

    /// Attention of `queries` tokens of each row of a chunk; gives back its result's bytes.
    fn attention(&mut self, queries: u64) -> u64 {
        let (chunk, heads) = (self.chunk, u64::from(self.tower.heads));
        let result = chunk * queries * self.width() * self.element;
        if self.setting.attention == Attention::Math {
            let scores = chunk * heads * queries * self.tokens * self.element;
            let product = self.take("attention scores", scores);
            let softmax = self.take("softmax", scores);
            self.release(product);
            let mixed = self.take("mix of values", result);
            self.release(softmax);
            let merged = self.take("merged heads", result);
            self.release(mixed);
            return merged;
        }
        let result = self.take("attention", result);
        let workspace = match self.setting.kind {
            Kind::Cpu => self.flash_workspace(queries) + chunk * heads * queries * 4,
            Kind::Cuda => chunk * heads * queries.next_multiple_of(32) * 4,
        };
        self.touch("attention's workspace", workspace);
        result
    }

    /// Buffers of libtorch's flash attention on one CPU thread.
    fn flash_workspace(&self, queries: u64) -> u64 {
        let split = match queries {
            768.. => 256,
            192.. => 64,
            _ => 32,
        };
        let (rows, keys) = (queries.min(split), self.tokens.min(512));
        let head = self.width() / u64::from(self.tower.heads);
        let reduced = if self.setting.precision == Precision::Fp32 { 0 } else { rows * keys * 2 };
        rows * (keys + 2 + head) * 4 + reduced
    }

    /// Norm, two products and what is between them, on `tokens` tokens.
    fn perceptron(&mut self, tokens: u64) {
        let (width, mlp) = (self.width(), u64::from(self.tower.mlp));
        let normed = self.take("norm", tokens * width * self.element);
        let inner = self.take("feed-forward", tokens * mlp * self.element);
        self.release(normed);
        let out = self.take("feed-forward's projection", tokens * width * self.element);
        self.release(inner + out);
    }

    fn head(&mut self) {
        let embedding = self.rows * u64::from(self.tower.embedding_width);
        let normed = self.take("head", self.rows * self.width() * self.element);
        let projected = self.take("projection", embedding * self.element);
        self.release(normed);
        if self.element != 4 {
            self.take("embeddings out", embedding * 4);
            self.release(projected);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vit(width: u32, heads: u32, side: u32, patch: u32) -> (Tower, u32) {
        let pixels = 3 * u64::from(side).pow(2);
        let tower = Tower {
            input: Input::Pixels(pixels),
            layers: 4,
            width,
            heads,
            mlp: 4 * width,
            embedding_width: 512,
            parameters: 1_000_000,
        };
        (tower, (side / patch).pow(2) + 1)
    }

    #[test]
    fn a_large_batch_is_its_hidden_state_and_one_chunk() {
        // L/14 at 336 pixels, 256 images: 577 tokens of 1,024 numbers.
        let (tower, tokens) = vit(1024, 16, 336, 14);
        let setting = Setting::new(Kind::Cuda, Precision::Bf16);
        let found = walk(&tower, setting, 256, tokens);
        let hidden = 256 * 577 * 1024 * 2;
        assert!(found.peak.as_u64() > hidden, "{found:?}");
        assert!(found.peak.as_u64() < 5 * hidden / 2, "{found:?}");
    }

    #[test]
    fn math_attention_holds_scores_and_softmax() {
        let (tower, tokens) = vit(1024, 16, 336, 14);
        let setting = Setting {
            attention: Attention::Math,
            chunk_tokens: u32::MAX,
            ..Setting::new(Kind::Cpu, Precision::Fp32)
        };
        let found = walk(&tower, setting, 8, tokens);
        let scores = 8 * 16 * 577 * 577 * 4;
        assert_eq!(found.at, "softmax");
        assert!(found.peak.as_u64() > 2 * scores);
    }

    proptest! {
        #[test]
        fn more_rows_never_need_less(
            rows in 1_u32..600, more in 0_u32..600, heads in 1_u32..16, kind in 0..2, half: bool
        ) {
            let kind = if kind == 0 { Kind::Cpu } else { Kind::Cuda };
            let precision = if half { Precision::Fp16 } else { Precision::Fp32 };
            let (tower, tokens) = vit(heads * 64, heads, 224, 16);
            let peak = |rows| walk(&tower, Setting::new(kind, precision), rows, tokens).peak;
            prop_assert!(peak(rows) <= peak(rows + more));
        }
    }
}
