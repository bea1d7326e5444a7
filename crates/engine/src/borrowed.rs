//! Bytes of ours as a tensor, without a copy.

use tch::{Device, Kind, Tensor};

use crate::{EngineError, error::check_length};

/// Lends `bytes` to `use_it` as a tensor of the CPU. The tensor must not be kept: what `use_it` makes
/// of it has to be a copy.
///
/// Bytes that do not lie at a multiple of their element's size are copied first.
pub(crate) fn borrowed<T>(
    bytes: &[u8],
    shape: &[i64],
    kind: Kind,
    use_it: impl FnOnce(&Tensor) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let elements: i64 = shape.iter().product();
    let element = kind.elt_size_in_bytes();
    let expected = usize::try_from(elements).unwrap_or(0) * element;
    check_length("tensor bytes", expected, bytes.len())?;
    if !bytes.as_ptr().addr().is_multiple_of(element) {
        return use_it(&Tensor::f_from_data_size(bytes, shape, kind)?);
    }
    #[expect(
        unsafe_code,
        reason = "libtorch offers no safe way to read memory that it does not own"
    )]
    // SAFETY: the bytes are as many as the shape calls for (checked above), aligned, and outlive the
    // tensor, which is dropped at the end of this function. Nobody writes to it: callers in this crate
    // only convert and copy what they are lent.
    let lent = unsafe { Tensor::f_from_blob(bytes.as_ptr(), shape, &[], kind, Device::Cpu)? };
    use_it(&lent)
}
