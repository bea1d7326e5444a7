//! The last layer of a tower: pooled hidden states as embeddings.

use tch::{Kind, Tensor};

use super::Norm;
use crate::{
    EngineError,
    weights::{Reader, Weight},
};

/// Norm, projection, and division by the length.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    norm: Norm,
    /// `[embedding width, width]`.
    projection: Weight,
}

impl Head {
    pub(crate) fn load(
        reader: &Reader<'_>,
        norm: &str,
        epsilon: f64,
        projection: &str,
    ) -> Result<Self, EngineError> {
        Ok(Self { norm: reader.norm(norm, epsilon)?, projection: reader.weight(projection)? })
    }

    /// `[n, width]` → `[n, embedding width]`, each of Euclidean length one.
    pub(crate) fn forward(&self, pooled: &Tensor) -> Result<Tensor, EngineError> {
        let features = self.norm.forward(pooled)?.f_linear(&self.projection, None::<&Tensor>)?;
        // The length is a sum of squares: in single precision whatever the tower computes in.
        let mut features = features.f_to_kind(Kind::Float)?;
        let length = features.f_norm_scalaropt_dim(2.0, [-1_i64].as_slice(), true)?;
        Ok(features.f_div_(&length)?)
    }
}
