// How a joint call becomes a list of segments: slices along the joint sequences, tables cut where they meet each
// stream.
#ifndef GYROGRAD_OPS_NORM_ROPE_CONCAT_LIST_H_
#define GYROGRAD_OPS_NORM_ROPE_CONCAT_LIST_H_

#include <array>

#include "ops/norm_rope_concat/call.h"

namespace gyrograd::internal {

// The streams that are there, in the order of kStreams. It may be made of any arguments, however wrong: `Validate`
// looks at both. The list borrows the call's spans.
NormRopeCall ListOf(const NormRopeConcatCall& call);

// The addresses of a planned list, read off arguments with the same views given; null for what is not given.
using NormRopeConcatPointers = std::array<NormRopePointerRow, kStreams>;
NormRopeConcatPointers PointersOf(const NormRopeCall& planned, const NormRopeConcatCall& call);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_CONCAT_LIST_H_
