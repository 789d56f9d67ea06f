// The CPU targets: which of Highway's the kernels are compiled for, and which of them this processor runs.
//
// Every kernel file includes this header before any of Highway's.
#ifndef GYROGRAD_CPU_TARGETS_H_
#define GYROGRAD_CPU_TARGETS_H_

#include "gyrograd/execution.h"

#if defined(GYROGRAD_PORTABLE_ONLY)
#define HWY_COMPILE_ONLY_EMU128
#else
#define HWY_DISABLED_TARGETS (~(HWY_AVX3 | HWY_AVX2 | HWY_NEON | HWY_EMU128))
#endif
// Highway avoids its portable target with GCC before 12.3 because of one wrong instruction selection (GCC bug 106322,
// 16-bit multiply-high). No kernel here multiplies 16-bit integers.
#define HWY_BROKEN_EMU128 0

namespace gyrograd::internal {

// Whether this processor (and its operating system) runs a target's instructions. Not for kBest.
bool ProcessorRuns(CpuTarget target);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CPU_TARGETS_H_
