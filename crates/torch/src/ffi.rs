//! Declarations of `cpp/shim.cpp`, and the one way to call a function that may fail.

use std::ffi::{CStr, c_char, c_int, c_void};

// Named so that rustc links torch-sys's libraries before ours; nothing of it is called.
use torch_sys as _;

use crate::TorchError;

pub(crate) const OK: c_int = 0;
pub(crate) const ABSENT: c_int = 2;

/// Longer texts are cut; libtorch appends a stack trace that nobody needs here.
const MESSAGE_BYTES: usize = 4096;

unsafe extern "C" {
    fn orchestrator_torch_version() -> *const c_char;
    fn orchestrator_torch_cpu_kernels(message: *mut c_char, capacity: usize) -> c_int;
    pub(crate) fn orchestrator_torch_inference_begin(
        guard: *mut *mut c_void,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_inference_end(guard: *mut c_void);
    pub(crate) fn orchestrator_torch_inference_active() -> bool;
    pub(crate) fn orchestrator_torch_one_thread(message: *mut c_char, capacity: usize) -> c_int;
    pub(crate) fn orchestrator_torch_cuda_load(message: *mut c_char, capacity: usize) -> c_int;
    pub(crate) fn orchestrator_torch_device_count(
        count: *mut c_int,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
}

/// Runs a function of the shim with room for its message. Gives the code and the message.
pub(crate) fn call(function: impl FnOnce(*mut c_char, usize) -> c_int) -> (c_int, TorchError) {
    let mut message = vec![0_u8; MESSAGE_BYTES];
    let code = function(message.as_mut_ptr().cast(), message.len());
    let text = CStr::from_bytes_until_nul(&message).map(CStr::to_string_lossy).unwrap_or_default();
    let first = text.split("\nException raised from").next().unwrap_or_default();
    (code, TorchError(first.trim_end().to_owned()))
}

pub(crate) fn cpu_kernels() -> Result<String, TorchError> {
    let (code, said) = call(|message, capacity| {
        // SAFETY: `message` is valid for `capacity` bytes during the call.
        unsafe { orchestrator_torch_cpu_kernels(message, capacity) }
    });
    if code == OK { Ok(said.0) } else { Err(said) }
}

pub(crate) fn version() -> &'static str {
    // SAFETY: the shim returns a string literal.
    let text = unsafe { CStr::from_ptr(orchestrator_torch_version()) };
    text.to_str().unwrap_or("unknown")
}
