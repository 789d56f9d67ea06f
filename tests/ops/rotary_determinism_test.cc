// The same bits for any number of threads, on every CPU target, in every repetition; the target that was asked for
// runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

class RotaryDeterminism : public ::testing::TestWithParam<ModeAndTypes> {
 protected:
  // Work split by positions, by table rows, by chunks of terms, by segments of long rows; and vectors with a rest.
  std::vector<Problem> Problems() const {
    const auto [mode, types] = GetParam();
    std::vector<Problem> problems;
    for (const bool per_pair : {false, true}) {
      problems.push_back(MakeProblem(mode, types, {2, 90, 3, 64}, {1, 90, 1}, per_pair));
      problems.push_back(MakeProblem(mode, types, {2, 3, 90, 36}, {1, 1, 90}, per_pair));
      problems.push_back(MakeProblem(mode, types, {7000, 4}, {1}, per_pair));
      problems.push_back(MakeProblem(mode, types, {40, 10, 60}, {40, 10}, per_pair));
      problems.push_back(MakeProblem(mode, types, {3, 8204}, {1}, per_pair));
      problems.push_back(MakeProblem(mode, types, {40, 5, 17, 8}, {1, 5, 1}, per_pair));
    }
    Problem strided = problems.front();
    strided.tables_layout = Layout::kLastStride2;
    strided.dx_layout = Layout::kLastSlowest;
    problems.push_back(strided);
    return problems;
  }
};

// One problem's tensors, run again and again.
class Runs {
 public:
  explicit Runs(const Problem& problem) : backward_(problem), forward_(problem) {}

  std::vector<std::uint64_t> Bits(const Execution& execution) const {
    RotaryBackwardArgs backward = backward_.Args();
    RotaryArgs forward = forward_.Args();
    backward.execution = forward.execution = execution;
    EXPECT_TRUE(Ok(RotaryBackward(backward)));
    EXPECT_TRUE(Ok(Rotary(forward)));
    std::vector<std::uint64_t> bits = backward_.ResultBits();
    const std::vector<std::uint64_t> y = forward_.y.Bits();
    bits.insert(bits.end(), y.begin(), y.end());
    return bits;
  }

  void Check() const {
    EXPECT_TRUE(backward_.Check());
    EXPECT_TRUE(forward_.Check());
  }

 private:
  BackwardTensors backward_;
  ForwardTensors forward_;
};

TEST_P(RotaryDeterminism, ThreadsAndTargets) {
  for (const Problem& problem : Problems()) {
    const Runs runs(problem);
    const std::vector<std::uint64_t> want = runs.Bits({.num_threads = 1, .cpu_target = CpuTarget::kBest});
    runs.Check();
    for (const CpuTarget target : AvailableCpuTargets()) {
      EXPECT_TRUE(runs.Bits({3, target}) == want) << problem << " target " << Name(target);
    }
    for (const int threads : {0, 2, 7}) {
      EXPECT_TRUE(runs.Bits({threads, CpuTarget::kBest}) == want) << problem << " threads " << threads;
    }
  }
}

TEST_P(RotaryDeterminism, SpecialValuesOnEveryTarget) {
  const auto [mode, types] = GetParam();
  if (types.activations == DType::kF64) return;
  for (const std::int64_t dim : {20, 64}) {
    Problem problem = MakeProblem(mode, types, {60, dim}, {1});
    std::vector<std::uint64_t> want;
    for (const CpuTarget target : AvailableCpuTargets()) {
      problem.execution.cpu_target = target;
      BackwardTensors tensors(problem);
      Random random(21);
      for (Tensor* tensor : {&tensors.dy, &tensors.x, &tensors.cos, &tensors.sin}) {
        tensor->FillBits([&](std::int64_t) { return static_cast<std::uint32_t>(random() >> 20); });
      }
      ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
      EXPECT_TRUE(tensors.Check());
      if (want.empty()) want = tensors.ResultBits();
      EXPECT_EQ(tensors.ResultBits(), want) << problem;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryDeterminism, ModesAndTypes(), ModeAndTypesName);

TEST(RotaryDeterminism, ThreeHundredRepeats) {
  for (const Problem& problem :
       {MakeProblem(RotaryMode::kHalf, {DType::kBF16, DType::kF32}, {2, 200, 3, 64}, {1, 200, 1}),
        MakeProblem(RotaryMode::kInterleave, {}, {20000, 8}, {1})}) {
    const BackwardTensors tensors(problem);
    ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
    const std::vector<std::uint64_t> want = tensors.ResultBits();
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
      ASSERT_EQ(tensors.ResultBits(), want) << "repeat " << i;
    }
  }
}

TEST(CpuTargets, TheOneAskedForRuns) {
  const std::vector<CpuTarget> targets = AvailableCpuTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_TRUE(targets.back() == CpuTarget::kPortable || targets.back() == CpuTarget::kNeon);
  Problem problem = MakeProblem(RotaryMode::kHalf, {}, {3, 8}, {3});
  for (const CpuTarget target : targets) {
    problem.execution.cpu_target = target;
    const BackwardTensors backward(problem);
    RotaryBackwardPlan backward_plan;
    ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(backward.Args(), &backward_plan)));
    const std::string line = std::string("target: ") + Name(target) + "\n";
    EXPECT_NE(backward_plan.Describe().find(line), std::string::npos) << backward_plan.Describe();
    const ForwardTensors forward(problem);
    RotaryPlan forward_plan;
    ASSERT_TRUE(Ok(RotaryPlan::Create(forward.Args(), &forward_plan)));
    EXPECT_NE(forward_plan.Describe().find(line), std::string::npos) << forward_plan.Describe();
  }
  problem.execution.cpu_target = CpuTarget::kBest;
  const BackwardTensors best(problem);
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(best.Args(), &plan)));
  EXPECT_NE(plan.Describe().find(std::string("target: ") + Name(targets.front()) + "\n"), std::string::npos);
}

TEST(CpuTargets, OneThatIsNotThereIsRefused) {
  const std::vector<CpuTarget> targets = AvailableCpuTargets();
  Problem problem = MakeProblem(RotaryMode::kHalf, {}, {3, 8}, {3});
  int absent = 0;
  for (const CpuTarget target : {CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon, CpuTarget::kPortable}) {
    if (std::find(targets.begin(), targets.end(), target) != targets.end()) continue;
    ++absent;
    problem.execution.cpu_target = target;
    const BackwardTensors tensors(problem);
    EXPECT_TRUE(Refused(RotaryBackward(tensors.Args()), StatusCode::kInvalidAttribute, {"cpu_target", Name(target)}));
    EXPECT_TRUE(tensors.dx.Unchanged("dx"));
  }
  EXPECT_GT(absent, 0);  // no processor has both x86's and Arm's
}

}  // namespace
}  // namespace gyrograd::testing
