// The one seam through which work reaches several threads.
#ifndef GYROGRAD_CORE_PARALLEL_H_
#define GYROGRAD_CORE_PARALLEL_H_

#include <cstdint>

namespace gyrograd::internal {

// A range of items and the thread (0 .. num_threads - 1) that works on it.
using RangeBody = void (*)(const void* context, int thread, std::int64_t begin, std::int64_t end);

// Calls body for ranges that cover 0 .. items - 1, on at most num_threads threads (256): mostly the same ranges on the
// same threads from call to call; or all of them in one, on the calling thread, where one thread or one item is all
// there is, and in a forked child of a process that has called this before (an OpenMP pool does not survive a fork).
// Each thread computes under FpEnvironment.
void ParallelRanges(std::int64_t items, int num_threads, RangeBody body, const void* context);

// The same for a callable body(thread, begin, end) noexcept.
template <class Body>
void ParallelFor(std::int64_t items, int num_threads, const Body& body) {
  ParallelRanges(
      items, num_threads,
      [](const void* context, int thread, std::int64_t begin, std::int64_t end) {
        (*static_cast<const Body*>(context))(thread, begin, end);
      },
      &body);
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_PARALLEL_H_
