// What stands between the library and its caller: no exception passes.
#ifndef GYROGRAD_CORE_GUARD_H_
#define GYROGRAD_CORE_GUARD_H_

#include <exception>
#include <new>
#include <string>

#include "gyrograd/status.h"

namespace gyrograd::internal {

// body(), or the status that says what it threw. The messages fit a string's own buffer: no allocation.
template <class Body>
Status Guard(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "out of memory");
  } catch (...) {
    return Status(StatusCode::kInternal, "internal error");
  }
}

// The words that body() finds, or those that say what it threw.
template <class Body>
std::string GuardWords(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (...) {
    return "internal error";
  }
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_GUARD_H_
