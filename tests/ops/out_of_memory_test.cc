// The system refuses memory, at each allocation of each public call: the call says so, leaks nothing, and has written
// nothing.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gyrograd/gyrograd.h"
#include "tests/support/allocations.h"
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

using Outputs = std::vector<const Tensor*>;

constexpr const char* kOutOfMemory = "out of memory";

class OutOfMemory : public ::testing::TestWithParam<Failing> {
 protected:
  // Calls with ever more allocations that succeed, until none fails. The last call writes the outputs.
  void FailEach(const std::string& name, const std::function<Status()>& call, const Outputs& outputs = {}) {
    ASSERT_TRUE(Ok(call())) << name;  // starts OpenMP's threads, and makes what is made once
    for (const Tensor* output : outputs) output->Clear();
    for (std::int64_t succeed = 0; !HasFailure(); ++succeed) {
      const std::int64_t live = LiveAllocations();
      const bool refused = CallWith(succeed, name, call);
      failures += refused;
      EXPECT_EQ(LiveAllocations(), live) << name << " leaks where allocation " << succeed << " fails";
      if (!refused) return;
      for (const Tensor* output : outputs) EXPECT_TRUE(output->Unchanged("an output")) << name << " " << succeed;
    }
  }

  // One plan, which a failed Create leaves empty; then its words.
  template <class Plan, class Args>
  void FailPlan(const std::string& name, const Args& args) {
    FailEach(name + " plan", [&] {
      Plan plan;
      Status status = Plan::Create(args, &plan);
      if (!status.ok()) {
        EXPECT_EQ(plan.workspace_size(), 0u);
        EXPECT_TRUE(plan.Describe().empty());
      }
      return status;
    });
    Plan plan;
    ASSERT_TRUE(Ok(Plan::Create(args, &plan)));
    const std::string words = plan.Describe();
    FailEach(name + " plan's words", [&] { return StatusOf(plan.Describe(), words); });
  }

  std::int64_t failures = 0;

 private:
  // Whether an allocation was refused.
  static bool CallWith(std::int64_t succeed, const std::string& name, const std::function<Status()>& call) {
    Status status;
    bool refused = false;
    {
      const FailingAllocations failing(succeed, GetParam());
      status = call();
      refused = failing.refused();
    }
    EXPECT_EQ(status.code(), refused ? StatusCode::kOutOfMemory : StatusCode::kOk) << name << " " << succeed;
    EXPECT_EQ(status.message(), refused ? kOutOfMemory : "") << name << " " << succeed;
    return refused;
  }

  // What Describe says instead of a status.
  static Status StatusOf(const std::string& got, const std::string& want) {
    if (got == kOutOfMemory) return Status(StatusCode::kOutOfMemory, kOutOfMemory);
    EXPECT_TRUE(got == want) << got;
    return Status();
  }
};

INSTANTIATE_TEST_SUITE_P(Of, OutOfMemory, ::testing::Values(Failing::kOneAllocation, Failing::kEveryLaterAllocation),
                         [](const ::testing::TestParamInfo<Failing>& test) {
                           return std::string(test.param == Failing::kOneAllocation ? "One" : "EveryLater");
                         });

// Sums that need a workspace, strides, and a part of the row; in place, a row that is copied first.
std::vector<Problem> RotaryProblems() {
  Problem sums = MakeProblem(RotaryMode::kHalf, {DType::kBF16, DType::kF32}, {20000, 8}, {1});
  Problem strided = MakeProblem(RotaryMode::kInterleaveHalf, {}, {3, 5, 2, 40}, {1, 5, 1}, /*per_pair=*/true);
  strided.rotary_dim = 20;
  strided.rotary_offset = 4;
  strided.tables = {1, 5, 1, 10};
  strided.dy_layout = strided.dx_layout = Layout::kLastSlowest;
  sums.execution.num_threads = strided.execution.num_threads = 2;
  return {sums, strided};
}

TEST_P(OutOfMemory, InRotary) {
  for (const Problem& problem : RotaryProblems()) {
    const BackwardTensors backward(problem);
    const RotaryBackwardArgs args = backward.Args();
    FailEach("ValidateRotaryBackward", [&] { return ValidateRotaryBackward(args); });
    FailEach("RotaryBackward", [&] { return RotaryBackward(args); }, {&backward.dx, &backward.dcos, &backward.dsin});
    EXPECT_TRUE(backward.Check());
    FailPlan<RotaryBackwardPlan>("rotary_backward", args);
    const ForwardTensors forward(problem);
    const RotaryArgs forward_args = forward.Args();
    FailEach("ValidateRotary", [&] { return ValidateRotary(forward_args); });
    FailEach("Rotary", [&] { return Rotary(forward_args); }, {&forward.y});
    EXPECT_TRUE(forward.Check());
    FailPlan<RotaryPlan>("rotary", forward_args);
  }
  EXPECT_GT(failures, 50);
}

// Segments of each kind: with a norm and its sums, turned without norm, copied.
std::vector<NormRopeProblem> Segments() {
  std::vector<NormRopeProblem> problems;
  for (const NormType norm : kNormTypes) {
    NormRopeProblem problem;
    problem.norm_type = norm;
    problem.types = {DType::kBF16, DType::kF32, DType::kBF16};
    problem.batch = 2;
    problem.sequence = 9;
    problem.heads = 3;
    problem.head_dim = 64;
    problem.rotary = RotaryOptions{.mode = RotaryMode::kInterleaveHalf};
    problem.first = 2;
    problem.length = 5;
    problem.execution.num_threads = 2;
    problems.push_back(problem);
  }
  return problems;
}

TEST_P(OutOfMemory, InNormRopeBackward) {
  std::vector<std::unique_ptr<NormRopeBackwardTensors>> tensors;
  std::vector<NormRopeBackwardSegment> segments;
  Outputs outputs;
  for (const NormRopeProblem& problem : Segments()) {
    tensors.push_back(std::make_unique<NormRopeBackwardTensors>(problem));
    segments.push_back(tensors.back()->Segment());
    outputs.insert(outputs.end(), {&tensors.back()->dx, &tensors.back()->dweight, &tensors.back()->dbias});
  }
  const NormRopeBackwardArgs args{segments, {.num_threads = 2}};
  FailEach("ValidateNormRopeBackward", [&] { return ValidateNormRopeBackward(args); });
  FailEach("NormRopeBackward", [&] { return NormRopeBackward(args); }, outputs);
  for (const auto& segment : tensors) EXPECT_TRUE(segment->Check());
  FailPlan<NormRopeBackwardPlan>("norm_rope_backward", args);
  EXPECT_GT(failures, 50);
}

TEST_P(OutOfMemory, InNormRope) {
  std::vector<std::unique_ptr<NormRopeForwardTensors>> tensors;
  std::vector<NormRopeSegment> segments;
  Outputs outputs;
  for (const NormRopeProblem& problem : Segments()) {
    tensors.push_back(std::make_unique<NormRopeForwardTensors>(problem));
    segments.push_back(tensors.back()->Segment());
    outputs.insert(outputs.end(), {&tensors.back()->y, &tensors.back()->mean, &tensors.back()->rstd});
  }
  const NormRopeArgs args{segments, {.num_threads = 2}};
  FailEach("ValidateNormRope", [&] { return ValidateNormRope(args); });
  FailEach("NormRope", [&] { return NormRope(args); }, outputs);
  for (const auto& segment : tensors) EXPECT_TRUE(segment->Check());
  FailPlan<NormRopePlan>("norm_rope", args);
  EXPECT_GT(failures, 50);
}

NormRopeConcatProblem JointProblem() {
  NormRopeConcatProblem problem;
  problem.batch = 2;
  problem.heads = 3;
  problem.head_dim = 16;
  problem.seq_query = 5;
  problem.seq_key = 4;
  problem.seq_encoder_query = 1;
  problem.seq_encoder_key = 6;
  problem.seq_rope = 6;
  problem.options.norm_type = NormType::kLayerAffine;
  problem.options.norm_added_type = NormType::kRmsAffine;
  problem.options.rotary = RotaryOptions{.mode = RotaryMode::kInterleave};
  problem.execution.num_threads = 2;
  return problem;
}

TEST_P(OutOfMemory, InNormRopeConcat) {
  const NormRopeConcatTensors backward(JointProblem()), forward(JointProblem());
  const NormRopeConcatBackwardArgs args = backward.BackwardArgs();
  Outputs outputs;
  for (const StreamTensors* stream : {&backward.query, &backward.key, &backward.value, &backward.encoder_query,
                                      &backward.encoder_key, &backward.encoder_value}) {
    outputs.insert(outputs.end(), {&stream->dx, &stream->dweight, &stream->dbias});
  }
  FailEach("ValidateNormRopeConcatBackward", [&] { return ValidateNormRopeConcatBackward(args); });
  FailEach("NormRopeConcatBackward", [&] { return NormRopeConcatBackward(args); }, outputs);
  EXPECT_TRUE(backward.CheckBackward());
  FailPlan<NormRopeConcatBackwardPlan>("norm_rope_concat_backward", args);

  const NormRopeConcatArgs forward_args = forward.ForwardArgs(/*statistics=*/false);
  FailEach("ValidateNormRopeConcat", [&] { return ValidateNormRopeConcat(forward_args); });
  FailEach("NormRopeConcat", [&] { return NormRopeConcat(forward_args); },
           {&forward.query_output, &forward.key_output, &forward.value_output});
  FailPlan<NormRopeConcatPlan>("norm_rope_concat", forward_args);
  EXPECT_GT(failures, 100);
  ASSERT_TRUE(Ok(NormRopeConcat(forward.ForwardArgs())));
  EXPECT_TRUE(forward.CheckForward());
}

// A run of a plan needs no memory, once OpenMP has its threads: it does its work where there is none.
TEST_P(OutOfMemory, NotInARun) {
  const BackwardTensors tensors(RotaryProblems()[0]);
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(tensors.Args(), &plan)));
  ASSERT_TRUE(Ok(RotaryBackward(BackwardTensors(RotaryProblems()[0]).Args())));  // starts them
  const NormRopeConcatTensors joint(JointProblem());
  NormRopeConcatBackwardPlan joint_plan;
  const NormRopeConcatBackwardArgs args = joint.BackwardArgs();
  ASSERT_TRUE(Ok(NormRopeConcatBackwardPlan::Create(args, &joint_plan)));
  std::vector<std::byte> workspace(plan.workspace_size()), joint_workspace(joint_plan.workspace_size());
  Status status, joint_status;
  {
    const FailingAllocations failing(0, GetParam());
    status = plan.Run(tensors.Pointers(), workspace.data(), workspace.size());
    joint_status = joint_plan.Run(args, joint_workspace.data(), joint_workspace.size());
    EXPECT_FALSE(failing.refused());
  }
  ASSERT_TRUE(Ok(status));
  ASSERT_TRUE(Ok(joint_status));
  EXPECT_TRUE(tensors.Check());
  EXPECT_TRUE(joint.CheckBackward());
}

// What a call that must be refused says without memory for its words.
TEST_P(OutOfMemory, InARefusal) {
  const BackwardTensors tensors(RotaryProblems()[1]);
  RotaryBackwardArgs args = tensors.Args();
  args.options.rotary_offset = -1;
  std::int64_t succeed = 0;
  for (;; ++succeed) {
    const std::int64_t live = LiveAllocations();
    StatusCode code = StatusCode::kOk;
    bool refused = false;
    {
      const FailingAllocations failing(succeed, GetParam());
      code = RotaryBackward(args).code();
      refused = failing.refused();
    }
    ASSERT_EQ(LiveAllocations(), live);
    ASSERT_EQ(code, refused ? StatusCode::kOutOfMemory : StatusCode::kInvalidAttribute);
    if (!refused) break;
  }
  EXPECT_GT(succeed, 0);
  EXPECT_TRUE(tensors.dx.Unchanged("dx"));
}

TEST_P(OutOfMemory, InAskingForTheTargets) {
  bool refused = false, empty = false;
  {
    const FailingAllocations failing(0, GetParam());
    empty = AvailableCpuTargets().empty();
    refused = failing.refused();
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(empty);
  EXPECT_FALSE(AvailableCpuTargets().empty());
}

}  // namespace
}  // namespace gyrograd::testing
