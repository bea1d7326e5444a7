//! From the mapped file to tensors.

use std::ops::Deref;

use orchestrator_model::{Element, ModelFolder, StoredTensor};
use orchestrator_types::Precision;
use tch::{Kind, Tensor};

use crate::{
    EngineError, Placement,
    borrowed::borrowed,
    layers::{Linear, Norm},
};

/// A tensor that is only read after loading. A clone shares the numbers.
///
/// `tch::Tensor` is `Send` and not `Sync`; each compute thread therefore owns clones of its own.
#[derive(Debug)]
pub(crate) struct Weight(Tensor);

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

/// Places the tensors of a checked folder on a device, in a precision.
pub(crate) struct Reader<'a> {
    pub folder: &'a ModelFolder,
    pub placement: Placement,
}

impl Reader<'_> {
    /// The tensor of this name, in the tower's precision.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, EngineError> {
        self.placed(name, kind(self.placement.precision)?)
    }

    /// The tensor of this name in single precision, for arithmetic before it is rounded.
    fn single(&self, name: &str) -> Result<Tensor, EngineError> {
        self.placed(name, Kind::Float)
    }

    /// Rounds to the tower's precision.
    fn rounded(&self, tensor: &Tensor) -> Result<Tensor, EngineError> {
        Ok(tensor.f_to_kind(kind(self.placement.precision)?)?)
    }

    /// Numbers go from the page cache to where they stay; there is no copy in between on the host.
    fn placed(&self, name: &str, kind: Kind) -> Result<Tensor, EngineError> {
        let device = self.placement.device();
        self.with_stored(name, |stored| match device {
            tch::Device::Cpu => Ok(stored.f_to_device_(device, kind, false, true)?),
            // The bytes cross as they are stored and are converted there: libtorch would convert on
            // the host, into a second copy of the weights.
            _ => Ok(stored.f_to_device(device)?.f_totype(kind)?),
        })
    }

    fn with_stored<T>(
        &self,
        name: &str,
        use_it: impl FnOnce(&Tensor) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let StoredTensor { shape, element, bytes, .. } =
            self.folder.stored(name).expect("the folder was checked against its own config");
        let kind = match element {
            Element::F32 => Kind::Float,
            Element::F16 => Kind::Half,
            Element::Bf16 => Kind::BFloat16,
        };
        let shape: Vec<i64> = shape.iter().map(|&size| int(size)).collect();
        borrowed(bytes, &shape, kind, use_it)
    }

    /// The first and second linear layer of a perceptron, the first multiplied by `factor` and the
    /// second divided by it; in single precision, before they are rounded.
    pub(crate) fn scaled_pair(
        &self,
        [first, second]: [&str; 2],
        factor: f64,
    ) -> Result<[Linear; 2], EngineError> {
        let scaled = |name: &str, part: &str, factor: f64| -> Result<Weight, EngineError> {
            let scaled = self.single(&format!("{name}.{part}"))?.f_mul_scalar_(factor)?;
            Ok(Weight(self.rounded(&scaled)?))
        };
        let bias = self.weight(&format!("{second}.bias"))?;
        Ok([
            Linear {
                weight: scaled(first, "weight", factor)?,
                bias: scaled(first, "bias", factor)?,
            },
            Linear { weight: scaled(second, "weight", 1.0 / factor)?, bias },
        ])
    }

    /// Tensors of one kind below each other, in the tower's precision.
    pub(crate) fn stacked(&self, names: &[String]) -> Result<Weight, EngineError> {
        let parts: Vec<Tensor> =
            names.iter().map(|name| self.tensor(name)).collect::<Result<_, _>>()?;
        Ok(Weight(Tensor::f_cat(&parts, 0)?))
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

/// A precision as libtorch names it. Refuses what is not built yet.
pub(crate) const fn kind(precision: Precision) -> Result<Kind, EngineError> {
    match precision {
        Precision::Fp32 => Ok(Kind::Float),
        Precision::Fp16 => Ok(Kind::Half),
        Precision::Bf16 => Ok(Kind::BFloat16),
        Precision::Int8 => Err(EngineError::Precision(precision)),
    }
}

/// A size as libtorch takes it.
pub(crate) fn int(size: usize) -> i64 {
    i64::try_from(size).expect("sizes of slices in memory fit 63 bits")
}
