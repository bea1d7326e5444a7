//! Which kernels libtorch may compute attention with.

use crate::{
    TorchError,
    ffi::{done, orchestrator_torch_allow_math_attention},
};

/// Whether attention may fall back to plain operators, which hold all scores at once. Without, a
/// case that no fused kernel takes is an error and not a multiple of the memory. For the whole
/// process; allowed at start. The CPU and fp32 need it.
pub fn allow_math_attention(allow: bool) -> Result<(), TorchError> {
    // SAFETY: the message is valid for its capacity during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_allow_math_attention(allow, message, capacity)
    })
}
