// How much work is worth a thread, and the arithmetic of cutting it.
#ifndef GYROGRAD_CORE_PARTITION_H_
#define GYROGRAD_CORE_PARTITION_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "gyrograd/execution.h"

namespace gyrograd::internal {

inline std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// Saturating: for amounts of work and memory, which need no exactness where they are astronomical.
inline std::int64_t SaturatingMul(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

// Of amounts.
inline std::int64_t SaturatingAdd(std::int64_t a, std::int64_t b) {
  std::int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

inline std::int64_t RoundUp(std::int64_t a, std::int64_t b) { return SaturatingMul(CeilDiv(a, b), b); }

// The threads for blocks of work that move so many bytes together. `asked`: at most so many; 0: as many as there are.
inline int ThreadsFor(std::int64_t bytes, std::int64_t blocks, int asked) {
  constexpr std::int64_t kSerialBytes = std::int64_t{192} << 10;  // below, waking a thread costs more than it gains
  constexpr std::int64_t kMaxThreads = 256;  // starting more might fail, which OpenMP does not survive
  if (bytes <= kSerialBytes) return 1;
  const std::int64_t most = std::clamp<std::int64_t>(blocks, 1, kMaxThreads);
  return static_cast<int>(std::min<std::int64_t>(asked > 0 ? asked : DefaultNumThreads(), most));
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_PARTITION_H_
