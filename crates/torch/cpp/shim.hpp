// What every file of the shim shares: the result codes, and the one place where C++ exceptions end.

#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>

namespace orchestrator {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kAbsent = 2;

// `message` holds `capacity` bytes; the text is cut to fit and always ends in zero.
inline void say(char* message, std::size_t capacity, const char* text) {
  std::snprintf(message, capacity, "%s", text);
}

// Runs `body`, which gives a result code; an exception becomes kFailed and its text.
template <typename Body>
int guarded(char* message, std::size_t capacity, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    say(message, capacity, error.what());
  } catch (...) {
    say(message, capacity, "an exception that is not a std::exception");
  }
  return kFailed;
}

}  // namespace orchestrator
