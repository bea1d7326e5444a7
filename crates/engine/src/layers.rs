//! The layers that a tower is a list of. Hidden states are tensors `[texts or images, tokens, width]`
//! in the tower's precision; blocks overwrite the ones they are given.

mod attention;
mod block;
mod embeddings;
mod head;
mod picture;

use tch::Tensor;

use crate::{EngineError, weights::Weight};

pub(crate) use block::Block;
pub(crate) use embeddings::{TextEmbeddings, VisionEmbeddings};
pub(crate) use head::Head;
pub(crate) use picture::Picture;

/// One step of a tower.
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    /// Token ids `[n, tokens]` → hidden states.
    TextEmbeddings(TextEmbeddings),
    /// Pictures → hidden states.
    VisionEmbeddings(VisionEmbeddings),
    /// Hidden states, in place.
    Block(Block),
    /// Pooled hidden states `[n, width]` → embeddings `[n, embedding width]` of length one.
    Head(Head),
}

/// The one token of each sequence that the embedding is made from.
#[derive(Debug)]
pub(crate) enum Pooled {
    /// The first (class token).
    First,
    /// One position per sequence.
    At {
        /// Position in the flattened batch, `[n]`: sequence × tokens + position.
        rows: Tensor,
        /// Which tokens the pooled one attends to, `[n, 1, 1, tokens]`, true or false.
        visible: Tensor,
    },
}

impl Pooled {
    /// `[n, tokens, width]` → `[n, width]`.
    fn pick(&self, hidden: &Tensor) -> Result<Tensor, EngineError> {
        match self {
            Self::First => Ok(hidden.f_select(1, 0)?),
            Self::At { rows, .. } => Ok(hidden.f_flatten(0, 1)?.f_index_select(0, rows)?),
        }
    }

    /// The same for `count` sequences from `start` on.
    fn part(&self, start: i64, count: i64) -> Result<Self, EngineError> {
        let Self::At { rows, visible } = self else { return Ok(Self::First) };
        let tokens = *visible.size().last().expect("four axes");
        Ok(Self::At {
            rows: rows.f_narrow(0, start, count)?.f_sub_scalar(start * tokens)?,
            visible: visible.f_narrow(0, start, count)?,
        })
    }

    fn visible(&self) -> Option<&Tensor> {
        match self {
            Self::First => None,
            Self::At { visible, .. } => Some(visible),
        }
    }
}

/// Layer norm over the last axis.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub weight: Weight,
    pub bias: Weight,
    pub epsilon: f64,
}

impl Norm {
    fn forward(&self, input: &Tensor) -> Result<Tensor, EngineError> {
        let (weight, bias) = (Some(&*self.weight), Some(&*self.bias));
        Ok(input.f_layer_norm(self.weight.size(), weight, bias, self.epsilon, false)?)
    }
}

/// `x · weightᵀ + bias`, weight `[out, in]`.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub weight: Weight,
    pub bias: Weight,
}

impl Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor, EngineError> {
        Ok(input.f_linear(&self.weight, Some(&*self.bias))?)
    }

    /// The output features `start..start + length` as a layer of their own, sharing the numbers.
    fn rows(&self, start: i64, length: i64) -> Result<Self, EngineError> {
        let weight = self.weight.f_narrow(0, start, length)?.into();
        let bias = self.bias.f_narrow(0, start, length)?.into();
        Ok(Self { weight, bias })
    }
}
