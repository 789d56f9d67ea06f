// The allocations of a test program: linking allocations.cc replaces operator new by one that counts, and that fails
// when a test asks for it.
#ifndef GYROGRAD_TESTS_SUPPORT_ALLOCATIONS_H_
#define GYROGRAD_TESTS_SUPPORT_ALLOCATIONS_H_

#include <cstdint>

namespace gyrograd::testing {

// So far, in all threads.
std::int64_t Allocations();

// Those that were not freed yet, in all threads.
std::int64_t LiveAllocations();

enum class Failing { kOneAllocation, kEveryLaterAllocation };

// While it lives, `succeed` allocations of the calling thread succeed; the next one fails, or all that follow.
class FailingAllocations {
 public:
  FailingAllocations(std::int64_t succeed, Failing failing);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  // Whether one has failed.
  bool refused() const;
};

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_ALLOCATIONS_H_
