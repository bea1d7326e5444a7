//! Images → embeddings.

use orchestrator_model::{ModelFolder, VisionTower};
use orchestrator_types::Precision;
use tch::Tensor;

use crate::{
    EngineError,
    error::check_length,
    layers::{Block, Head, Layer, Pooled, VisionEmbeddings},
    session::Session,
    tower::Tower,
    weights::{Reader, check_precision, int},
};

/// The vision tower of a model, on the CPU.
///
/// One thread at a time calls it (`Send`, not `Sync`); [`for_thread`](Self::for_thread) gives
/// another thread its own, with the same weights.
#[derive(Debug)]
pub struct VisionEncoder {
    tower: Tower,
    shape: VisionTower,
    width: usize,
}

impl VisionEncoder {
    /// Loads the weights. Fails with `Precision` for anything but fp32.
    pub fn load(folder: &ModelFolder, precision: Precision) -> Result<Self, EngineError> {
        check_precision(precision)?;
        let _session = Session::enter()?;
        let reader = Reader { folder };
        let shape = folder.config().vision;
        let blocks = &shape.blocks;
        let mut layers = vec![Layer::VisionEmbeddings(VisionEmbeddings::load(&reader, &shape)?)];
        for index in 0..blocks.count {
            layers.push(Layer::Block(Block::load(&reader, "vision_model", index, blocks, false)?));
        }
        let (norm, projection) = ("vision_model.post_layernorm", "visual_projection.weight");
        layers.push(Layer::Head(Head::load(&reader, norm, blocks.epsilon, projection)?));
        let width = folder.config().embedding_width as usize;
        Ok(Self { tower: Tower::new(layers), shape, width })
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

    /// Height and width of an input image, in pixels.
    pub const fn image_size(&self) -> usize {
        self.shape.image_size as usize
    }

    /// Floats of one input image: 3 × height × width.
    pub const fn pixels(&self) -> usize {
        self.shape.channels as usize * self.image_size() * self.image_size()
    }

    /// Encodes `n` images.
    ///
    /// `pixels` is `[n, 3, height, width]`, preprocessed; `out` is `[n, width]` and receives
    /// embeddings of Euclidean length one.
    pub fn encode(&self, pixels: &[f32], n: usize, out: &mut [f32]) -> Result<(), EngineError> {
        check_length("pixels", n * self.pixels(), pixels.len())?;
        check_length("image embeddings", n * self.width, out.len())?;
        if n == 0 {
            return Ok(());
        }
        let _session = Session::enter()?;
        let embeddings = self.tower.forward(self.input(pixels, n)?, &Pooled::First)?;
        Ok(embeddings.f_copy_data(out, n * self.width)?)
    }

    fn input(&self, pixels: &[f32], n: usize) -> Result<Tensor, EngineError> {
        let side = int(self.image_size());
        Ok(Tensor::f_from_slice(pixels)?.f_view([int(n), 3, side, side])?)
    }

    /// What each layer but the head makes of all tokens.
    #[cfg(test)]
    pub(crate) fn trace(&self, pixels: &[f32], n: usize) -> Result<Vec<Tensor>, EngineError> {
        let _session = Session::enter()?;
        self.tower.trace(self.input(pixels, n)?)
    }
}
