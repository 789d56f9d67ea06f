// Calls of the library on problems of norm and rotary.
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/norm_rope_problem.h"

namespace gyrograd::testing {

Status Compute(const NormRopeBackwardTensors& tensors) {
  const NormRopeBackwardSegment segments[] = {tensors.Segment()};
  return NormRopeBackward({.segments = segments, .execution = tensors.problem.execution});
}

Status Compute(const NormRopeForwardTensors& tensors) {
  const NormRopeSegment segments[] = {tensors.Segment()};
  return NormRope({.segments = segments, .execution = tensors.problem.execution});
}

::testing::AssertionResult CheckBackward(const NormRopeProblem& problem) {
  const NormRopeBackwardTensors tensors(problem);
  const Status status = Compute(tensors);
  if (!status.ok()) return ::testing::AssertionFailure() << status.message() << "; problem " << problem;
  return tensors.Check();
}

::testing::AssertionResult CheckForward(const NormRopeProblem& problem) {
  const NormRopeForwardTensors tensors(problem);
  const Status status = Compute(tensors);
  if (!status.ok()) return ::testing::AssertionFailure() << status.message() << "; problem " << problem;
  return tensors.Check();
}

::testing::AssertionResult CheckBackward(const NormRopeConcatProblem& problem) {
  const NormRopeConcatTensors tensors(problem);
  const Status status = NormRopeConcatBackward(tensors.BackwardArgs());
  if (!status.ok()) return ::testing::AssertionFailure() << status.message() << "; problem " << problem;
  return tensors.CheckBackward();
}

::testing::AssertionResult CheckForward(const NormRopeConcatProblem& problem) {
  const NormRopeConcatTensors tensors(problem);
  const Status status = NormRopeConcat(tensors.ForwardArgs());
  if (!status.ok()) return ::testing::AssertionFailure() << status.message() << "; problem " << problem;
  return tensors.CheckForward();
}

}  // namespace gyrograd::testing
