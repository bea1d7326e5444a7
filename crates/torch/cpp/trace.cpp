// Which operator takes and gives back which bytes, on one thread. libtorch's allocators report each
// change to what the thread's PROFILER_STATE holds; a RecordFunction callback keeps the operators that
// run. Both are thread-local, so a thread without a trace pays nothing.

#include "shim.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

using namespace orchestrator;

extern "C" {

struct orchestrator_torch_event {
  std::uint64_t at_ns;
  std::int64_t bytes;
  std::uint64_t address;
  std::uint64_t live_after;
  // Positions among the trace's names.
  std::uint32_t op;
  std::uint32_t outer;
  std::uint32_t module;
};

}  // extern "C"

namespace {

using Clock = std::chrono::steady_clock;
using Name = std::uint32_t;

// The first name of each trace: no operator, no module.
constexpr Name kNone = 0;

// Operators that allocate and compute nothing: what they take is charged to who called them.
bool only_allocates(std::string_view op) {
  constexpr std::string_view kPrefixes[] = {"aten::empty", "aten::new_empty", "aten::resize_"};
  for (const std::string_view prefix : kPrefixes) {
    if (op.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

class Names {
 public:
  Names() { of(""); }

  Name of(std::string_view text) {
    const auto [found, is_new] =
        positions_.try_emplace(std::string(text), static_cast<Name>(texts_.size()));
    if (is_new) texts_.push_back(&found->first);
    return found->second;
  }

  const std::string& text(Name name) const { return *texts_[name]; }

 private:
  // Keys of this map stay where they are.
  std::unordered_map<std::string, Name> positions_;
  std::vector<const std::string*> texts_;
};

struct Frame {
  Name name;
  bool is_aten;
  bool only_allocates;
};

struct Trace {
  c10::Device device;
  Clock::time_point began = Clock::now();
  Names names;
  std::vector<Frame> running;
  std::vector<Name> modules{kNone};
  std::vector<orchestrator_torch_event> events;
  // Blocks that were taken since the beginning and are still out.
  std::unordered_map<void*, std::uint64_t> born;
  std::uint64_t live = 0;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  std::unique_ptr<c10::DebugInfoGuard> reports;

  explicit Trace(c10::Device traced) : device(traced) {}

  Name innermost() const {
    for (auto frame = running.rbegin(); frame != running.rend(); ++frame) {
      if (!frame->only_allocates) return frame->name;
    }
    return running.empty() ? kNone : running.back().name;
  }

  Name outermost() const {
    for (const Frame& frame : running) {
      if (frame.is_aten) return frame.name;
    }
    return running.empty() ? kNone : running.front().name;
  }

  void enter(std::string_view op) {
    running.push_back({names.of(op), op.substr(0, 6) == "aten::", only_allocates(op)});
  }

  void leave() {
    if (!running.empty()) running.pop_back();
  }

  void change(void* block, std::int64_t bytes) {
    if (bytes >= 0) {
      // A block that another thread gave back unseen may stand here still.
      std::uint64_t& size = born[block];
      live += static_cast<std::uint64_t>(bytes) - size;
      size = static_cast<std::uint64_t>(bytes);
    } else if (const auto found = born.find(block); found != born.end()) {
      live -= found->second;
      born.erase(found);
    }
    const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began);
    events.push_back(
        {static_cast<std::uint64_t>(at.count()), bytes, reinterpret_cast<std::uintptr_t>(block), live,
         innermost(), outermost(), modules.back()});
  }
};

// The trace of this thread. libtorch hands a thread's callbacks on to threads that work for it; these
// find null here and record nothing.
thread_local Trace* tracing = nullptr;

// What is below runs inside libtorch's allocators and destructors, where an exception would end the
// process anyway: memory for the trace itself ran out.

struct Reports final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(
      void* block, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) noexcept override {
    if (tracing != nullptr && tracing->device == device) tracing->change(block, bytes);
  }

  bool memoryProfilingEnabled() const override { return true; }
};

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function) noexcept {
  if (tracing != nullptr) tracing->enter(function.name());
  return nullptr;
}

void operator_ends(const at::RecordFunction&, at::ObserverContext*) noexcept {
  if (tracing != nullptr) tracing->leave();
}

// Throws nothing: a callback that is not registered any more is what was wanted.
void unhook(Trace* trace) noexcept {
  if (tracing != trace) return;
  tracing = nullptr;
  try {
    at::removeCallback(trace->callback);
  } catch (...) {
  }
  trace->reports.reset();
}

}  // namespace

extern "C" {

// Starts a trace of the calling thread. End it on the same thread.
int orchestrator_torch_trace_begin(
    int device, void** out, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (tracing != nullptr) throw std::runtime_error("this thread has a trace already");
    auto trace = std::make_unique<Trace>(
        device < 0 ? c10::Device(c10::kCPU)
                   : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
    trace->reports = std::make_unique<c10::DebugInfoGuard>(
        c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reports>());
    trace->callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&operator_begins, &operator_ends)
            .scopes({at::RecordScope::FUNCTION}));
    tracing = trace.get();
    *out = trace.release();
    return kOk;
  });
}

// Stops recording and gives what was recorded, which stays valid until the trace is freed.
void orchestrator_torch_trace_end(
    void* handle, const orchestrator_torch_event** events, std::size_t* count) {
  auto* trace = static_cast<Trace*>(handle);
  unhook(trace);
  *events = trace->events.data();
  *count = trace->events.size();
}

// The bytes of a name in an event, valid until the trace is freed.
const char* orchestrator_torch_trace_name(
    const void* handle, std::uint32_t name, std::size_t* length) {
  const std::string& text = static_cast<const Trace*>(handle)->names.text(name);
  *length = text.size();
  return text.data();
}

void orchestrator_torch_trace_free(void* handle) {
  auto* trace = static_cast<Trace*>(handle);
  unhook(trace);
  delete trace;
}

// Within the module of that name, inside those that were entered before. The thread has a trace.
int orchestrator_torch_trace_enter(
    const char* name, std::size_t length, char* message, std::size_t capacity) {
  return guarded(message, capacity, [&] {
    if (tracing == nullptr) throw std::runtime_error("this thread has no trace");
    std::string path = tracing->names.text(tracing->modules.back());
    if (!path.empty()) path += '.';
    tracing->modules.push_back(tracing->names.of(path.append(name, length)));
    return kOk;
  });
}

void orchestrator_torch_trace_leave() {
  if (tracing != nullptr && tracing->modules.size() > 1) tracing->modules.pop_back();
}

}  // extern "C"
