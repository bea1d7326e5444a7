//! The state in which the calling thread runs operators.

use std::cell::Cell;

use orchestrator_torch::{InferenceMode, TorchError, use_one_thread};

thread_local! {
    static ONE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Inference mode on the current thread, whose libtorch calls start no other threads. Cheap enough
/// for each call; held while operators run.
pub(crate) struct Session {
    _inference: InferenceMode,
}

impl Session {
    pub(crate) fn enter() -> Result<Self, TorchError> {
        if !ONE_THREAD.get() {
            use_one_thread()?;
            ONE_THREAD.set(true);
        }
        Ok(Self { _inference: InferenceMode::enter()? })
    }
}
