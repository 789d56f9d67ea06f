// What a backend offers to the norm + rotary operator. operator.cc calls these declarations alone; src/cpu defines
// them.
#ifndef GYROGRAD_OPS_NORM_ROPE_KERNELS_H_
#define GYROGRAD_OPS_NORM_ROPE_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "gyrograd/execution.h"

namespace gyrograd::internal {

struct NormPiece;
struct CopyPiece;

// The addresses of a run, by NormRopeOperand, and its pieces of the workspace.
struct NormRun {
  const NormPiece* piece = nullptr;
  std::array<const void*, 11> data = {};
  double* partials = nullptr;  // piece->partials_bytes
  char* scratch = nullptr;     // scratch_bytes for each thread; null: on the stack
  std::int64_t scratch_bytes = 0;
  bool stream = false;       // stores to the output pass the cache by
  bool copies_rows = false;  // the output lies on the rows that turn, and their pairs change places
};

struct CopyRun {
  const CopyPiece* piece = nullptr;
  const void* in = nullptr;
  void* out = nullptr;
  bool stream = false;
};

struct NormRopeKernels {
  const char* name;  // of the CPU target
  bool streams;      // there are stores that pass the cache by
  // Computes blocks (chunks) begin .. end - 1.
  void (*run_blocks)(const NormRun& run, int thread, std::int64_t begin, std::int64_t end);
  // Adds the chunks' totals and rounds them, once all blocks are done.
  void (*add_chunks)(const NormRun& run);
  // Copies rows begin .. end - 1.
  void (*copy_rows)(const CopyRun& run, std::int64_t begin, std::int64_t end);
};

// The kernels of a target; null where this build or this processor lacks it.
const NormRopeKernels* FindNormRopeKernels(CpuTarget target);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_KERNELS_H_
