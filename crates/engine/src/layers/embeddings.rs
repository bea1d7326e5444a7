//! The first layer of a tower: its input as hidden states.

use orchestrator_model::VisionTower;
use tch::Tensor;

use super::{Norm, Picture};
use crate::{
    EngineError, Placement,
    weights::{Reader, Weight},
};

/// Token and position embeddings.
#[derive(Clone, Debug)]
pub(crate) struct TextEmbeddings {
    tokens: Weight,
    positions: Weight,
}

impl TextEmbeddings {
    pub(crate) fn load(reader: &Reader<'_>) -> Result<Self, EngineError> {
        let name = |part: &str| format!("text_model.embeddings.{part}_embedding.weight");
        Ok(Self {
            tokens: reader.weight(&name("token"))?,
            positions: reader.weight(&name("position"))?,
        })
    }

    /// `[n, tokens]` ids → `[n, tokens, width]`.
    pub(crate) fn forward(&self, ids: &Tensor) -> Result<Tensor, EngineError> {
        let (n, length) = ids.size2()?;
        let flat = self.tokens.f_index_select(0, &ids.f_flatten(0, 1)?)?;
        let mut hidden = flat.f_view([n, length, -1])?;
        Ok(hidden.f_add_(&self.positions.f_narrow(0, 0, length)?)?)
    }
}

/// Patch, class and position embeddings, and the norm before the first block.
#[derive(Clone, Debug)]
pub(crate) struct VisionEmbeddings {
    /// `[width, 3 × patch × patch]`.
    patches: Weight,
    /// Position embeddings, the class embedding added to the first: `[tokens, width]`.
    base: Weight,
    norm: Norm,
    grid: i64,
    patch: i64,
}

impl VisionEmbeddings {
    pub(crate) fn load(reader: &Reader<'_>, tower: &VisionTower) -> Result<Self, EngineError> {
        let name = |part: &str| format!("vision_model.embeddings.{part}");
        let base = reader.tensor(&name("position_embedding.weight"))?;
        let class = reader.tensor(&name("class_embedding"))?;
        drop(base.f_select(0, 0)?.f_add_(&class)?);
        Ok(Self {
            patches: reader.tensor(&name("patch_embedding.weight"))?.f_flatten(1, 3)?.into(),
            base: base.into(),
            norm: reader.norm("vision_model.pre_layrnorm", tower.blocks.epsilon)?,
            grid: i64::from(tower.grid()),
            patch: i64::from(tower.patch),
        })
    }

    /// `n` pictures → `[n, tokens, width]`, as many at a time as a block takes.
    ///
    /// Patches do not overlap, so the convolution is a matrix product of rearranged pixels.
    pub(crate) fn forward(
        &self,
        pictures: &Picture,
        placement: Placement,
    ) -> Result<Tensor, EngineError> {
        let (tokens, n) = (self.grid * self.grid + 1, pictures.len());
        let rows = placement.embedding_rows(tokens);
        if n <= rows {
            return self.part(pictures.part(0, n)?);
        }
        let (kind, device) = (self.base.kind(), self.base.device());
        let hidden = Tensor::f_empty([n, tokens, self.base.size()[1]], (kind, device))?;
        for (index, mut place) in hidden.f_split(rows, 0)?.into_iter().enumerate() {
            let start = rows * i64::try_from(index).expect("fewer parts than pictures");
            place.f_copy_(&self.part(pictures.part(start, place.size()[0])?)?)?;
        }
        Ok(hidden)
    }

    /// `[n, 3, side, side]` pixels → `[n, tokens, width]`.
    ///
    /// Takes the pixels, so that they are gone before patches are made of them.
    fn part(&self, pixels: Tensor) -> Result<Tensor, EngineError> {
        let (n, channels, ..) = pixels.size4()?;
        let (grid, patch) = (self.grid, self.patch);
        let hidden = {
            let patches = {
                let cast = pixels.f_to_kind(self.base.kind())?;
                drop(pixels);
                let whole = cast.f_narrow(2, 0, grid * patch)?.f_narrow(3, 0, grid * patch)?;
                drop(cast);
                let rows = whole
                    .f_reshape([n, channels, grid, patch, grid, patch])?
                    .f_permute([0, 2, 4, 1, 3, 5])?
                    .f_reshape([n, grid * grid, channels * patch * patch])?;
                drop(whole);
                rows.f_linear(&self.patches, None::<&Tensor>)?
            };
            let hidden = self.base.f_unsqueeze(0)?.f_repeat([n, 1, 1])?;
            drop(hidden.f_narrow(1, 1, grid * grid)?.f_add_(&patches)?);
            hidden
        };
        self.norm.forward(&hidden)
    }
}
