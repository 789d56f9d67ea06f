// What a backend offers to the rotary operator. operator.cc calls these declarations alone; src/cpu defines them.
#ifndef GYROGRAD_OPS_ROTARY_KERNELS_H_
#define GYROGRAD_OPS_ROTARY_KERNELS_H_

#include <array>
#include <cstdint>

#include "gyrograd/execution.h"
#include "ops/rotary/ways.h"

namespace gyrograd::internal {

struct RotaryPlanData;

// The addresses of a run, by RotaryOperand, and its pieces of the workspace.
struct RotaryRun {
  const RotaryPlanData* plan = nullptr;
  std::array<const void*, 7> data = {};
  double* partials = nullptr;   // plan->partials_bytes
  char* row_buffers = nullptr;  // plan->row_buffer_bytes for each thread
  StoreWay stores = StoreWay::kCached;
  bool stream_sums = false;       // stores to kDcos and kDsin (single terms) pass the cache by
  bool in_place_shuffle = false;  // kOut is kIn, and their pairs lie in different channels
  std::int64_t segments_per_block = 1;
  std::int64_t panel_rows = 1;  // the plan's, or fewer where coefficients are kept too

  std::int64_t blocks() const;
};

struct RotaryKernels {
  const char* name;           // of the CPU target
  std::int64_t member_bytes;  // of one member of a step of pairs, in the arithmetic type
  bool streams;               // there are stores that pass the cache by
  // Computes blocks begin .. end - 1.
  void (*run_blocks)(const RotaryRun& run, int thread, std::int64_t begin, std::int64_t end);
  // Adds the chunk totals of table rows begin .. end - 1 and rounds them; where the plan has more than one chunk.
  void (*add_chunks)(const RotaryRun& run, std::int64_t begin, std::int64_t end);
};

// The kernels of a target; null where this build or this processor lacks it.
const RotaryKernels* FindRotaryKernels(CpuTarget target);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_KERNELS_H_
