//! From the mapped file to tensors.

use std::ops::Deref;

use orchestrator_model::{Element, ModelFolder};
use orchestrator_types::Precision;
use tch::{Kind, Tensor};

use crate::{
    EngineError,
    error::check_length,
    layers::{Linear, Norm},
};

/// A tensor that is only read after loading. A clone shares the numbers.
///
/// `tch::Tensor` is `Send` and not `Sync`; each compute thread therefore owns clones of its own.
#[derive(Debug)]
pub(crate) struct Weight(Tensor);

impl Weight {
    /// The numbers times a factor, in place of the old ones; for use while loading only.
    pub(crate) fn scaled(mut self, factor: f64) -> Result<Self, EngineError> {
        Ok(Self(self.0.f_mul_scalar_(factor)?))
    }
}

impl Clone for Weight {
    fn clone(&self) -> Self {
        Self(self.0.shallow_clone())
    }
}

impl Deref for Weight {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl From<Tensor> for Weight {
    fn from(tensor: Tensor) -> Self {
        Self(tensor)
    }
}

/// Reads the tensors of a checked folder as fp32.
pub(crate) struct Reader<'a> {
    pub folder: &'a ModelFolder,
}

impl Reader<'_> {
    /// The tensor of this name. Numbers go from the page cache into the tensor; half precisions
    /// are widened from a short-lived copy of that one tensor.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, EngineError> {
        let stored =
            self.folder.stored(name).expect("the folder was checked against its own config");
        let shape: Vec<i64> = stored.shape.iter().map(|&size| int(size)).collect();
        let kind = match stored.element {
            Element::F32 => Kind::Float,
            Element::F16 => Kind::Half,
            Element::Bf16 => Kind::BFloat16,
        };
        // tch copies as many bytes as the shape says, without a look at the slice's length.
        let elements: usize = stored.shape.iter().product();
        check_length("tensor bytes", elements * kind.elt_size_in_bytes(), stored.bytes.len())?;
        Ok(Tensor::f_from_data_size(stored.bytes, &shape, kind)?.f_to_kind(Kind::Float)?)
    }

    /// `<name>.weight` and `<name>.bias` of a layer norm.
    pub(crate) fn norm(&self, name: &str, epsilon: f64) -> Result<Norm, EngineError> {
        let (weight, bias) = self.pair(name)?;
        Ok(Norm { weight, bias, epsilon })
    }

    /// `<name>.weight` and `<name>.bias` of a linear layer.
    pub(crate) fn linear(&self, name: &str) -> Result<Linear, EngineError> {
        let (weight, bias) = self.pair(name)?;
        Ok(Linear { weight, bias })
    }

    fn pair(&self, name: &str) -> Result<(Weight, Weight), EngineError> {
        Ok((self.weight(&format!("{name}.weight"))?, self.weight(&format!("{name}.bias"))?))
    }

    /// The tensor of this name, to be used as it is.
    pub(crate) fn weight(&self, name: &str) -> Result<Weight, EngineError> {
        self.tensor(name).map(Weight)
    }
}

/// Refuses what is not built yet.
pub(crate) fn check_precision(precision: Precision) -> Result<(), EngineError> {
    if precision == Precision::Fp32 { Ok(()) } else { Err(EngineError::Precision(precision)) }
}

/// A size as libtorch takes it.
pub(crate) fn int(size: usize) -> i64 {
    i64::try_from(size).expect("sizes of slices in memory fit 63 bits")
}
