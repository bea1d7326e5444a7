//! How many threads libtorch may use for one call.

use crate::{
    TorchError,
    ffi::{OK, call, orchestrator_torch_one_thread},
};

/// Lets each libtorch call that the current thread makes run on that thread alone.
///
/// OpenMP and MKL keep their thread number per calling thread, so each compute thread calls this
/// before its first operator. Parallelism then comes from several compute threads, and results do
/// not depend on the number of cores.
pub fn use_one_thread() -> Result<(), TorchError> {
    let (code, error) = call(|message, capacity| {
        // SAFETY: `message` is valid for `capacity` bytes during the call.
        unsafe { orchestrator_torch_one_thread(message, capacity) }
    });
    if code == OK { Ok(()) } else { Err(error) }
}
