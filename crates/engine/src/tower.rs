//! A tower: layers in the order of computation, embeddings first, head last.

use tch::Tensor;

use crate::{
    EngineError,
    layers::{Layer, Pooled},
};

/// The layers of one component. A clone shares the weights and may move to another thread.
#[derive(Clone, Debug)]
pub(crate) struct Tower {
    layers: Vec<Layer>,
}

impl Tower {
    pub(crate) fn new(layers: Vec<Layer>) -> Self {
        Self { layers }
    }

    /// Input of the first layer → embeddings `[n, embedding width]`.
    pub(crate) fn forward(&self, input: Tensor, pooled: &Pooled) -> Result<Tensor, EngineError> {
        let last_block = self.layers.len().saturating_sub(2);
        let mut hidden = input;
        for (index, layer) in self.layers.iter().enumerate() {
            hidden = match layer {
                Layer::Block(block) if index == last_block => {
                    block.forward_pooled(hidden, pooled)?
                }
                layer => layer.forward(hidden)?,
            };
        }
        Ok(hidden)
    }

    /// What each layer but the head makes of all tokens.
    #[cfg(test)]
    pub(crate) fn trace(&self, input: Tensor) -> Result<Vec<Tensor>, EngineError> {
        let mut hidden = input;
        let mut seen = Vec::new();
        for layer in self.layers.split_last().map_or(&[][..], |(_, rest)| rest) {
            hidden = layer.forward(hidden)?;
            seen.push(hidden.copy());
        }
        Ok(seen)
    }
}
