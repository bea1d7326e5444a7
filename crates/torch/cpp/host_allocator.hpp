// The CPU's allocator: counts every byte that libtorch asks for and refuses what a limit does not leave.

#pragma once

#include <cstdint>
#include <limits>

namespace orchestrator::host {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

struct Counts {
  std::uint64_t current;
  std::uint64_t peak;
  std::uint64_t refusals;
};

// Makes it libtorch's CPU allocator, once.
void install();
bool installed();

// The rest throws std::runtime_error before `install`.
Counts counts();
void reset_peak();
std::uint64_t limit();
void set_limit(std::uint64_t bytes);
// Refuses one allocation of at least `at_least` bytes, after letting `skip` of them pass.
void refuse_once(std::uint64_t skip, std::uint64_t at_least);

}  // namespace orchestrator::host
