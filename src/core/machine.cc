// Asking the system.
#include "core/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace gyrograd::internal {
namespace {

constexpr std::int64_t kGuess = std::int64_t{32} << 20;

// What the kernel says of one cache of the first processor: "32768K", "32M". 0 where it says nothing.
std::int64_t KernelCacheBytes(int index) {
  char path[80];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
  std::FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  long size = 0;
  char unit = 0;
  const bool read = std::fscanf(file, "%ld%c", &size, &unit) == 2;
  std::fclose(file);
  return read ? std::int64_t{size} << (unit == 'M' ? 20 : 10) : 0;
}

std::int64_t AskSystem() {
  std::int64_t bytes = 0;
  for (int index = 0; index < 8; ++index) bytes = std::max(bytes, KernelCacheBytes(index));
#if defined(_SC_LEVEL3_CACHE_SIZE)
  // Second choice: virtual machines report the sum of a whole processor's caches here.
  if (bytes == 0) bytes = std::max<std::int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
#endif
  return bytes > 0 ? bytes : kGuess;
}

}  // namespace

std::int64_t LastLevelCacheBytes() {
  static const std::int64_t bytes = AskSystem();
  return bytes;
}

}  // namespace gyrograd::internal
