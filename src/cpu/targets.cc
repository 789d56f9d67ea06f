// What the processor can do, and the names of the targets.
#include "cpu/targets.h"

#include "core/guard.h"
#include "ops/rotary/kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace gyrograd {
namespace internal {
namespace {

#if defined(__x86_64__) || defined(__i386__)

bool HasAvx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#else

bool HasAvx2() { return false; }
bool HasAvx512() { return false; }

#endif

}  // namespace

bool ProcessorRuns(CpuTarget target) {
  static const bool avx2 = HasAvx2();
  static const bool avx512 = HasAvx512();
  switch (target) {
    case CpuTarget::kAvx512: return avx512;
    case CpuTarget::kAvx2: return avx2;
    default: return true;
  }
}

}  // namespace internal

const char* Name(CpuTarget target) {
  switch (target) {
    case CpuTarget::kBest: return "best";
    case CpuTarget::kAvx512: return "avx512";
    case CpuTarget::kAvx2: return "avx2";
    case CpuTarget::kNeon: return "neon";
    case CpuTarget::kPortable: return "portable";
  }
  return "unknown";
}

std::vector<CpuTarget> AvailableCpuTargets() {
  std::vector<CpuTarget> targets;
  const Status status = internal::Guard([&] {
    for (const CpuTarget target : {CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon, CpuTarget::kPortable}) {
      if (internal::FindRotaryKernels(target) != nullptr) targets.push_back(target);
    }
    return Status();
  });
  if (!status.ok()) targets.clear();
  return targets;
}

}  // namespace gyrograd
