// A target's name, and the choice of a target's kernels at run time. (Its first half is included once for each target.)
#if defined(GYROGRAD_CPU_DISPATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_DISPATCH_INL_H_
#undef GYROGRAD_CPU_DISPATCH_INL_H_
#else
#define GYROGRAD_CPU_DISPATCH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

constexpr const char* TargetName() {
#if HWY_TARGET == HWY_AVX3
  return "avx512";
#elif HWY_TARGET == HWY_AVX2
  return "avx2";
#elif HWY_TARGET == HWY_NEON
  return "neon";
#else
  return "portable";
#endif
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif

#ifndef GYROGRAD_CPU_DISPATCH_ONCE_
#define GYROGRAD_CPU_DISPATCH_ONCE_

#include "cpu/targets.h"

#if HWY_TARGETS & HWY_EMU128
#define GYROGRAD_CHOOSE_PORTABLE(function) HWY_CHOOSE_FALLBACK(function)
#else
#define GYROGRAD_CHOOSE_PORTABLE(function) nullptr
#endif

// The function as this file was compiled for a target; null for the others.
#define GYROGRAD_COMPILED(target, function)                                \
  ((target) == CpuTarget::kAvx512     ? HWY_CHOOSE_AVX3(function)          \
   : (target) == CpuTarget::kAvx2     ? HWY_CHOOSE_AVX2(function)          \
   : (target) == CpuTarget::kNeon     ? HWY_CHOOSE_NEON(function)          \
   : (target) == CpuTarget::kPortable ? GYROGRAD_CHOOSE_PORTABLE(function) \
                                      : nullptr)

namespace gyrograd::internal {

// The kernels of a target, or of the best one; null where this build or this processor lacks it. compiled(target) is
// a function that returns them, or null.
template <class Kernels>
const Kernels* FindKernels(CpuTarget target, const Kernels* (*(*compiled)(CpuTarget))()) {
  if (target != CpuTarget::kBest) {
    const auto get = compiled(target);
    return get != nullptr && ProcessorRuns(target) ? get() : nullptr;
  }
  for (const CpuTarget candidate : {CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon, CpuTarget::kPortable}) {
    if (const Kernels* kernels = FindKernels(candidate, compiled)) return kernels;
  }
  return nullptr;
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CPU_DISPATCH_ONCE_
