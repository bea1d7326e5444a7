//! Texts → embeddings.

use orchestrator_model::{ModelFolder, TextPooling, TextTower};
use tch::{Device, Tensor};

use crate::{
    EngineError, Placement,
    error::check_length,
    layers::{Block, Head, Layer, Pooled, TextEmbeddings},
    session::Session,
    tower::{Source, Tower},
    weights::{Reader, int},
};

/// The text tower of a model.
///
/// One thread at a time calls it (`Send`, not `Sync`); [`for_thread`](Self::for_thread) gives
/// another thread its own, with the same weights.
#[derive(Debug)]
pub struct TextEncoder {
    tower: Tower,
    shape: TextTower,
    width: usize,
}

impl TextEncoder {
    /// Loads the weights. Fails with `Precision` for int8.
    pub fn load(folder: &ModelFolder, placement: Placement) -> Result<Self, EngineError> {
        let _session = Session::enter()?;
        let reader = Reader { folder, placement };
        let shape = folder.config().text;
        let blocks = &shape.blocks;
        let mut layers = vec![Layer::TextEmbeddings(TextEmbeddings::load(&reader)?)];
        for index in 0..blocks.count {
            layers.push(Layer::Block(Block::load(&reader, "text_model", index, blocks, true)?));
        }
        let (norm, projection) = ("text_model.final_layer_norm", "text_projection.weight");
        layers.push(Layer::Head(Head::load(&reader, norm, blocks.epsilon, projection)?));
        let width = folder.config().embedding_width as usize;
        Ok(Self { tower: Tower::new(layers, placement), shape, width })
    }

    /// The same tower for another thread; the weights are shared, not copied.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        Self { tower: self.tower.clone(), shape: self.shape, width: self.width }
    }

    /// Length of an embedding.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Most tokens of one text.
    pub const fn context(&self) -> usize {
        self.shape.context as usize
    }

    /// Where a text is pooled.
    pub const fn pooling(&self) -> TextPooling {
        self.shape.pooling
    }

    /// The largest token id.
    pub fn last_id(&self) -> i64 {
        i64::from(self.shape.vocab) - 1
    }

    /// Encodes `n` texts.
    ///
    /// `ids` is `[n, length]`, each text padded after its end-of-text token with any known id;
    /// `out` is `[n, width]` and receives embeddings of Euclidean length one. No token looks at a
    /// later one, so padding, and cutting what follows the end of text, change nothing.
    pub fn encode(
        &self,
        ids: &[i64],
        n: usize,
        length: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        if length == 0 || length > self.context() {
            return Err(EngineError::TextLength { length, context: self.context() });
        }
        check_length("token ids", n * length, ids.len())?;
        check_length("text embeddings", n * self.width, out.len())?;
        if n == 0 {
            return Ok(());
        }
        let positions = self.positions(ids, length)?;
        let _session = Session::enter()?;
        let device = self.tower.placement().device();
        let input =
            Tensor::f_from_slice(ids)?.f_view([int(n), int(length)])?.f_to_device(device)?;
        let pooled = pooled(&positions, length, device)?;
        let embeddings = self.tower.forward(Source::Ids(input), &pooled)?;
        Ok(embeddings.f_copy_data(out, n * self.width)?)
    }

    /// Where each text is pooled.
    fn positions(&self, ids: &[i64], length: usize) -> Result<Vec<usize>, EngineError> {
        let last = i64::from(self.shape.vocab) - 1;
        let position = |(text, ids): (usize, &[i64])| {
            if let Some(&id) = ids.iter().find(|id| !(0..=last).contains(*id)) {
                return Err(EngineError::TokenId { text, id, last });
            }
            match self.shape.pooling {
                TextPooling::FirstOf(id) => ids
                    .iter()
                    .position(|&found| found == id)
                    .ok_or(EngineError::NoEndOfText { text, id }),
                // The first of equals, as argmax picks it.
                TextPooling::LargestId => {
                    let largest = ids.iter().max().expect("a text has at least one token");
                    Ok(ids.iter().position(|id| id == largest).expect("it is one of them"))
                }
            }
        };
        ids.chunks_exact(length).enumerate().map(position).collect()
    }

    /// What each layer but the head makes of all tokens.
    #[cfg(test)]
    pub(crate) fn trace(&self, ids: &[i64], length: usize) -> Result<Vec<Tensor>, EngineError> {
        let _session = Session::enter()?;
        self.tower.trace(Source::Ids(Tensor::f_from_slice(ids)?.f_view([-1, int(length)])?))
    }
}

fn pooled(positions: &[usize], length: usize, device: Device) -> Result<Pooled, EngineError> {
    let rows: Vec<i64> =
        positions.iter().enumerate().map(|(text, &at)| int(text * length + at)).collect();
    let visible: Vec<bool> =
        positions.iter().flat_map(|&at| (0..length).map(move |token| token <= at)).collect();
    Ok(Pooled::At {
        rows: Tensor::f_from_slice(&rows)?.f_to_device(device)?,
        visible: Tensor::f_from_slice(&visible)?
            .f_view([int(positions.len()), 1, 1, int(length)])?
            .f_to_device(device)?,
    })
}
