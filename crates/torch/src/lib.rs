//! What `tch` lacks of libtorch, as a safe interface: inference mode, loading of CUDA support, the
//! thread setting of one thread, the allocators' counts, limits and settings, and which operator
//! allocates what. All unsafe code of the project is here (and one memory map in crate `model`, and
//! two questions to NVML in crate `device`).
//!
//! Invariant: each function of the shim in `cpp` catches every C++ exception, so that none crosses
//! into Rust; each safe function here is sound for every caller.
//!
//! Absent so far: streams. Absent on purpose: tensors, which belong to `engine` through `tch`.

pub mod allocator;
mod attention;
pub mod cuda;
mod device;
mod ffi;
mod inference;
pub mod out_of_memory;
pub mod pinned;
#[cfg(test)]
mod testing;
mod threads;
pub mod trace;

pub use attention::allow_math_attention;
pub use device::{Device, synchronise};
pub use inference::InferenceMode;
pub use threads::use_one_thread;

/// What libtorch says when a call of the shim fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("libtorch: {0}")]
pub struct TorchError(String);

/// The version of libtorch that the shim was compiled with, as `2.11.0`.
pub fn version() -> &'static str {
    ffi::version()
}

/// What libtorch computes with on this processor: the instruction set of its own kernels
/// (`AVX512`, `AVX2`, `DEFAULT`, …), then the versions of MKL and oneDNN, or that they are absent.
///
/// Kernels of different instruction sets add in different orders, so a result's last bits depend on
/// this. MKL and oneDNN choose by the processor for themselves and do not say what they chose.
pub fn cpu_kernels() -> Result<String, TorchError> {
    ffi::cpu_kernels()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernels_are_named_and_stay_the_same() {
        let kernels = super::cpu_kernels().unwrap();
        assert_eq!(kernels.split(", ").count(), 3, "{kernels}");
        assert!(kernels.starts_with(|first: char| first.is_ascii_uppercase()), "{kernels}");
        assert_eq!(super::cpu_kernels(), Ok(kernels));
    }
}
