//! A tower: layers in the order of computation, embeddings first, head last.

use tch::Tensor;

use crate::{
    EngineError, Placement,
    layers::{Layer, Picture, Pooled},
};

/// The layers of one component. A clone shares the weights and may move to another thread.
#[derive(Clone, Debug)]
pub(crate) struct Tower {
    layers: Vec<Layer>,
    placement: Placement,
}

/// What comes in.
pub(crate) enum Source {
    /// Token ids `[n, tokens]`.
    Ids(Tensor),
    /// Pictures.
    Pictures(Picture),
}

impl Tower {
    pub(crate) fn new(layers: Vec<Layer>, placement: Placement) -> Self {
        Self { layers, placement }
    }

    pub(crate) const fn placement(&self) -> Placement {
        self.placement
    }

    /// Input of the first layer → embeddings `[n, embedding width]`.
    pub(crate) fn forward(&self, source: Source, pooled: &Pooled) -> Result<Tensor, EngineError> {
        let (first, rest) = self.layers.split_first().expect("a tower has layers");
        let mut hidden = module("embeddings", || self.embed(first, source))?;
        let last_block = rest.len().saturating_sub(2);
        for (index, layer) in rest.iter().enumerate() {
            match layer {
                Layer::Block(block) => {
                    let rows = self.placement.chunk_rows(hidden.size()[1]);
                    hidden = module(&format!("block {index}"), || {
                        if index == last_block {
                            block.forward_pooled(&hidden, pooled, rows)
                        } else {
                            block.forward(&hidden, rows)?;
                            Ok(hidden.shallow_clone())
                        }
                    })?;
                }
                Layer::Head(head) => hidden = module("head", || head.forward(&hidden))?,
                Layer::TextEmbeddings(_) | Layer::VisionEmbeddings(_) => {
                    unreachable!("embeddings come first and once")
                }
            }
        }
        Ok(hidden)
    }

    fn embed(&self, layer: &Layer, source: Source) -> Result<Tensor, EngineError> {
        match (layer, source) {
            (Layer::TextEmbeddings(layer), Source::Ids(ids)) => layer.forward(&ids),
            (Layer::VisionEmbeddings(layer), Source::Pictures(pictures)) => {
                layer.forward(&pictures, self.placement)
            }
            _ => unreachable!("an encoder gives its own kind of input"),
        }
    }

    /// What each layer but the head makes of all tokens.
    #[cfg(test)]
    pub(crate) fn trace(&self, source: Source) -> Result<Vec<Tensor>, EngineError> {
        let hidden = self.embed(&self.layers[0], source)?;
        let mut seen = vec![hidden.copy()];
        for layer in &self.layers[1..self.layers.len() - 1] {
            let Layer::Block(block) = layer else { unreachable!("blocks in the middle") };
            block.forward(&hidden, i64::MAX)?;
            seen.push(hidden.copy());
        }
        Ok(seen)
    }
}

/// Runs a module under its name, for traces.
fn module<T>(name: &str, run: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    let _scope = orchestrator_torch::trace::module(name);
    run()
}
