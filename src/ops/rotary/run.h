// From a plan and addresses to what a backend runs: what depends on addresses is decided here.
#ifndef GYROGRAD_OPS_ROTARY_RUN_H_
#define GYROGRAD_OPS_ROTARY_RUN_H_

#include <cstdint>

#include "ops/rotary/kernels.h"
#include "ops/rotary/plan.h"
#include "ops/rotary/validate.h"

namespace gyrograd::internal {

// Stores that pass the cache by write whole lines of this size.
inline constexpr std::int64_t kCacheLine = 64;

RotaryRun PrepareRun(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_RUN_H_
