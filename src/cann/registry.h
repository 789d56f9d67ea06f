// Handles for the C interface. A handle is a number dressed as a pointer: it is looked up, never followed, and never
// given twice, so a stale, foreign or invented one is found out.
#ifndef GYROGRAD_CANN_REGISTRY_H_
#define GYROGRAD_CANN_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

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
    const std::lock_guard lock(mutex_);
    entries_.emplace(handle, std::move(value));
    return handle;
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

  bool Remove(const void* handle) {
    return Visit(handle, [](const Value&) { return Entry::kRemove; });
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, Value> entries_;
};

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_REGISTRY_H_
