// What tch lacks, behind a C interface: every function returns 0 or fills `message` and returns
// another code, and no C++ exception leaves this file. Needs no CUDA header, so that one build
// serves machines with and without a GPU.

#include "shim.hpp"

#include <dlfcn.h>

#include <string>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

using namespace orchestrator;

extern "C" {

// The version of the headers that this file was compiled with.
const char* orchestrator_torch_version() { return TORCH_VERSION; }

// The instruction set that ATen's kernels use on this processor, and the libraries beneath them: fills
// `message` also when it returns kOk.
int orchestrator_torch_cpu_kernels(char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    const std::string kernels =
        at::get_cpu_capability() + ", " + at::get_mkl_version() + ", " + at::get_mkldnn_version();
    say(message, capacity, kernels.c_str());
    return kOk;
  });
}

// Starts inference mode on the calling thread; end it on the same thread, last started first.
int orchestrator_torch_inference_begin(void** guard, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    *guard = new c10::InferenceMode(true);
    return kOk;
  });
}

void orchestrator_torch_inference_end(void* guard) {
  // The destructor only restores thread-local state and does not throw.
  delete static_cast<c10::InferenceMode*>(guard);
}

bool orchestrator_torch_inference_active() { return c10::InferenceMode::is_enabled(); }

// One thread for each call made on the calling thread, whatever OpenMP, MKL and oneDNN default to.
int orchestrator_torch_one_thread(char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    at::set_num_threads(1);
    return kOk;
  });
}

// Loads CUDA support into the process: kOk, or kAbsent with the dynamic linker's reason. RTLD_GLOBAL,
// because libraries that CUDA support loads later look their symbols up in the global scope.
int orchestrator_torch_cuda_load(char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return kOk;
    const char* reason = dlerror();
    say(message, capacity, reason != nullptr ? reason : "the dynamic linker gives no reason");
    return kAbsent;
  });
}

// Number of devices of the accelerator that is loaded; 0 if none is.
int orchestrator_torch_device_count(int* count, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    *count = at::getAccelerator(false).has_value() ? at::accelerator::deviceCount() : 0;
    return kOk;
  });
}

}  // extern "C"
