// The rules of the joint call. What holds of every segment of its list is left to norm_rope's rules.
#ifndef GYROGRAD_OPS_NORM_ROPE_CONCAT_VALIDATE_H_
#define GYROGRAD_OPS_NORM_ROPE_CONCAT_VALIDATE_H_

#include "ops/norm_rope_concat/list.h"

namespace gyrograd::internal {

// As those of norm_rope; `list` is ListOf(call).
Status ValidateViews(const NormRopeConcatCall& call, const NormRopeCall& list);
Status Validate(const NormRopeConcatCall& call, const NormRopeCall& list);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_CONCAT_VALIDATE_H_
