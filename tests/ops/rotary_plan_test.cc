// Plans: run on other memory, checked before each run; a run allocates nothing.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

// Few table elements and many terms: the sums need a workspace. In place, a long interleave-half row needs one too.
Problem ProblemWithWorkspace(Types types = {}) {
  Problem problem = MakeProblem(RotaryMode::kHalf, types, {20000, 8}, {1});
  problem.execution.num_threads = 2;
  return problem;
}

Status RunPlan(const RotaryBackwardPlan& plan, const RotaryBackwardPointers& pointers) {
  std::vector<std::byte> workspace(plan.workspace_size());
  return plan.Run(pointers, workspace.data(), workspace.size());
}

TEST(RotaryPlan, RunsOnOtherMemory) {
  for (const RotaryMode mode : kModes) {
    Problem problem = MakeProblem(mode, {DType::kBF16, DType::kF32}, {2, 30, 3, 64}, {1, 30, 1});
    const BackwardTensors first(problem);
    RotaryBackwardPlan plan;
    ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(first.Args(), &plan)));
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      problem.seed = seed;
      const BackwardTensors tensors(problem);
      ASSERT_TRUE(Ok(RunPlan(plan, tensors.Pointers())));
      EXPECT_TRUE(tensors.Check());
    }
  }
}

// "At most this many": what no block is there for is neither started nor given memory.
TEST(RotaryPlan, MoreThreadsThanWork) {
  Problem problem = MakeProblem(RotaryMode::kInterleaveHalf, {}, {64, 16384}, {1});
  problem.execution.num_threads = std::numeric_limits<int>::max();
  const BackwardTensors tensors(problem);
  RotaryBackwardArgs args = tensors.Args();
  args.x.reset();
  args.dcos.reset();
  args.dsin.reset();
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(args, &plan)));
  EXPECT_LE(plan.workspace_size(), std::size_t{256} * 16384 * sizeof(float));
  EXPECT_TRUE(Ok(RunPlan(plan, tensors.Pointers())));
  EXPECT_TRUE(Ok(RotaryBackward(args)));
}

// What docs/rotary.md says of extra memory, in f64 values.
TEST(RotaryPlan, WorkspaceSize) {
  for (const RotaryMode mode : kModes) {
    for (const Types types : kAllTypes) {
      const bool f64 = types.activations == DType::kF64;
      for (const std::int64_t dim : {8, 512, 516, 1024, 1028, 4096}) {
        const bool in_segments = mode == RotaryMode::kInterleaveHalf && dim > (f64 ? 512 : 1024);
        for (const std::int64_t rows : {1, 40, 3000}) {
          BackwardTensors tensors(MakeProblem(mode, types, {1, 2, dim}, {1, 2}));
          RotaryBackwardArgs args = tensors.Args();
          const Shape shape = {rows, 2, dim}, strides = {0, dim, 1};  // one row's memory: a plan reads none
          const Shape out_strides = {2 * dim, dim, 1};
          args.dy.shape = args.x->shape = args.dx->shape = shape;
          args.dy.strides = args.x->strides = strides;
          args.dx->strides = out_strides;
          RotaryBackwardPlan plan;
          ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(args, &plan)));
          const std::int64_t table = in_segments ? 2 * dim : 0;
          const std::int64_t values = 2 * (f64 ? 2 : 1) * std::max<std::int64_t>(rows == 1 ? 0 : 65536, table);
          EXPECT_LE(plan.workspace_size(), static_cast<std::size_t>(values) * 8 + 7) << tensors.problem << " " << rows;
          args.dcos.reset();
          args.dsin.reset();
          ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(args, &plan)));
          EXPECT_EQ(plan.workspace_size(), 0) << tensors.problem << " " << rows;
        }
      }
    }
  }
}

// A workspace whose size does not fit in 64 bits is one that no machine has, not a small one.
TEST(RotaryPlan, AstronomicalWorkspace) {
  const std::int64_t shape[] = {std::int64_t{1} << 48, 8192};
  const std::int64_t strides[] = {8192, 1};
  RotaryBackwardArgs args;
  args.dy = args.cos = args.sin = {nullptr, DType::kBF16, shape, strides};
  args.x = args.dy;
  args.dx = args.dcos = args.dsin = TensorView{nullptr, DType::kBF16, shape, strides};
  args.options.mode = RotaryMode::kInterleaveHalf;
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(args, &plan)));
  EXPECT_GT(plan.workspace_size(), std::size_t{1} << 62);
}

// Strides along axes of one step are never used, whatever they are.
TEST(RotaryPlan, MeaninglessStrides) {
  const std::int64_t shape[] = {1, 1, 4};
  const std::int64_t strides[] = {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                                  1};
  std::array<float, 4> dy = {1, 2, 3, 4};
  const std::array<float, 4> cos = {0, 0, 0, 0};
  const std::array<float, 4> sin = {1, 1, 1, 1};
  RotaryBackwardArgs args;
  args.dy = {dy.data(), DType::kF32, shape, strides};
  args.cos = {cos.data(), DType::kF32, shape, strides};
  args.sin = {sin.data(), DType::kF32, shape, strides};
  args.dx = TensorView{dy.data(), DType::kF32, shape, strides};
  EXPECT_TRUE(Ok(RotaryBackward(args)));
  EXPECT_EQ(dy, (std::array<float, 4>{3, 4, -1, -2}));
}

TEST(RotaryPlan, ForwardRunsOnOtherMemory) {
  Problem problem = MakeProblem(RotaryMode::kInterleaveHalf, {}, {2, 30, 3, 64}, {1, 30, 1});
  RotaryPlan plan;
  {
    const ForwardTensors first(problem);
    ASSERT_TRUE(Ok(RotaryPlan::Create(first.Args(), &plan)));
  }
  problem.seed = 5;
  const ForwardTensors tensors(problem);
  std::vector<std::byte> workspace(plan.workspace_size());
  ASSERT_TRUE(Ok(plan.Run({tensors.x.data(), tensors.cos.data(), tensors.sin.data(), tensors.y.data()},
                          workspace.data(), workspace.size())));
  EXPECT_TRUE(tensors.Check());
}

// The arrays that the views of Create refer to may go away.
TEST(RotaryPlan, KeepsWhatItNeeds) {
  const BackwardTensors tensors(ProblemWithWorkspace());
  RotaryBackwardPlan plan;
  {
    auto shape = std::make_unique<Shape>(tensors.dy.shape()), strides = std::make_unique<Shape>(tensors.dy.strides());
    RotaryBackwardArgs args = tensors.Args();
    args.dy.shape = args.x->shape = args.dx->shape = *shape;
    args.dy.strides = args.x->strides = args.dx->strides = *strides;
    args.dy.data = nullptr;  // ignored
    ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(args, &plan)));
    shape->assign(2, -1);
    strides->assign(2, -1);
  }
  ASSERT_TRUE(Ok(RunPlan(plan, tensors.Pointers())));
  EXPECT_TRUE(tensors.Check());
}

TEST(RotaryPlan, AFailedCreateLeavesThePlan) {
  const BackwardTensors tensors(ProblemWithWorkspace());
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(tensors.Args(), &plan)));
  const std::string before = plan.Describe();
  RotaryBackwardArgs wrong = tensors.Args();
  wrong.options.rotary_offset = -1;
  EXPECT_TRUE(
      Refused(RotaryBackwardPlan::Create(wrong, &plan), StatusCode::kInvalidAttribute, {"rotary_offset", "-1"}));
  EXPECT_EQ(plan.Describe(), before);
  ASSERT_TRUE(Ok(RunPlan(plan, tensors.Pointers())));
  EXPECT_TRUE(tensors.Check());
}

TEST(RotaryPlan, AnEmptyPlanRefusesToRun) {
  const RotaryBackwardPlan backward;
  EXPECT_EQ(backward.workspace_size(), 0u);
  EXPECT_FALSE(backward.Run({}, nullptr, 0).ok());
  const RotaryPlan forward;
  EXPECT_EQ(forward.workspace_size(), 0u);
  EXPECT_FALSE(forward.Run({}, nullptr, 0).ok());
}

TEST(RotaryPlan, ARunAllocatesNothing) {
  for (const Problem& problem : {ProblemWithWorkspace(), ProblemWithWorkspace({DType::kF64, DType::kF64}),
                                 MakeProblem(RotaryMode::kInterleaveHalf, {DType::kBF16, DType::kBF16}, {3, 9000}, {3}),
                                 MakeProblem(RotaryMode::kQuarter, {}, {2, 200, 3, 64}, {1, 200, 1}, true)}) {
    const BackwardTensors tensors(problem);
    RotaryBackwardPlan plan;
    ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(tensors.Args(), &plan)));
    std::vector<std::byte> workspace(plan.workspace_size());
    const RotaryBackwardPointers pointers = tensors.Pointers();
    ASSERT_TRUE(Ok(plan.Run(pointers, workspace.data(), workspace.size())));  // OpenMP starts its threads once
    const std::int64_t before = Allocations();
    const Status status = plan.Run(pointers, workspace.data(), workspace.size());
    EXPECT_EQ(Allocations(), before) << problem;
    ASSERT_TRUE(Ok(status));
    EXPECT_TRUE(tensors.Check());
  }
}

// In place, an interleave-half row cannot be written before it was read.
TEST(RotaryPlan, WorkspaceIsEnoughForEveryAlias) {
  for (const std::int64_t dim : {64, 4098, 9000}) {
    const Problem problem = MakeProblem(RotaryMode::kInterleaveHalf, {}, {40, dim}, {40});
    const BackwardTensors separate(problem), shared(problem);
    RotaryBackwardPlan plan;
    ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(separate.Args(), &plan)));
    ASSERT_TRUE(Ok(RunPlan(plan, separate.Pointers())));
    ASSERT_TRUE(separate.Check());
    RotaryBackwardPointers pointers = shared.Pointers();
    pointers.dx = shared.dy.data();
    pointers.dcos = shared.cos.data();
    pointers.dsin = shared.sin.data();
    ASSERT_TRUE(Ok(RunPlan(plan, pointers)));
    EXPECT_EQ(shared.dy.Bits(), separate.dx.Bits()) << problem;
    EXPECT_EQ(shared.cos.Bits(), separate.dcos.Bits()) << problem;
    EXPECT_EQ(shared.sin.Bits(), separate.dsin.Bits()) << problem;
  }
}

TEST(RotaryPlan, WorkspaceAtAnyAddress) {
  for (const Problem& problem :
       {ProblemWithWorkspace(), ProblemWithWorkspace({DType::kF64, DType::kF64}),
        MakeProblem(RotaryMode::kInterleaveHalf, {DType::kBF16, DType::kBF16}, {40, 9000}, {1})}) {
    const BackwardTensors want(problem);
    RotaryBackwardPlan plan;
    ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(want.Args(), &plan)));
    ASSERT_GT(plan.workspace_size(), 0u) << problem;
    for (std::size_t shift = 0; shift < 17; ++shift) {
      const BackwardTensors tensors(problem);
      std::vector<std::byte> memory(plan.workspace_size() + 64, std::byte{0xa7});
      ASSERT_TRUE(Ok(plan.Run(tensors.Pointers(), memory.data() + shift, plan.workspace_size())));
      EXPECT_TRUE(tensors.Check()) << "workspace at " << shift;
      for (std::size_t i = 0; i < shift; ++i) EXPECT_EQ(memory[i], std::byte{0xa7}) << i;
      for (std::size_t i = shift + plan.workspace_size(); i < memory.size(); ++i)
        EXPECT_EQ(memory[i], std::byte{0xa7}) << i;
    }
  }
}

// ---- What a run refuses -----------------------------------------------------------------------------------------

const RunRefusal<RotaryBackwardPointers> kRunRefusals[] = {
    {"dy_null", [](RotaryBackwardPointers& p) { p.dy = nullptr; }, StatusCode::kNullPointer, {"dy"}},
    {"cos_null", [](RotaryBackwardPointers& p) { p.cos = nullptr; }, StatusCode::kNullPointer, {"cos"}},
    {"sin_null", [](RotaryBackwardPointers& p) { p.sin = nullptr; }, StatusCode::kNullPointer, {"sin"}},
    {"x_null", [](RotaryBackwardPointers& p) { p.x = nullptr; }, StatusCode::kNullPointer, {"x"}},
    {"dx_null", [](RotaryBackwardPointers& p) { p.dx = nullptr; }, StatusCode::kNullPointer, {"dx"}},
    {"dcos_null", [](RotaryBackwardPointers& p) { p.dcos = nullptr; }, StatusCode::kNullPointer, {"dcos"}},
    {"dsin_null", [](RotaryBackwardPointers& p) { p.dsin = nullptr; }, StatusCode::kNullPointer, {"dsin"}},
    {"x_misaligned", [](RotaryBackwardPointers& p) { p.x = Shifted(p.x, 2); }, StatusCode::kInvalidAlias, {"x", "4"}},
    {"dx_misaligned",
     [](RotaryBackwardPointers& p) { p.dx = Shifted(p.dx, 1); },
     StatusCode::kInvalidAlias,
     {"dx", "4"}},
    {"dx_in_dy",
     [](RotaryBackwardPointers& p) { p.dx = Shifted(const_cast<void*>(p.dy), 4); },
     StatusCode::kInvalidAlias,
     {"dx", "dy"}},
    {"dcos_is_sin",
     [](RotaryBackwardPointers& p) { p.dcos = const_cast<void*>(p.sin); },
     StatusCode::kInvalidAlias,
     {"dcos", "sin"}},
    {"dsin_in_dx",
     [](RotaryBackwardPointers& p) { p.dsin = Shifted(p.dx, 64); },
     StatusCode::kInvalidAlias,
     {"dsin", "dx"}},
};

class RotaryPlanRefusals : public ::testing::TestWithParam<RunRefusal<RotaryBackwardPointers>> {};

TEST_P(RotaryPlanRefusals, SaysWhyAndWritesNothing) {
  const BackwardTensors tensors(ProblemWithWorkspace());
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(tensors.Args(), &plan)));
  RotaryBackwardPointers pointers = tensors.Pointers();
  GetParam().change(pointers);
  std::vector<std::string> words = {"rotary_backward: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(RunPlan(plan, pointers), GetParam().code, words));
  for (const Tensor* tensor :
       {&tensors.dy, &tensors.cos, &tensors.sin, &tensors.x, &tensors.dx, &tensors.dcos, &tensors.dsin}) {
    EXPECT_TRUE(tensor->Unchanged("a tensor"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryPlanRefusals, ::testing::ValuesIn(kRunRefusals),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(RotaryPlan, WorkspaceTooSmall) {
  const BackwardTensors tensors(ProblemWithWorkspace());
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(tensors.Args(), &plan)));
  const std::size_t needed = plan.workspace_size();
  ASSERT_GT(needed, 0u);
  std::vector<std::byte> workspace(needed);
  EXPECT_TRUE(Refused(plan.Run(tensors.Pointers(), workspace.data(), needed - 1), StatusCode::kWorkspaceTooSmall,
                      {"rotary_backward: ", "workspace", std::to_string(needed - 1), std::to_string(needed)}));
  EXPECT_FALSE(plan.Run(tensors.Pointers(), nullptr, 0).ok());
  EXPECT_FALSE(plan.Run(tensors.Pointers(), nullptr, needed).ok());
  EXPECT_TRUE(tensors.dx.Unchanged("dx"));
  EXPECT_TRUE(tensors.dcos.Unchanged("dcos"));
}

// What the plan was not given is not asked for.
TEST(RotaryPlan, UnusedPointersMayBeNull) {
  const Problem problem = MakeProblem(RotaryMode::kHalf, {}, {5, 8}, {5});
  const BackwardTensors tensors(problem), full(problem);
  RotaryBackwardPlan plan;
  ASSERT_TRUE(Ok(RotaryBackwardPlan::Create(tensors.Args(true, false, false, false), &plan)));
  RotaryBackwardPointers pointers;
  pointers.dy = tensors.dy.data();
  pointers.cos = tensors.cos.data();
  pointers.sin = tensors.sin.data();
  pointers.dx = tensors.dx.data();
  ASSERT_TRUE(Ok(RunPlan(plan, pointers)));
  ASSERT_TRUE(Ok(RotaryBackward(full.Args())));
  EXPECT_EQ(tensors.dx.Bits(), full.dx.Bits());
  EXPECT_TRUE(tensors.dcos.Unchanged("dcos"));
}

}  // namespace
}  // namespace gyrograd::testing
