// Replaces operator new by one that counts, and fails where it is told to.
#include "tests/support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> allocations{0};
std::atomic<std::int64_t> live_allocations{0};
// The calling thread's allocations that still succeed, and whether all later ones fail or one alone.
thread_local std::int64_t allocations_left = kAll;
thread_local bool fails_for_good = false;
thread_local bool has_refused = false;

bool Refuses() {
  if (allocations_left == kAll) return false;
  if (allocations_left > 0) {
    --allocations_left;
    return false;
  }
  if (!fails_for_good) allocations_left = kAll;
  has_refused = true;
  return true;
}

void* AllocationOrNull(std::size_t size) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory = Refuses() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory != nullptr) live_allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void* Allocation(std::size_t size) {
  void* const memory = AllocationOrNull(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Free(void* memory) noexcept {
  if (memory != nullptr) live_allocations.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return Allocation(size); }
void* operator new[](std::size_t size) { return Allocation(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return AllocationOrNull(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return AllocationOrNull(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { Free(memory); }

namespace gyrograd::testing {

std::int64_t Allocations() { return allocations.load(); }

std::int64_t LiveAllocations() { return live_allocations.load(); }

FailingAllocations::FailingAllocations(std::int64_t succeed, Failing failing) {
  fails_for_good = failing == Failing::kEveryLaterAllocation;
  has_refused = false;
  allocations_left = succeed;
}

FailingAllocations::~FailingAllocations() { allocations_left = kAll; }

bool FailingAllocations::refused() const { return has_refused; }

}  // namespace gyrograd::testing
