// Facts of the machine that only the order of work and the choice of stores may look at.
#ifndef GYROGRAD_CORE_MACHINE_H_
#define GYROGRAD_CORE_MACHINE_H_

#include <unistd.h>

#include <cstdint>

namespace gyrograd::internal {

// Asked of the system once: it can take microseconds.
inline std::int64_t LastLevelCacheBytes() {
  static const std::int64_t bytes = [] {
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (level3 > 0 || level2 > 0) return std::int64_t{level3 > level2 ? level3 : level2};
#endif
    return std::int64_t{8} << 20;
  }();
  return bytes;
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_MACHINE_H_
