// How a call is run: how many threads, which instruction set. Neither changes a bit of any result.
#ifndef GYROGRAD_EXECUTION_H_
#define GYROGRAD_EXECUTION_H_

#include <cstdint>
#include <vector>

#include "gyrograd/api.h"

namespace gyrograd {

enum class CpuTarget : std::uint8_t {
  kBest,      // the best one that this processor runs
  kAvx512,    // x86-64 with AVX-512 F, BW, CD, DQ, VL
  kAvx2,      // x86-64 with AVX2, F16C
  kNeon,      // aarch64
  kPortable,  // plain C++
};

struct Execution {
  int num_threads = 0;  // 0: as many as OpenMP would use (OMP_NUM_THREADS); otherwise at most this many
  CpuTarget cpu_target = CpuTarget::kBest;
};

// "best", "avx512", "avx2", "neon", "portable".
GYROGRAD_API const char* Name(CpuTarget target);

// The targets that this build holds and this processor runs, best first; the last one is always kPortable or kNeon.
// (None where there is no memory for the list.)
GYROGRAD_API std::vector<CpuTarget> AvailableCpuTargets();

// The threads that Execution{.num_threads = 0} would use from the calling thread.
GYROGRAD_API int DefaultNumThreads();

// The library's version, such as "0.1.0".
GYROGRAD_API const char* Version();

}  // namespace gyrograd

#endif  // GYROGRAD_EXECUTION_H_
