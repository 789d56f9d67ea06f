// OpenMP behind ParallelFor.
#include "core/parallel.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "core/fp_environment.h"
#include "gyrograd/execution.h"

namespace gyrograd {

int DefaultNumThreads() { return std::max(1, omp_get_max_threads()); }

namespace internal {
namespace {

// The process that called first; a forked child finds its parent's number here.
std::atomic<pid_t> first_process{0};

bool InForkedChild() {
  const pid_t process = getpid();
  pid_t expected = 0;
  if (first_process.compare_exchange_strong(expected, process, std::memory_order_relaxed)) return false;
  return expected != process;
}

void NoteProcess() {
  if (first_process.load(std::memory_order_relaxed) == 0) InForkedChild();
}

}  // namespace

void ParallelRanges(std::int64_t items, int num_threads, RangeBody body, const void* context) {
  if (items <= 0) return;
  const int threads = static_cast<int>(std::min<std::int64_t>(num_threads, items));
  if (threads <= 1 || InForkedChild()) {
    NoteProcess();
    const FpEnvironment environment;
    body(context, 0, 0, items);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const FpEnvironment environment;
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1) nowait
    for (std::int64_t item = 0; item < items; ++item) body(context, thread, item, item + 1);
  }
}

}  // namespace internal
}  // namespace gyrograd
