// Statistics, limits and settings of libtorch's allocators, one interface for CPU and CUDA. Nothing of
// CUDA is linked: the device's allocator is reached through virtual calls once CUDA support is loaded.
// Device -1 is the CPU, others are CUDA devices by index.

#include "shim.hpp"

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "host_allocator.hpp"

// CUDA's own headers are on machines that set libtorch up with them; without, CUDA has no limit.
#if __has_include(<cuda_runtime_api.h>) && __has_include(<crt/host_config.h>) && \
    __has_include(<c10/cuda/CUDACachingAllocator.h>) && \
    __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#define ORCHESTRATOR_CUDA_HEADERS 1
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#else
#define ORCHESTRATOR_CUDA_HEADERS 0
#endif

using namespace orchestrator;

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;

bool on_cpu(int device) { return device < 0; }

c10::DeviceIndex index_of(int device) {
  if (at::getAccelerator(false) != kCuda) {
    throw std::runtime_error("CUDA support is not loaded in this process");
  }
  const int count = at::accelerator::deviceCount();
  if (device >= count) {
    throw std::runtime_error(
        "there is no device cuda:" + std::to_string(device) + "; this process sees " +
        std::to_string(count));
  }
  return static_cast<c10::DeviceIndex>(device);
}

void require_initialised(int device) {
  if (!c10::getDeviceAllocator(kCuda)->initialized()) {
    throw std::runtime_error(
        "device cuda:" + std::to_string(device) + " is not in use yet; call initialise first");
  }
}

std::uint64_t unsigned_of(std::int64_t count) {
  return count > 0 ? static_cast<std::uint64_t>(count) : 0;
}

#if ORCHESTRATOR_CUDA_HEADERS

// libtorch multiplies fractions by this. Looked up and not linked; CUDA 12 renames the function by a
// macro, hence the two steps of quoting.
#define ORCHESTRATOR_QUOTED(name) #name
#define ORCHESTRATOR_NAME(name) ORCHESTRATOR_QUOTED(name)
std::uint64_t total_bytes(c10::DeviceIndex device) {
  using Query = cudaError_t (*)(cudaDeviceProp*, int);
  void* symbol = dlsym(RTLD_DEFAULT, ORCHESTRATOR_NAME(cudaGetDeviceProperties));
  cudaDeviceProp properties{};
  if (symbol != nullptr &&
      reinterpret_cast<Query>(symbol)(&properties, device) == cudaSuccess) {
    return properties.totalGlobalMem;
  }
  return c10::getDeviceAllocator(kCuda)->getMemoryInfo(device).second;
}

c10::cuda::CUDACachingAllocator::CUDAAllocator* cuda_allocator() {
  // CUDA registers no allocator of another class.
  return static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(
      c10::getDeviceAllocator(kCuda));
}

std::uint64_t bytes_of(double fraction, std::uint64_t total) {
  return static_cast<std::uint64_t>(fraction * static_cast<double>(total));
}

// A limit of the whole device or more is no limit: libtorch takes 1.0 for that.
void set_cuda_limit(c10::DeviceIndex device, std::uint64_t bytes) {
  const std::uint64_t total = total_bytes(device);
  double fraction = 1.0;
  if (bytes < total) {
    fraction = static_cast<double>(bytes) / static_cast<double>(total);
    while (bytes_of(fraction, total) > bytes) fraction = std::nextafter(fraction, 0.0);
  }
  cuda_allocator()->setMemoryFraction(fraction, device);
}

std::uint64_t cuda_limit(c10::DeviceIndex device) {
  const double fraction = cuda_allocator()->getMemoryFraction(device);
  return fraction < 1.0 ? bytes_of(fraction, total_bytes(device)) : host::kNoLimit;
}

#else

[[noreturn]] void no_headers() {
  throw std::runtime_error(
      "CUDA devices have no limit: this build had no CUDA headers; build with nvidia-cuda-runtime "
      "and nvidia-cuda-crt beside libtorch");
}
void set_cuda_limit(c10::DeviceIndex, std::uint64_t) { no_headers(); }
std::uint64_t cuda_limit(c10::DeviceIndex) { no_headers(); }

#endif

}  // namespace

extern "C" {

struct orchestrator_torch_level {
  std::uint64_t current;
  std::uint64_t peak;
};

struct orchestrator_torch_counts {
  orchestrator_torch_level allocated;
  orchestrator_torch_level reserved;
  std::uint64_t ooms;
  std::uint64_t retries;
  std::uint64_t inactive_split_bytes;
};

int orchestrator_torch_count_cpu(char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    host::install();
    return kOk;
  });
}

int orchestrator_torch_statistics(
    int device, orchestrator_torch_counts* out, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    *out = {};
    if (on_cpu(device)) {
      const host::Counts counts = host::counts();
      out->allocated = out->reserved = {counts.current, counts.peak};
      out->ooms = counts.refusals;
      return kOk;
    }
    const c10::DeviceIndex index = index_of(device);
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kCuda);
    if (!allocator->initialized()) return kOk;
    const c10::CachingDeviceAllocator::DeviceStats stats = allocator->getDeviceStats(index);
    const auto level = [](const c10::CachingAllocator::StatArray& stat) {
      return orchestrator_torch_level{unsigned_of(stat[0].current), unsigned_of(stat[0].peak)};
    };
    out->allocated = level(stats.allocated_bytes);
    out->reserved = level(stats.reserved_bytes);
    out->ooms = unsigned_of(stats.num_ooms);
    out->retries = unsigned_of(stats.num_alloc_retries);
    out->inactive_split_bytes = unsigned_of(stats.inactive_split_bytes[0].current);
    return kOk;
  });
}

int orchestrator_torch_reset_peaks(int device, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (on_cpu(device)) {
      host::reset_peak();
      return kOk;
    }
    const c10::DeviceIndex index = index_of(device);
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kCuda);
    if (allocator->initialized()) allocator->resetPeakStats(index);
    return kOk;
  });
}

int orchestrator_torch_empty_cache(int device, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (on_cpu(device)) return kOk;
    index_of(device);
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kCuda);
    if (allocator->initialized()) allocator->emptyCache();
    return kOk;
  });
}

// kAbsent: the CPU has no limit, and so nothing to be free under.
int orchestrator_torch_free_and_total(
    int device, std::uint64_t* free, std::uint64_t* total, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (!on_cpu(device)) {
      const c10::DeviceIndex index = index_of(device);
      const auto memory = c10::getDeviceAllocator(kCuda)->getMemoryInfo(index);
      *free = memory.first;
      *total = memory.second;
      return kOk;
    }
    *total = host::limit();
    const std::uint64_t current = host::counts().current;
    *free = current < *total ? *total - current : 0;
    return *total == host::kNoLimit ? kAbsent : kOk;
  });
}

// The largest number stands for no limit, here and below.
int orchestrator_torch_set_limit(
    int device, std::uint64_t bytes, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (on_cpu(device)) {
      host::set_limit(bytes);
      return kOk;
    }
    const c10::DeviceIndex index = index_of(device);
    require_initialised(device);
    set_cuda_limit(index, bytes);
    return kOk;
  });
}

int orchestrator_torch_limit(
    int device, std::uint64_t* bytes, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (on_cpu(device)) {
      *bytes = host::limit();
      return kOk;
    }
    const c10::DeviceIndex index = index_of(device);
    require_initialised(device);
    *bytes = cuda_limit(index);
    return kOk;
  });
}

int orchestrator_torch_refuse_once(
    std::uint64_t skip, std::uint64_t at_least, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    host::refuse_once(skip, at_least);
    return kOk;
  });
}

int orchestrator_torch_apply_settings(const char* text, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    c10::CachingAllocator::setAllocatorSettings(text);
    return kOk;
  });
}

int orchestrator_torch_initialise(int device, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (on_cpu(device)) return kOk;
    const c10::DeviceIndex index = index_of(device);
    at::globalContext().lazyInitDevice(kCuda);
    // Makes the device's context, under the device and back.
    at::accelerator::synchronizeDevice(index);
    return kOk;
  });
}

int orchestrator_torch_synchronise(int device, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (!on_cpu(device)) at::accelerator::synchronizeDevice(index_of(device));
    return kOk;
  });
}

// Without CUDA support there is no pinned memory: zeros.
int orchestrator_torch_pinned_statistics(
    orchestrator_torch_level* active, orchestrator_torch_level* allocated, char* message,
    std::size_t capacity) {
  return guarded(message, capacity, [&] {
    *active = *allocated = {};
    if (at::getAccelerator(false) != kCuda) return kOk;
    if (at::HostAllocator* allocator = at::getHostAllocator(kCuda)) {
      const at::HostStats stats = allocator->get_stats();
      *active = {unsigned_of(stats.active_bytes.current), unsigned_of(stats.active_bytes.peak)};
      *allocated = {
          unsigned_of(stats.allocated_bytes.current), unsigned_of(stats.allocated_bytes.peak)};
    }
    return kOk;
  });
}

int orchestrator_torch_pinned_empty(char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (at::getAccelerator(false) != kCuda) return kOk;
    if (at::HostAllocator* allocator = at::getHostAllocator(kCuda)) allocator->empty_cache();
    return kOk;
  });
}

int orchestrator_torch_allow_math_attention(bool allow, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    at::globalContext().setSDPUseMath(allow);
    return kOk;
  });
}

}  // extern "C"
