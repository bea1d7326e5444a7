//! Which failures mean that memory ran out, told by libtorch's words: tch passes on nothing else.
//!
//! Invariant: what is certain comes before what depends on circumstances, and words that only a
//! dead device says come last.

use orchestrator_types::ByteCount;

use crate::allocator::FreeTotal;

/// How a failure bears on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The device's memory, or what its limit leaves, ran out. A smaller batch may pass.
    Device,
    /// The host's memory, or what its limit leaves, ran out. A smaller batch may pass.
    Host,
    /// Memory ran out, in other words than these. A smaller batch may pass.
    Masked,
    /// Not memory: the device's context is dead, and every later call in this process fails.
    Fatal,
}

const DEVICE: [&str; 3] =
    ["CUDA out of memory", "CUDA error: out of memory", "CUDA driver error: out of memory"];

const HOST: [&str; 4] = [
    "CPU out of memory", // our counting allocator
    "DefaultCPUAllocator: can't allocate memory",
    "not enough memory: you tried to allocate",
    "std::bad_alloc",
];

const MASKED: [&str; 2] = ["CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"];

/// Also said for other reasons: memory is the reason only where little of it is free.
const MASKED_IF_LITTLE_IS_FREE: [&str; 4] = [
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_SUPPORTED",
];

/// cuBLAS refuses arguments in these words, after "CUDA error:"; the device lives on.
const REFUSED_ARGUMENTS: [&str; 3] =
    ["CUBLAS_STATUS_INVALID_VALUE", "CUBLAS_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_ARCH_MISMATCH"];

/// Words after which a device gives only errors.
const DEAD: [&str; 2] = ["CUDA error:", "CUDA driver error:"];

/// Sorts what libtorch says of a failed call. `free_after` is the device's memory just after the
/// failure, before anything was released; unknown is taken for plenty. `None`: an ordinary error.
pub fn classify(text: &str, free_after: Option<FreeTotal>) -> Option<Kind> {
    // The stack trace that follows names sources, and sources name errors.
    let first = text.split("\nException raised from").next().unwrap_or_default();
    let says = |words: &[&str]| words.iter().any(|words| first.contains(words));
    // On a MIG slice the allocator trips over NVML while it reports that memory ran out.
    let tripped = first.contains("NVML_SUCCESS ==") && text.contains("CUDACachingAllocator");
    let perhaps = says(&MASKED_IF_LITTLE_IS_FREE) && free_after.is_some_and(is_little);
    if says(&DEVICE) {
        Some(Kind::Device)
    } else if says(&HOST) {
        Some(Kind::Host)
    } else if tripped || says(&MASKED) || perhaps {
        Some(Kind::Masked)
    } else if says(&DEAD) && !says(&REFUSED_ARGUMENTS) {
        Some(Kind::Fatal)
    } else {
        None
    }
}

/// Less than a handle of cuBLAS or cuDNN may want with its kernels: 1 GiB, or a twentieth.
fn is_little(memory: FreeTotal) -> bool {
    memory.free < ByteCount::gib(1) || memory.free.as_u64() < memory.total.as_u64() / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Option<FreeTotal> =
        Some(FreeTotal { free: ByteCount::mib(300), total: ByteCount::gib(141) });
    const A_TWENTIETH_LESS: Option<FreeTotal> =
        Some(FreeTotal { free: ByteCount::gib(7), total: ByteCount::gib(141) });
    const PLENTY: Option<FreeTotal> =
        Some(FreeTotal { free: ByteCount::gib(70), total: ByteCount::gib(141) });

    #[test]
    fn words_that_are_certain_count_whatever_is_free() {
        let cases = [
            ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has", Kind::Device),
            (
                "The following operation failed in the TorchScript interpreter.\n\
              RuntimeError: CUDA out of memory. Tried",
                Kind::Device,
            ),
            ("CUDA error: out of memory\nCUDA kernel errors might be", Kind::Device),
            ("CUDA driver error: out of memory", Kind::Device),
            ("CPU out of memory. Tried to allocate 8 bytes: 0 bytes are in use", Kind::Host),
            (
                "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: \
              you tried to allocate 4 bytes. Error code 12 (Cannot allocate memory)",
                Kind::Host,
            ),
            ("[enforce fail at x] . not enough memory: you tried to allocate 1 bytes", Kind::Host),
            ("std::bad_alloc", Kind::Host),
            (
                "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \
              \"../c10/cuda/CUDACachingAllocator.cpp\":1165, please report",
                Kind::Masked,
            ),
            (
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                Kind::Masked,
            ),
            ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Kind::Masked),
            ("CUDA error: an illegal memory access was encountered", Kind::Fatal),
            ("CUDA error: device-side assert triggered", Kind::Fatal),
            ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", Kind::Fatal),
            ("CUDA driver error: device not ready", Kind::Fatal),
        ];
        for (text, kind) in cases {
            for free in [None, LITTLE, PLENTY] {
                assert_eq!(classify(text, free), Some(kind), "{text}");
            }
        }
    }

    #[test]
    fn ambiguous_words_mean_memory_only_where_little_is_free() {
        let cublas = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(h)`";
        let dnn = "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if";
        for (text, otherwise) in [(cublas, Some(Kind::Fatal)), (dnn, None)] {
            assert_eq!(classify(text, LITTLE), Some(Kind::Masked), "{text}");
            assert_eq!(classify(text, A_TWENTIETH_LESS), Some(Kind::Masked), "{text}");
            assert_eq!(classify(text, PLENTY), otherwise, "{text}");
            assert_eq!(classify(text, None), otherwise, "{text}");
        }
    }

    #[test]
    fn ordinary_errors_and_names_in_stack_traces_are_not_memory() {
        for text in [
            "shape '[3]' is invalid for input of size 2",
            "No available kernel. Aborting execution.",
            "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`",
            "mat1 and mat2 shapes\nException raised from CUDA out of memory at std::bad_alloc",
            "",
        ] {
            assert_eq!(classify(text, LITTLE), None, "{text}");
        }
    }
}
