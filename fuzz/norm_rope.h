// The two ways into norm and rotary that fuzz_norm_rope tries.
#ifndef GYROGRAD_FUZZ_NORM_ROPE_H_
#define GYROGRAD_FUZZ_NORM_ROPE_H_

#include <string>

#include "fuzz/bytes.h"
#include "fuzz/call.h"
#include "gyrograd/norm_rope.h"
#include "tests/support/norm_rope_problem.h"

namespace gyrograd::fuzz {

void TryNormRope(Bytes& bytes);        // a list of segments
void TryNormRopeConcat(Bytes& bytes);  // the joint call

// The results of a segment on memory of its own against the witnesses; inputs are as before the call.
void DemandSegment(const std::string& name, const NormRopeBackwardSegment& segment, const std::string& words);
void DemandSegment(const std::string& name, const NormRopeSegment& segment, const std::string& words);

// Any type but the norms'.
NormType ChooseBadNormType(Bytes& bytes);

}  // namespace gyrograd::fuzz

#endif  // GYROGRAD_FUZZ_NORM_ROPE_H_
