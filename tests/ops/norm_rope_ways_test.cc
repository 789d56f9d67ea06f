// Ways to write the results of norm + rotary: each of them has the bits of the one that the plan takes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "ops/norm_rope/run.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

using internal::MakeNormRopePlan;
using internal::NormRopeCall;
using internal::StoreWay;

// Every norm, rows that turn, that do not, and that turn in part; of whole lines and of none.
std::vector<NormRopeProblem> ProblemsOf(const NormRopeTypes& types, RotaryMode mode) {
  std::vector<NormRopeProblem> problems;
  for (const NormType norm : kNormTypes) {
    for (const std::int64_t head_dim : {64, 128, 132}) {
      problems.push_back(Typical(types, norm, mode, head_dim));
      if (head_dim == 128) problems.back().rotary->rotary_dim = 64;
    }
  }
  return problems;
}

// One direction: the bits of a run whose stores are forced.
template <class Tensors, class Args>
std::vector<std::uint64_t> BitsOf(const Tensors& tensors, const std::vector<const Tensor*>& outputs, StoreWay stores) {
  for (const Tensor* output : outputs) output->Clear();
  const auto segment = tensors.Segment();
  const NormRopeCall call = NormRopeCall::From(Args{.segments = {&segment, 1}, .execution = tensors.problem.execution});
  const auto plan = MakeNormRopePlan(call, stores);
  for (const internal::NormPiece& piece : plan->norms) {
    EXPECT_EQ(piece.stores, stores == StoreWay::kStaged ? StoreWay::kCached : stores);
  }
  for (const internal::CopyPiece& piece : plan->copies) {
    EXPECT_EQ(piece.stores, stores == StoreWay::kStaged ? StoreWay::kCached : stores);
  }
  for (const internal::RotaryPiece& piece : plan->rotaries) {
    EXPECT_TRUE(stores != StoreWay::kCached || piece.plan->ways.stores == stores);
  }
  std::vector<std::byte> workspace(plan->workspace_bytes);
  EXPECT_TRUE(Ok(RunChecked(*plan, AddressesOf(call), workspace.data(), workspace.size())));
  for (const Tensor* output : outputs) EXPECT_TRUE(output->GuardsIntact("an output")) << tensors.problem;
  return tensors.ResultBits();
}

void ExpectTheSameBits(const NormRopeProblem& problem) {
  const NormRopeBackwardTensors backward(problem);
  const NormRopeForwardTensors forward(problem);
  const auto bits = [&](StoreWay stores) {
    auto both = BitsOf<NormRopeBackwardTensors, NormRopeBackwardArgs>(
        backward, {&backward.dx, &backward.dweight, &backward.dbias}, stores);
    const auto more = BitsOf<NormRopeForwardTensors, NormRopeArgs>(forward, {&forward.y}, stores);
    both.insert(both.end(), more.begin(), more.end());
    return both;
  };
  const std::vector<std::uint64_t> want = bits(StoreWay::kCached);
  EXPECT_TRUE(bits(StoreWay::kStreamed) == want) << problem;
  EXPECT_TRUE(bits(StoreWay::kStaged) == want) << problem;
}

class NormRopeWays : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NormRopeWays, AllHaveTheSameBits) {
  for (const RotaryMode mode : kModes) {
    for (NormRopeProblem& problem : ProblemsOf(kAllNormRopeTypes[GetParam()], mode)) {
      for (const CpuTarget target : AvailableCpuTargets()) {
        problem.execution.cpu_target = target;
        ExpectTheSameBits(problem);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeWays, ::testing::Range<std::size_t>(0, std::size(kAllNormRopeTypes)));

}  // namespace
}  // namespace gyrograd::testing
