//! Declarations of the shim in `cpp`, and the one way to call a function that may fail.

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
    pub(crate) fn orchestrator_torch_count_cpu(message: *mut c_char, capacity: usize) -> c_int;
    pub(crate) fn orchestrator_torch_statistics(
        device: c_int,
        out: *mut Counts,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_reset_peaks(
        device: c_int,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_empty_cache(
        device: c_int,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_free_and_total(
        device: c_int,
        free: *mut u64,
        total: *mut u64,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_set_limit(
        device: c_int,
        bytes: u64,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_limit(
        device: c_int,
        bytes: *mut u64,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_refuse_once(
        skip: u64,
        at_least: u64,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_apply_settings(
        text: *const c_char,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_initialise(
        device: c_int,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_synchronise(
        device: c_int,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_pinned_statistics(
        active: *mut LevelCounts,
        allocated: *mut LevelCounts,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_pinned_empty(message: *mut c_char, capacity: usize) -> c_int;
    pub(crate) fn orchestrator_torch_allow_math_attention(
        allow: bool,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_trace_begin(
        device: c_int,
        trace: *mut *mut c_void,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_trace_end(
        trace: *mut c_void,
        events: *mut *const RawEvent,
        count: *mut usize,
    );
    pub(crate) fn orchestrator_torch_trace_name(
        trace: *const c_void,
        name: u32,
        length: *mut usize,
    ) -> *const u8;
    pub(crate) fn orchestrator_torch_trace_free(trace: *mut c_void);
    pub(crate) fn orchestrator_torch_trace_enter(
        name: *const u8,
        length: usize,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    pub(crate) fn orchestrator_torch_trace_leave();
}

/// `orchestrator_torch_level` of `cpp/allocator.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct LevelCounts {
    pub(crate) current: u64,
    pub(crate) peak: u64,
}

/// `orchestrator_torch_counts` of `cpp/allocator.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) allocated: LevelCounts,
    pub(crate) reserved: LevelCounts,
    pub(crate) ooms: u64,
    pub(crate) retries: u64,
    pub(crate) inactive_split_bytes: u64,
}

/// `orchestrator_torch_event` of `cpp/trace.cpp`.
#[repr(C)]
pub(crate) struct RawEvent {
    pub(crate) at_ns: u64,
    pub(crate) bytes: i64,
    pub(crate) address: u64,
    pub(crate) live_after: u64,
    pub(crate) op: u32,
    pub(crate) outer: u32,
    pub(crate) module: u32,
}

/// Runs a function of the shim with room for its message. Gives the code and the message.
pub(crate) fn call(function: impl FnOnce(*mut c_char, usize) -> c_int) -> (c_int, TorchError) {
    let mut message = vec![0_u8; MESSAGE_BYTES];
    let code = function(message.as_mut_ptr().cast(), message.len());
    let text = CStr::from_bytes_until_nul(&message).map(CStr::to_string_lossy).unwrap_or_default();
    let first = text.split("\nException raised from").next().unwrap_or_default();
    (code, TorchError(first.trim_end().to_owned()))
}

/// Runs a function of the shim that gives nothing but its success.
pub(crate) fn done(function: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), TorchError> {
    let (code, error) = call(function);
    if code == OK { Ok(()) } else { Err(error) }
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
