// Facts of the machine that only the order of work and the choice of stores may look at.
#ifndef GYROGRAD_CORE_MACHINE_H_
#define GYROGRAD_CORE_MACHINE_H_

#include <cstdint>

namespace gyrograd::internal {

// Stores that pass the cache by write whole lines of this size.
inline constexpr std::int64_t kCacheLine = 64;

// The largest cache that a processor core reads through. Asked of the system once: it takes microseconds.
std::int64_t LastLevelCacheBytes();

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_MACHINE_H_
