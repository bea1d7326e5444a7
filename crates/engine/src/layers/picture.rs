//! Pictures on their way into a tower.

use tch::{Kind, Tensor};

use crate::EngineError;

/// Pictures on the device, as they came; gone once they are hidden states.
pub(crate) enum Picture {
    /// `[n, 3, side, side]` numbers.
    Numbers(Tensor),
    /// `[n, side, side, 3]` bytes; number = byte × scale + shift, `[3, 1, 1]` each.
    Bytes { crops: Tensor, scale: Tensor, shift: Tensor },
}

impl Picture {
    pub(crate) fn len(&self) -> i64 {
        match self {
            Self::Numbers(pictures) | Self::Bytes { crops: pictures, .. } => pictures.size()[0],
        }
    }

    /// `count` pictures from `start` on, as numbers `[count, 3, side, side]`.
    pub(crate) fn part(&self, start: i64, count: i64) -> Result<Tensor, EngineError> {
        match self {
            Self::Numbers(pictures) => Ok(pictures.f_narrow(0, start, count)?),
            Self::Bytes { crops, scale, shift } => {
                let mut numbers = crops
                    .f_narrow(0, start, count)?
                    .f_permute([0, 3, 1, 2])?
                    .f_to_kind(Kind::Float)?;
                let mut numbers = numbers.f_mul_(scale)?;
                Ok(numbers.f_add_(shift)?)
            }
        }
    }
}
