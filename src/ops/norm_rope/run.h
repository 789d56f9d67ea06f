// How a plan of segments runs on addresses.
#ifndef GYROGRAD_OPS_NORM_ROPE_RUN_H_
#define GYROGRAD_OPS_NORM_ROPE_RUN_H_

#include <cstddef>

#include "ops/norm_rope/call.h"
#include "ops/norm_rope/plan.h"

namespace gyrograd::internal {

// Checks what depends on addresses, then computes. Allocates nothing.
Status RunChecked(const NormRopePlanData& plan, const NormRopeAddresses& data, void* workspace,
                  std::size_t workspace_size);

// Plans a validated call, brings a workspace, computes.
Status RunOnce(const NormRopeCall& call);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_RUN_H_
