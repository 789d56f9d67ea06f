// How plans run on addresses.
#ifndef GYROGRAD_OPS_ROTARY_RUN_H_
#define GYROGRAD_OPS_ROTARY_RUN_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "gyrograd/status.h"
#include "ops/rotary/kernels.h"
#include "ops/rotary/plan.h"
#include "ops/rotary/validate.h"

namespace gyrograd::internal {

// Stores that pass the cache by write whole lines of this size.
inline constexpr std::int64_t kCacheLine = 64;

// What a backend runs: what depends on addresses is decided here.
RotaryRun PrepareRun(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace);

// Checks what depends on addresses, then computes. Allocates nothing.
Status RunChecked(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace, std::size_t workspace_size);

// Validates and plans calls, brings workspaces, computes them side by side: tables of one shape that calls share are
// read for all of them at a time. At most kMostTogether; no output of one is memory of another. Where the status is not
// ok, no output was touched.
inline constexpr std::size_t kMostTogether = 2;
Status RunOnce(std::span<const RotaryCall> calls);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_RUN_H_
