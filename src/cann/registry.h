// Handles for the C interface. A handle is a number dressed as a pointer: it is looked up, never followed, and never
// given twice, so a stale, foreign or invented one is found out.
#ifndef GYROGRAD_CANN_REGISTRY_H_
#define GYROGRAD_CANN_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "cann/guard.h"

namespace gyrograd::cann {

// One sequence for all registries: no handle is good in two of them.
inline void* NewHandle() {
  static std::atomic<std::uintptr_t> last{0x1000};
  return reinterpret_cast<void*>(last.fetch_add(16, std::memory_order_relaxed) + 16);
}

enum class Entry { kKeep, kRemove };

// The mutex is held for the look-up and the short functions given to Visit alone.
template <class Value>
class Registry {
 public:
  void* Add(Value value) {
    void* handle = NewHandle();
    AddAt(handle, std::move(value));
    return handle;
  }

  // Under an address that is no NewHandle(), in place of whatever was there.
  void AddAt(const void* address, Value value) {
    const std::lock_guard lock(mutex_);
    entries_.insert_or_assign(address, std::move(value));
  }

  // Calls visit(value), which says whether the entry stays. False where the handle is none.
  template <class Function>
  bool Visit(const void* handle, const Function& visit) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle);
    if (found == entries_.end()) return false;
    if (visit(found->second) == Entry::kRemove) entries_.erase(found);
    return true;
  }

  bool Contains(const void* handle) {
    return Visit(handle, [](const Value&) { return Entry::kKeep; });
  }

  // A copy of the value.
  std::optional<Value> Find(const void* handle) {
    std::optional<Value> value;
    Visit(handle, [&](const Value& found) {
      value = found;
      return Entry::kKeep;
    });
    return value;
  }

  bool Remove(const void* handle) {
    return Visit(handle, [](const Value&) { return Entry::kRemove; });
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, Value> entries_;
};

// The registry of one kind of handle, made at its first use, and never destroyed, so that a program may call to its
// very end. A kind is a class with kNone, which says of a handle what it is not.
template <class Kind>
Registry<Kind>& Handles() {
  static auto& registry = *new Registry<Kind>;
  return registry;
}

// The refusal of a handle that is none of its kind.
template <class Kind>
Outcome NoHandle(const std::string& argument, int code = ACLNN_ERR_PARAM_INVALID) {
  return {code, argument + Kind::kNone};
}

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_REGISTRY_H_
