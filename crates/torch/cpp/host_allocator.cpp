// Invariant: `current` is the sum of the sizes of all blocks that are out, and never exceeds the limit
// that held when the last of them was handed out, however many threads ask at once.

#include "host_allocator.hpp"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace orchestrator::host {
namespace {

const c10::Device kCpu{c10::DeviceType::CPU};

// Room in front of each block, a multiple of the alignment that libtorch expects of blocks.
constexpr std::size_t kFront = c10::gAlignment;
constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max() - kFront;

// The last bytes in front of a block. The mark tells our blocks from those that libtorch's own
// allocator handed out before `install`; for such a block, malloc's bookkeeping stands here.
struct Front {
  std::uint64_t mark;
  std::uint64_t bytes;
};
constexpr std::uint64_t kMark = 0x6f72'6368'6573'7472;

Front* front_of(void* block) { return reinterpret_cast<Front*>(block) - 1; }
std::uint64_t mark_of(void* block) { return kMark ^ reinterpret_cast<std::uintptr_t>(block); }

std::atomic<bool> is_installed{false};
std::atomic<std::uint64_t> current{0};
std::atomic<std::uint64_t> peak{0};
std::atomic<std::uint64_t> refusals{0};
std::atomic<std::uint64_t> ceiling{kNoLimit};

// A refusal ordered by `refuse_once`. The flag keeps the lock out of the usual path.
struct Fault {
  std::atomic<bool> armed{false};
  std::mutex lock;
  std::uint64_t skip = 0;
  std::uint64_t at_least = 0;

  bool strikes(std::uint64_t bytes) {
    if (C10_LIKELY(!armed.load(std::memory_order_relaxed))) return false;
    const std::lock_guard<std::mutex> held(lock);
    if (!armed.load(std::memory_order_relaxed) || bytes < at_least || skip-- != 0) return false;
    armed.store(false, std::memory_order_relaxed);
    return true;
  }
};
Fault fault;

void note_refusal(std::uint64_t bytes, std::uint64_t held) {
  refusals.fetch_add(1, std::memory_order_relaxed);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), held, held, kCpu);
}

// Without the stack trace that TORCH_CHECK collects: finding its symbols takes milliseconds and says
// nothing that the message does not.
[[noreturn]] void refuse(std::uint64_t bytes, std::uint64_t held, const std::string& why) {
  note_refusal(bytes, held);
  throw c10::OutOfMemoryError(c10::str(
      "CPU out of memory. Tried to allocate ", bytes, " bytes: ", held, " bytes are in use and ", why,
      "."));
}

[[noreturn]] void refuse_beyond(std::uint64_t bytes, std::uint64_t held, std::uint64_t allowed) {
  refuse(bytes, held, c10::str("the limit is ", allowed, " bytes"));
}

// Takes `bytes` off what the limit leaves. Gives the bytes then in use.
std::uint64_t reserve(std::uint64_t bytes) {
  std::uint64_t held = current.load(std::memory_order_relaxed);
  do {
    const std::uint64_t allowed = ceiling.load(std::memory_order_relaxed);
    if (C10_UNLIKELY(held > allowed || bytes > allowed - held)) refuse_beyond(bytes, held, allowed);
  } while (!current.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
  return held + bytes;
}

void raise_peak(std::uint64_t held) {
  std::uint64_t highest = peak.load(std::memory_order_relaxed);
  while (highest < held &&
         !peak.compare_exchange_weak(highest, held, std::memory_order_relaxed)) {
  }
}

// The system's own refusal, in libtorch's words, gives the reservation back.
std::byte* take(std::uint64_t bytes) {
  try {
    return static_cast<std::byte*>(c10::alloc_cpu(bytes + kFront));
  } catch (...) {
    note_refusal(bytes, current.fetch_sub(bytes, std::memory_order_relaxed) - bytes);
    throw;
  }
}

void report(void* block, std::int64_t change, std::uint64_t held) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    c10::reportMemoryUsageToProfiler(block, change, held, held, kCpu);
  }
}

void release(void* block) {
  if (block == nullptr) return;
  Front* front = front_of(block);
  if (C10_UNLIKELY(front->mark != mark_of(block))) {
    c10::free_cpu(block);
    return;
  }
  const std::uint64_t bytes = front->bytes;
  front->mark = 0;
  const std::uint64_t held = current.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
  report(block, -static_cast<std::int64_t>(bytes), held);
  c10::free_cpu(static_cast<std::byte*>(block) - kFront);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, kCpu};
    if (C10_UNLIKELY(fault.strikes(bytes))) {
      refuse(bytes, current.load(), "one refusal was ordered by refuse_once");
    }
    if (C10_UNLIKELY(bytes > kLargest)) refuse_beyond(bytes, current.load(), kLargest);
    const std::uint64_t held = reserve(bytes);
    std::byte* block = take(bytes) + kFront;
    *front_of(block) = {mark_of(block), bytes};
    raise_peak(held);
    report(block, static_cast<std::int64_t>(bytes), held);
    return {block, block, &release, kCpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

void require() {
  if (!installed()) {
    throw std::runtime_error(
        "the CPU's allocator is not counted; call count_cpu before the first tensor");
  }
}

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    static CountingAllocator allocator;
    // Above the priority of libtorch's own, so that nothing registered later displaces it.
    c10::SetCPUAllocator(&allocator, 1);
    is_installed.store(true);
  });
}

bool installed() { return is_installed.load(); }

Counts counts() {
  require();
  return {current.load(), peak.load(), refusals.load()};
}

void reset_peak() {
  require();
  peak.store(current.load());
  // A block that another thread took in between may have raised the peak just before the store.
  raise_peak(current.load());
}

std::uint64_t limit() {
  require();
  return ceiling.load();
}

void set_limit(std::uint64_t bytes) {
  require();
  ceiling.store(bytes);
}

void refuse_once(std::uint64_t skip, std::uint64_t at_least) {
  require();
  const std::lock_guard<std::mutex> held(fault.lock);
  fault.skip = skip;
  fault.at_least = at_least;
  fault.armed.store(true, std::memory_order_relaxed);
}

}  // namespace orchestrator::host
