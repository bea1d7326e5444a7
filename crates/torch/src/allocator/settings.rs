//! Settings of libtorch's allocators, brought into force.
//!
//! Invariant: what is in force is what was applied last, and libtorch's default of all the rest.

use std::ffi::CString;

use orchestrator_types::AllocatorSettings;

use crate::{
    TorchError,
    ffi::{done, orchestrator_torch_apply_settings},
};

/// Kinds of device that want settings of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A GPU that is ours alone.
    WholeGpu,
    /// A GPU that others use too, a slice of one, or one behind a layer that intercepts CUDA.
    SharedOrMig,
    /// No GPU.
    Cpu,
}

/// Has no value that means "not set", and libtorch does not put it back either.
const LASTING: &str = "pinned_reserve_segment_size_mb";
const LARGE_SEGMENT: &str = "large_segment_size_mb";
const MAX_ROUNDING: &str = "max_non_split_rounding_mb";

/// What puts the settings back that libtorch does not put back itself whenever settings are
/// applied. Sizes come after that of large segments, which libtorch checks them against.
const DEFAULTS: [(&str, &str); 9] = [
    (LARGE_SEGMENT, "20"),
    ("expandable_segments", "False"),
    (MAX_ROUNDING, "20"),
    ("per_process_memory_fraction", "1"),
    ("pinned_use_background_threads", "False"),
    ("pinned_num_register_threads", "1"),
    ("pinned_use_cuda_host_register", "False"),
    ("release_lock_on_cudamalloc", "False"),
    ("graph_capture_record_stream_reuse", "False"),
];

/// The settings for a kind of device, unless somebody says otherwise.
///
/// A whole GPU has segments that grow, so that batches of varying size leave no slivers. Slices
/// and shared GPUs do without, since layers that intercept CUDA break them, and give unused
/// segments back early.
///
/// # Panics
/// Never: the texts are settings.
pub fn default_for(kind: DeviceKind) -> AllocatorSettings {
    let text = match kind {
        DeviceKind::WholeGpu => "expandable_segments:True",
        DeviceKind::SharedOrMig => "expandable_segments:False,garbage_collection_threshold:0.8",
        DeviceKind::Cpu => "",
    };
    text.parse().expect("settings that are tested")
}

/// Puts the settings into force for the whole process, in place of all that were in force: what
/// they do not name goes back to libtorch's default. Comes after [`crate::cuda::load`] and before
/// [`super::initialise`].
///
/// libtorch reads PYTORCH_CUDA_ALLOC_CONF, or PYTORCH_ALLOC_CONF if that is unset, while CUDA
/// support is loaded. Settings applied later replace these, so that a variable has no effect
/// unless somebody passes [`super::environment`]'s settings here. `pinned_reserve_segment_size_mb`
/// alone cannot be taken back: a variable that sets it to anything else is refused.
pub fn apply(settings: &AllocatorSettings) -> Result<(), TorchError> {
    let set = super::environment()?.unwrap_or_default();
    if let Some(value) = set.get(LASTING).filter(|value| settings.get(LASTING) != Some(value)) {
        return Err(TorchError(format!(
            "{LASTING}:{value} comes from the environment and cannot be taken back; unset it there \
             or put it into the settings"
        )));
    }
    let text = CString::new(complete(settings)).map_err(|error| TorchError(error.to_string()))?;
    // SAFETY: the text ends in zero, the message is valid for its capacity, both during the call.
    done(|message, capacity| unsafe {
        orchestrator_torch_apply_settings(text.as_ptr(), message, capacity)
    })
}

/// The settings, with the default of each that is not named and that would else stay as it is.
fn complete(settings: &AllocatorSettings) -> String {
    // libtorch takes no value below the segments' size, not even its own default.
    let rounding = settings.large_segment_mib().max(20).to_string();
    let set = DEFAULTS.map(|(name, default)| {
        let default = if name == MAX_ROUNDING { &rounding } else { default };
        (name, settings.get(name).unwrap_or(default))
    });
    let named = settings.iter().filter(|(name, _)| DEFAULTS.iter().all(|(known, _)| known != name));
    let entries = set.into_iter().chain(named).map(|(name, value)| format!("{name}:{value}"));
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
