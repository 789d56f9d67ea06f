// The rules of norm + rotary, a list of segments: the only place that refuses.
#ifndef GYROGRAD_OPS_NORM_ROPE_VALIDATE_H_
#define GYROGRAD_OPS_NORM_ROPE_VALIDATE_H_

#include <cstddef>
#include <cstdint>

#include "ops/argument.h"
#include "ops/norm_rope/call.h"

namespace gyrograd::internal {

// The rules that need no addresses, in their order of precedence, and all of them.
Status ValidateTypes(const NormRopeCall& call);
Status ValidateAttributes(const NormRopeCall& call);
Status ValidateMissing(const NormRopeCall& call);
Status ValidateShapes(const NormRopeCall& call);
Status ValidateOwnElements(const NormRopeCall& call);
Status ValidateViews(const NormRopeCall& call);

// A run has as many entries of pointers as the plan has segments: asked before the addresses are.
Status ValidateCount(const NormRopeCall& call, std::size_t entries);

// What can be said of addresses, for views that passed ValidateViews. Nothing is allocated unless it is refused.
Status ValidateNull(const NormRopeCall& call, const NormRopeAddresses& data);
Status ValidateMemory(const NormRopeCall& call, const NormRopeAddresses& data);

// All of it, in the order of StatusCode.
Status Validate(const NormRopeCall& call);

// A norm type is one of the five.
Status ValidateNormType(const Argument& argument, NormType type);

// A table is [L, R] or of rank 4, broadcasting to [batch, heads, L, R].
Status ValidateTableRank(const Argument& table, const ConstTensorView& view, std::int64_t batch, std::int64_t heads);

// The first two extents of a table of rank 4 are 1, or those of the rows that turn.
Status ValidateTableBroadcast(const Argument& table, const ConstTensorView& view, const Argument& row,
                              std::int64_t batch, std::int64_t heads);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_VALIDATE_H_
