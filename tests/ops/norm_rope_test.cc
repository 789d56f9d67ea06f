// Norm + rotary against the witnesses: types, norms, modes, shapes, layouts; and the same bits whatever runs it.
#include "gyrograd/norm_rope.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};

void CheckBoth(const NormRopeProblem& problem) {
  EXPECT_TRUE(CheckBackward(problem));
  EXPECT_TRUE(CheckForward(problem));
}

class NormRopeRandom : public ::testing::TestWithParam<int> {};

TEST_P(NormRopeRandom, OnEveryTarget) {
  for (std::uint64_t i = 0; i < 40; ++i) {
    NormRopeProblem problem = RandomNormRopeProblem(static_cast<std::uint64_t>(GetParam()) * 1000 + i);
    for (const CpuTarget target : AvailableCpuTargets()) {
      problem.execution.cpu_target = target;
      CheckBoth(problem);
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeRandom, ::testing::Range(0, 16));

class NormRopeTypesTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NormRopeTypesTest, NormsModesWidths) {
  for (const NormType norm : kNormTypes) {
    for (const RotaryMode mode : kModes) {
      for (const std::int64_t head_dim : {4, 60, 64, 96, 128, 132, 256}) {
        CheckBoth(Typical(kAllNormRopeTypes[GetParam()], norm, mode, head_dim));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeTypesTest, ::testing::Range<std::size_t>(0, std::size(kAllNormRopeTypes)));

TEST(NormRope, LongRows) {
  for (const std::int64_t head_dim : {1024, 1026, 2048, 4096, 12000}) {
    for (const NormRopeTypes& types : {kAllNormRopeTypes[0], kAllNormRopeTypes[1], kAllNormRopeTypes[7]}) {
      NormRopeProblem problem = Typical(types, NormType::kLayerAffine, RotaryMode::kHalf, head_dim);
      problem.batch = 1;
      CheckBoth(problem);
      problem.rotary->mode = RotaryMode::kInterleaveHalf;
      CheckBoth(problem);
    }
  }
}

TEST(NormRope, OddWidthsWithoutRotation) {
  for (const std::int64_t head_dim : {1, 3, 31, 33, 127}) {
    for (const NormType norm : kNormTypes) {
      NormRopeProblem problem = Typical(kAllNormRopeTypes[7], norm, RotaryMode::kHalf, head_dim);
      problem.rotary.reset();
      problem.length = 0;
      CheckBoth(problem);
    }
  }
}

TEST(NormRope, ManyRows) {
  NormRopeProblem problem = Typical(kAllNormRopeTypes[6], NormType::kLayerAffine, RotaryMode::kInterleave, 16);
  problem.batch = 1;
  problem.sequence = 20000;
  problem.heads = 1;
  problem.length = 777;
  CheckBoth(problem);
  problem.sequence = 500;
  problem.heads = 40;
  problem.length = 300;
  CheckBoth(problem);
}

// The same tables as [L, R].
template <class Tensors>
void ExpectTablesOfRank2Agree(const NormRopeProblem& problem) {
  const Tensors want(problem), tensors(problem);
  ASSERT_TRUE(Ok(Compute(want)));
  auto segment = tensors.Segment();
  for (ConstTensorView* table : {&segment.rotation->cos, &segment.rotation->sin}) {
    table->shape = table->shape.subspan(2);
    table->strides = table->strides.subspan(2);
  }
  if constexpr (std::is_same_v<Tensors, NormRopeBackwardTensors>) {
    ASSERT_TRUE(Ok(NormRopeBackward({{&segment, 1}, problem.execution})));
  } else {
    ASSERT_TRUE(Ok(NormRope({{&segment, 1}, problem.execution})));
  }
  EXPECT_TRUE(tensors.Check());
  EXPECT_TRUE(tensors.ResultBits() == want.ResultBits());
}

TEST(NormRope, TablesOfRank2) {
  for (const NormType norm : kNormTypes) {
    for (const Layout layout : {Layout::kContiguous, Layout::kReversedAll, Layout::kLastStride2}) {
      for (const std::int64_t length : {1, 5}) {
        NormRopeProblem problem = Typical(kAllNormRopeTypes[9], norm, RotaryMode::kQuarter, 96);
        problem.tables_layout = layout;
        problem.length = length;
        ExpectTablesOfRank2Agree<NormRopeBackwardTensors>(problem);
        ExpectTablesOfRank2Agree<NormRopeForwardTensors>(problem);
      }
    }
  }
}

}  // namespace
}  // namespace gyrograd::testing
