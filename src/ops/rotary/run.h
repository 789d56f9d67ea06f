// How plans run on addresses.
#ifndef GYROGRAD_OPS_ROTARY_RUN_H_
#define GYROGRAD_OPS_ROTARY_RUN_H_

#include <array>
#include <cstddef>

#include "gyrograd/status.h"
#include "ops/rotary/kernels.h"
#include "ops/rotary/plan.h"
#include "ops/rotary/validate.h"

namespace gyrograd::internal {

// What a backend runs: what depends on addresses is decided here.
RotaryRun PrepareRun(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace);

// Checks what depends on addresses, then computes. Allocates nothing.
Status RunChecked(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace, std::size_t workspace_size);

// Plans validated calls, brings workspaces, computes them side by side: table rows that they share are read for all at
// a time. No output of one call may be memory of another.
template <std::size_t count>  // 1 or 2
void RunOnce(const std::array<RotaryCall, count>& calls);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_RUN_H_
