//! Inference mode: no gradients, no version counters, and so less work for each operator.

use std::{ffi::c_void, marker::PhantomData, ptr};

use crate::{
    TorchError,
    ffi::{
        OK, call, orchestrator_torch_inference_active, orchestrator_torch_inference_begin,
        orchestrator_torch_inference_end,
    },
};

/// Inference mode on the current thread until dropped.
///
/// The mode is thread-local, so the guard stays on its thread (not `Send`). Guards nest; one that
/// is dropped out of turn leaves the thread in the mode that its own beginning found.
#[derive(Debug)]
#[must_use = "inference mode ends when the guard is dropped"]
pub struct InferenceMode {
    guard: *mut c_void,
    on_this_thread: PhantomData<*const ()>,
}

impl InferenceMode {
    /// Starts inference mode on the current thread.
    pub fn enter() -> Result<Self, TorchError> {
        let mut guard = ptr::null_mut();
        let (code, error) = call(|message, capacity| {
            // SAFETY: all pointers are valid for the duration of the call.
            unsafe { orchestrator_torch_inference_begin(&raw mut guard, message, capacity) }
        });
        if code == OK { Ok(Self { guard, on_this_thread: PhantomData }) } else { Err(error) }
    }

    /// Whether the current thread is in inference mode.
    pub fn is_active() -> bool {
        // SAFETY: reads thread-local state.
        unsafe { orchestrator_torch_inference_active() }
    }
}

impl Drop for InferenceMode {
    fn drop(&mut self) {
        // SAFETY: made by `enter` on this thread (the type is not `Send`), and ended once.
        unsafe { orchestrator_torch_inference_end(self.guard) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_scoped_nests_and_is_bound_to_its_thread() {
        assert!(!InferenceMode::is_active());
        {
            let _outer = InferenceMode::enter().unwrap();
            drop(InferenceMode::enter().unwrap());
            assert!(InferenceMode::is_active());
            assert!(!std::thread::spawn(InferenceMode::is_active).join().unwrap());
        }
        assert!(!InferenceMode::is_active());
    }
}
