//! Images → embeddings.

use orchestrator_model::{ModelFolder, VisionTower};
use orchestrator_torch::Device;
use tch::{Kind, Tensor};

use crate::{
    EngineError, Placement,
    borrowed::borrowed,
    error::check_length,
    layers::{Block, Head, Layer, Picture, Pooled, VisionEmbeddings},
    session::Session,
    tower::{Source, Tower},
    weights::{Reader, int},
};

/// Pictures of a model's input size.
#[derive(Clone, Copy, Debug)]
pub enum Pixels<'a> {
    /// `[n, 3, height, width]`, preprocessed. Equal to the reference to the last bit.
    Numbers(&'a [f32]),
    /// `[n, height, width, 3]`, cropped; a number is byte × `scale` + `shift` of its channel, computed
    /// on the device. A quarter of the bytes to move, equal to the reference up to rounding.
    Bytes {
        /// The crops.
        crops: &'a [u8],
        /// Factor per channel.
        scale: [f32; 3],
        /// Summand per channel.
        shift: [f32; 3],
    },
}

/// The vision tower of a model.
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
    /// Loads the weights. Fails with `Precision` for int8.
    pub fn load(folder: &ModelFolder, placement: Placement) -> Result<Self, EngineError> {
        let _session = Session::enter()?;
        let reader = Reader { folder, placement };
        let shape = folder.config().vision;
        let blocks = &shape.blocks;
        let mut layers = vec![Layer::VisionEmbeddings(VisionEmbeddings::load(&reader, &shape)?)];
        for index in 0..blocks.count {
            layers.push(Layer::Block(Block::load(&reader, "vision_model", index, blocks, false)?));
        }
        let (norm, projection) = ("vision_model.post_layernorm", "visual_projection.weight");
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

    /// Height and width of an input image, in pixels.
    pub const fn image_size(&self) -> usize {
        self.shape.image_size as usize
    }

    /// Whether crops are best given as bytes: they are fewer to move to a device, and normalised
    /// there. On the CPU numbers are, which equal the reference's.
    pub const fn takes_bytes(&self) -> bool {
        !matches!(self.tower.placement().device, Device::Cpu)
    }

    /// Floats of one input image: 3 × height × width.
    pub const fn pixels(&self) -> usize {
        self.shape.channels as usize * self.image_size() * self.image_size()
    }

    /// Encodes `n` images.
    ///
    /// `out` is `[n, width]` and receives embeddings of Euclidean length one.
    pub fn encode(&self, pixels: Pixels<'_>, n: usize, out: &mut [f32]) -> Result<(), EngineError> {
        let found = match pixels {
            Pixels::Numbers(numbers) => numbers.len(),
            Pixels::Bytes { crops, .. } => crops.len(),
        };
        check_length("pixels", n * self.pixels(), found)?;
        check_length("image embeddings", n * self.width, out.len())?;
        if n == 0 {
            return Ok(());
        }
        let _session = Session::enter()?;
        let embeddings = match pixels {
            Pixels::Numbers(numbers) => {
                self.forward(Picture::Numbers(self.numbers(numbers, n)?))?
            }
            Pixels::Bytes { crops, scale, shift } => {
                let device = self.tower.placement().device();
                let side = int(self.image_size());
                let shape = [int(n), side, side, 3];
                let crops =
                    borrowed(crops, &shape, Kind::Uint8, |crops| Ok(crops.f_to_device(device)?))?;
                let factor = |values: [f32; 3]| {
                    Tensor::f_from_slice(&values)?.f_view([3, 1, 1])?.f_to_device(device)
                };
                let (scale, shift) = (factor(scale)?, factor(shift)?);
                self.forward(Picture::Bytes { crops, scale, shift })?
            }
        };
        Ok(embeddings.f_copy_data(out, n * self.width)?)
    }

    fn forward(&self, pictures: Picture) -> Result<Tensor, EngineError> {
        self.tower.forward(Source::Pictures(pictures), &Pooled::First)
    }

    fn numbers(&self, pixels: &[f32], n: usize) -> Result<Tensor, EngineError> {
        let side = int(self.image_size());
        let pictures = Tensor::f_from_slice(pixels)?.f_view([int(n), 3, side, side])?;
        Ok(pictures.f_to_device(self.tower.placement().device())?)
    }

    /// What each layer but the head makes of all tokens.
    #[cfg(test)]
    pub(crate) fn trace(&self, pixels: &[f32], n: usize) -> Result<Vec<Tensor>, EngineError> {
        let _session = Session::enter()?;
        self.tower.trace(Source::Pictures(Picture::Numbers(self.numbers(pixels, n)?)))
    }
}
