// Plans of norm + rotary and of the joint call: run on other memory, checked before each run; a run allocates
// nothing; the workspace's size; shapes of extent 0.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"
#include "tests/support/allocations.h"
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

NormRopeProblem ProblemOf(NormType norm, const NormRopeTypes& types, const Shape& bsnd, RotaryMode mode, int threads) {
  NormRopeProblem problem;
  problem.norm_type = norm;
  problem.types = types;
  problem.batch = bsnd[0];
  problem.sequence = bsnd[1];
  problem.heads = bsnd[2];
  problem.head_dim = bsnd[3];
  problem.rotary = RotaryOptions{.mode = mode};
  problem.first = problem.sequence / 4;
  problem.length = problem.sequence / 2;
  problem.execution.num_threads = threads;
  return problem;
}

// A list: two norms with sums, one without, rows that turn or are copied. Work for several threads, and a workspace
// for sums and for rows that are too long for a stack.
std::vector<NormRopeProblem> ListOfFive(const NormRopeTypes& types) {
  return {ProblemOf(NormType::kLayerAffine, types, {2, 50, 5, 64}, RotaryMode::kHalf, 3),
          ProblemOf(NormType::kRmsAffine, types, {2, 41, 3, 64}, RotaryMode::kInterleaveHalf, 3),
          ProblemOf(NormType::kLayerAffine, types, {1, 9, 3, 4096}, RotaryMode::kInterleaveHalf, 3),
          ProblemOf(NormType::kLayer, types, {1, 31, 2, 36}, RotaryMode::kInterleave, 3),
          ProblemOf(NormType::kNone, types, {1, 30, 2, 9000}, RotaryMode::kInterleaveHalf, 3)};
}

// Tensors of one direction of all segments of a list, and the calls that differ between the directions.
struct BackwardList {
  using Tensors = NormRopeBackwardTensors;
  using Segment = NormRopeBackwardSegment;
  using Pointers = NormRopeBackwardPointers;
  using Args = NormRopeBackwardArgs;
  using Plan = NormRopeBackwardPlan;
  static Status Call(const Args& args) { return NormRopeBackward(args); }
  static constexpr const char* kName = "norm_rope_backward";
};

struct ForwardList {
  using Tensors = NormRopeForwardTensors;
  using Segment = NormRopeSegment;
  using Pointers = NormRopePointers;
  using Args = NormRopeArgs;
  using Plan = NormRopePlan;
  static Status Call(const Args& args) { return NormRope(args); }
  static constexpr const char* kName = "norm_rope";
};

template <class Direction>
class List {
 public:
  explicit List(const std::vector<NormRopeProblem>& problems) {
    for (const NormRopeProblem& problem : problems) tensors.emplace_back(problem);
    for (const auto& one : tensors) {
      segments.push_back(one.Segment());
      pointers.push_back(one.Pointers());
    }
  }

  typename Direction::Args Args() const { return {segments, tensors[0].problem.execution}; }
  std::vector<std::uint64_t> ResultBits() const {
    std::vector<std::uint64_t> bits;
    for (const auto& one : tensors) {
      const std::vector<std::uint64_t> more = one.ResultBits();
      bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
  }
  void Check() const {
    for (const auto& one : tensors) EXPECT_TRUE(one.Check());
  }

  std::vector<typename Direction::Tensors> tensors;
  std::vector<typename Direction::Segment> segments;
  std::vector<typename Direction::Pointers> pointers;
};

template <class Plan, class Pointers>
Status RunPlan(const Plan& plan, const std::vector<Pointers>& pointers) {
  std::vector<std::byte> workspace(plan.workspace_size());
  return plan.Run(pointers, workspace.data(), workspace.size());
}

template <class Direction>
typename Direction::Plan PlanOf(const List<Direction>& list) {
  typename Direction::Plan plan;
  EXPECT_TRUE(Ok(Direction::Plan::Create(list.Args(), &plan)));
  return plan;
}

template <class Direction>
class NormRopePlans : public ::testing::Test {};

using Directions = ::testing::Types<BackwardList, ForwardList>;
TYPED_TEST_SUITE(NormRopePlans, Directions);

constexpr NormRopeTypes kThreeTypes[] = {{DType::kF64, DType::kF64, DType::kF64},
                                         {DType::kF32, DType::kF32, DType::kF32},
                                         {DType::kBF16, DType::kF32, DType::kBF16}};

// ---- What a plan keeps ------------------------------------------------------------------------------------------

TYPED_TEST(NormRopePlans, RunsOnOtherMemory) {
  for (const NormRopeTypes& types : kThreeTypes) {
    std::vector<NormRopeProblem> problems = ListOfFive(types);
    const auto plan = PlanOf(List<TypeParam>(problems));
    for (std::uint64_t seed = 1; seed < 3; ++seed) {
      for (NormRopeProblem& problem : problems) problem.seed = seed++;
      const List<TypeParam> list(problems);
      ASSERT_TRUE(Ok(RunPlan(plan, list.pointers)));
      list.Check();
      const List<TypeParam> once(problems);
      ASSERT_TRUE(Ok(TypeParam::Call(once.Args())));
      EXPECT_TRUE(once.ResultBits() == list.ResultBits());
    }
  }
}

// The arrays that the views of Create refer to may go away, and their addresses are not looked at.
TEST(NormRopePlan, KeepsWhatItNeeds) {
  const List<BackwardList> list({ListOfFive({})[0]});
  NormRopeBackwardPlan plan;
  {
    auto shape = std::make_unique<Shape>(list.tensors[0].x.shape());
    auto strides = std::make_unique<Shape>(list.tensors[0].x.strides());
    auto segments = std::make_unique<std::vector<NormRopeBackwardSegment>>(list.segments);
    NormRopeBackwardSegment& segment = segments->front();
    segment.x->shape = segment.dx->shape = *shape;
    segment.x->strides = segment.dx->strides = *strides;
    segment.dy.data = segment.x->data = nullptr;
    segment.dx->data = reinterpret_cast<void*>(1);
    ASSERT_TRUE(Ok(NormRopeBackwardPlan::Create({*segments, {}}, &plan)));
    shape->assign(4, -1);
    strides->assign(4, -1);
  }
  ASSERT_TRUE(Ok(RunPlan(plan, list.pointers)));
  list.Check();
}

TYPED_TEST(NormRopePlans, AFailedCreateLeavesThePlan) {
  const List<TypeParam> list(ListOfFive({}));
  auto plan = PlanOf(list);
  const std::string before = plan.Describe();
  auto wrong = list.segments;
  wrong[1].rotation->first = -1;
  EXPECT_TRUE(Refused(TypeParam::Plan::Create({wrong, {}}, &plan), StatusCode::kInvalidAttribute,
                      {TypeParam::kName, "segments[1]", "first", "-1"}));
  EXPECT_EQ(plan.Describe(), before);
  ASSERT_TRUE(Ok(RunPlan(plan, list.pointers)));
  list.Check();
}

TYPED_TEST(NormRopePlans, AnEmptyPlanRefusesToRun) {
  const typename TypeParam::Plan plan;
  EXPECT_EQ(plan.workspace_size(), 0u);
  EXPECT_EQ(plan.Describe(), "");
  EXPECT_TRUE(Refused(plan.Run({}, nullptr, 0), StatusCode::kNullPointer, {TypeParam::kName, "plan"}));
}

TEST(NormRopePlan, CreateNeedsAPlaceForThePlan) {
  const auto refused = [](const Status& status, const char* name) {
    return Refused(status, StatusCode::kNullPointer, {std::string(name) + ": plan is null"});
  };
  EXPECT_TRUE(refused(NormRopeBackwardPlan::Create({}, nullptr), "norm_rope_backward"));
  EXPECT_TRUE(refused(NormRopePlan::Create({}, nullptr), "norm_rope"));
  EXPECT_TRUE(refused(NormRopeConcatBackwardPlan::Create({}, nullptr), "norm_rope_concat_backward"));
  EXPECT_TRUE(refused(NormRopeConcatPlan::Create({}, nullptr), "norm_rope_concat"));
}

TYPED_TEST(NormRopePlans, ARunAllocatesNothing) {
  for (const NormRopeTypes& types : kThreeTypes) {
    const List<TypeParam> list(ListOfFive(types));
    const auto plan = PlanOf(list);
    std::vector<std::byte> workspace(plan.workspace_size());
    ASSERT_TRUE(Ok(plan.Run(list.pointers, workspace.data(), workspace.size())));  // may start OpenMP's threads
    const std::int64_t before = Allocations();
    const Status status = plan.Run(list.pointers, workspace.data(), workspace.size());
    EXPECT_EQ(Allocations(), before);
    ASSERT_TRUE(Ok(status));
    list.Check();
  }
}

TYPED_TEST(NormRopePlans, DescribeSaysWhatWillRun) {
  const auto plan = PlanOf(List<TypeParam>(ListOfFive({})));
  const std::string text = plan.Describe();
  for (const std::string& words :
       {std::string(TypeParam::kName) + ", 5 segments\n", std::string("segment 0: norm layer_affine, 100 positions"),
        std::string("5 heads x 64 channels"), std::string("positions 12 to 36 turn (half)"),
        std::string("segment 1: norm rms_affine"), std::string("segment 4: no norm, turning positions"),
        std::string("segment 4: 14 rows copied"), std::string("threads: 3\n"),
        "workspace: " + std::to_string(plan.workspace_size()) + " bytes\n"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
  }
}

// What a part says is indented below it; what holds of the whole plan is said once.
TYPED_TEST(NormRopePlans, DescribeSaysNothingTwice) {
  std::istringstream text(PlanOf(List<TypeParam>(ListOfFive({}))).Describe());
  std::map<std::string, int> counts;
  for (std::string line; std::getline(text, line);) {
    const std::size_t start = line.find_first_not_of(' ');
    ++counts[line.substr(start, line.find_first_of(" :", start) - start)];
    const bool is_head = start == 0;
    const bool heads = line.starts_with("segment ") || line.starts_with(TypeParam::kName) ||
                       line.starts_with("target: ") || line.starts_with("threads: ") || line.starts_with("workspace: ");
    EXPECT_EQ(is_head, heads) << line;
  }
  for (const char* word : {"target", "threads", "workspace", "blocks"}) EXPECT_EQ(counts[word], 1) << word;
}

// ---- Threads ----------------------------------------------------------------------------------------------------

int ThreadsOf(const std::string& description) {
  const std::string words = "threads: ";
  return std::atoi(description.c_str() + description.find(words) + words.size());
}

// "At most this many": no more are started than there are blocks, and never more than 256.
TEST(NormRopePlan, MoreThreadsThanWork) {
  NormRopeProblem problem = ProblemOf(NormType::kRms, {}, {1, 60000, 1, 64}, RotaryMode::kHalf, 1);
  const NormRopeBackwardTensors want(problem);
  ASSERT_TRUE(Ok(Compute(want)));
  problem.execution.num_threads = std::numeric_limits<int>::max();
  const List<BackwardList> list({problem});
  const NormRopeBackwardPlan plan = PlanOf(list);
  EXPECT_GT(ThreadsOf(plan.Describe()), 1);
  EXPECT_LE(ThreadsOf(plan.Describe()), 256);
  ASSERT_TRUE(Ok(RunPlan(plan, list.pointers)));
  EXPECT_TRUE(list.ResultBits() == want.ResultBits());
}

TEST(NormRopePlan, NeverMoreThan256Threads) {
  // 64 segments of many chunks each: their own memory is never touched.
  NormRopeProblem problem = ProblemOf(NormType::kRms, {}, {1, 4, 1, 64}, RotaryMode::kHalf, 1);
  const NormRopeBackwardTensors small(problem);
  NormRopeBackwardSegment segment = small.Segment();
  segment.rotation.reset();
  const std::int64_t rows = 1 << 20;
  const Shape dy_shape = {1, 1, rows, 64}, x_shape = {1, rows, 1, 64}, statistics = {1, rows, 1, 1};
  const Shape dy_strides = {0, 0, 64, 1}, x_strides = {0, 64, 0, 1}, statistics_strides = {0, 1, 0, 1};
  segment.dy.shape = dy_shape;
  segment.dy.strides = dy_strides;
  segment.x->shape = segment.dx->shape = x_shape;
  segment.x->strides = segment.dx->strides = x_strides;
  segment.rstd->shape = statistics;
  segment.rstd->strides = statistics_strides;
  const std::vector<NormRopeBackwardSegment> segments(64, segment);
  NormRopeBackwardPlan plan;
  ASSERT_TRUE(Ok(NormRopeBackwardPlan::Create({segments, {std::numeric_limits<int>::max(), {}}}, &plan)));
  EXPECT_EQ(ThreadsOf(plan.Describe()), 256);
}

// ---- Workspace --------------------------------------------------------------------------------------------------

TYPED_TEST(NormRopePlans, WorkspaceAtAnyAddress) {
  for (const NormRopeTypes& types : kThreeTypes) {
    const std::vector<NormRopeProblem> problems = ListOfFive(types);
    const List<TypeParam> want(problems);
    const auto plan = PlanOf(want);
    ASSERT_GT(plan.workspace_size(), 0u);
    ASSERT_TRUE(Ok(RunPlan(plan, want.pointers)));
    for (const std::size_t shift : {0, 1, 3, 8, 17, 63}) {
      const List<TypeParam> list(problems);
      std::vector<std::byte> memory(plan.workspace_size() + 128, std::byte{0xa7});
      std::byte* const workspace = memory.data() + shift;
      ASSERT_TRUE(Ok(plan.Run(list.pointers, workspace, plan.workspace_size())));
      EXPECT_TRUE(list.ResultBits() == want.ResultBits()) << "workspace at " << shift;
      for (std::size_t i = 0; i < shift; ++i) EXPECT_EQ(memory[i], std::byte{0xa7}) << i;
      for (std::size_t i = shift + plan.workspace_size(); i < memory.size(); ++i) {
        EXPECT_EQ(memory[i], std::byte{0xa7}) << i;
      }
    }
  }
}

// The plan was made for outputs of their own; in place a row may have to be copied before it is overwritten.
TEST(NormRopePlan, WorkspaceIsEnoughForEveryAlias) {
  for (const NormType norm : kNormTypes) {
    for (const std::int64_t head_dim : {64, 2100, 9000}) {
      NormRopeProblem problem = ProblemOf(norm, {}, {1, 30, 1, head_dim}, RotaryMode::kInterleaveHalf, 3);
      const List<BackwardList> separate({problem}), shared({problem});
      const NormRopeBackwardPlan plan = PlanOf(separate);
      ASSERT_TRUE(Ok(RunPlan(plan, separate.pointers)));
      separate.Check();
      NormRopeBackwardPointers pointers = shared.pointers[0];
      pointers.dx = const_cast<void*>(pointers.dy);  // one head: the same element in the same place
      if (pointers.dweight != nullptr) pointers.dweight = const_cast<void*>(pointers.weight);
      ASSERT_TRUE(Ok(RunPlan(plan, std::vector<NormRopeBackwardPointers>{pointers})));
      EXPECT_TRUE(shared.tensors[0].dy.Bits() == separate.tensors[0].dx.Bits()) << problem;
      if (HasWeight(norm)) {
        EXPECT_TRUE(shared.tensors[0].weight.Bits() == separate.tensors[0].dweight.Bits()) << problem;
      }
    }
  }
}

// 2 MiB, and 64 times the f64 size of the weights' gradients that are wanted; whatever the rows' number.
TEST(NormRopePlan, WorkspaceSize) {
  for (const NormRopeTypes& types : kThreeTypes) {
    for (const NormType norm : kNormTypes) {
      for (const std::int64_t head_dim : {2, 64, 128, 1024, 4096, 12288}) {
        for (const std::int64_t sequence : {1, 1000, 1 << 20}) {
          for (const RotaryMode mode : {RotaryMode::kHalf, RotaryMode::kInterleaveHalf}) {
            for (const bool dweight : {false, true}) {
              NormRopeProblem problem = ProblemOf(norm, types, {1, 4, 1, head_dim}, mode, 2);
              problem.dweight = dweight;
              const NormRopeBackwardTensors small(problem);
              NormRopeBackwardSegment segment = small.Segment();
              const Shape dy_shape = {1, 1, sequence, head_dim}, dy_strides = {0, 0, head_dim, 1};
              const Shape x_shape = {1, sequence, 1, head_dim}, x_strides = {0, head_dim, 0, 1};
              const Shape statistics = {1, sequence, 1, 1}, statistics_strides = {0, 1, 0, 1};
              segment.dy.shape = dy_shape;
              segment.dy.strides = dy_strides;
              segment.dx->shape = x_shape;
              segment.dx->strides = x_strides;
              if (segment.x) segment.x->shape = x_shape;
              if (segment.x) segment.x->strides = x_strides;
              for (auto* view : {&segment.mean, &segment.rstd}) {
                if (*view) (*view)->shape = statistics;
                if (*view) (*view)->strides = statistics_strides;
              }
              segment.rotation->first = 0;
              const Shape table = {1, 1, std::min<std::int64_t>(sequence, 2), head_dim};
              segment.rotation->cos.shape = segment.rotation->sin.shape = table;
              NormRopeBackwardPlan plan;
              const NormRopeBackwardSegment segments[] = {segment};
              ASSERT_TRUE(Ok(NormRopeBackwardPlan::Create({segments, problem.execution}, &plan)));
              const std::size_t sums = (segment.dweight ? 1 : 0) + (segment.dbias ? 1 : 0);
              const std::size_t bound =
                  (std::size_t{2} << 20) + 64 * sums * static_cast<std::size_t>(head_dim) * sizeof(double);
              EXPECT_LE(plan.workspace_size(), bound) << problem << " of " << sequence << " positions";
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(NormRopePlans, WorkspaceTooSmallOrNull) {
  const List<TypeParam> list(ListOfFive({}));
  const auto plan = PlanOf(list);
  const std::size_t needed = plan.workspace_size();
  ASSERT_GT(needed, 0u);
  std::vector<std::byte> workspace(needed, std::byte{0x3c});
  EXPECT_TRUE(Refused(plan.Run(list.pointers, workspace.data(), needed - 1), StatusCode::kWorkspaceTooSmall,
                      {TypeParam::kName, "workspace", std::to_string(needed - 1), std::to_string(needed)}));
  EXPECT_TRUE(Refused(plan.Run(list.pointers, nullptr, 0), StatusCode::kNullPointer, {TypeParam::kName, "workspace"}));
  EXPECT_TRUE(Refused(plan.Run(list.pointers, nullptr, needed), StatusCode::kNullPointer, {"workspace"}));
  EXPECT_EQ(workspace, std::vector<std::byte>(needed, std::byte{0x3c}));
  const List<TypeParam> untouched(ListOfFive({}));
  EXPECT_TRUE(list.ResultBits() == untouched.ResultBits());
}

// ---- What a run refuses -----------------------------------------------------------------------------------------

using Pointers = NormRopeBackwardPointers;

const RunRefusal<NormRopeBackwardPointers> kRunRefusals[] = {
    {"dy_null", [](Pointers& p) { p.dy = nullptr; }, StatusCode::kNullPointer, {"dy"}},
    {"x_null", [](Pointers& p) { p.x = nullptr; }, StatusCode::kNullPointer, {"x"}},
    {"weight_null", [](Pointers& p) { p.weight = nullptr; }, StatusCode::kNullPointer, {"weight"}},
    {"mean_null", [](Pointers& p) { p.mean = nullptr; }, StatusCode::kNullPointer, {"mean"}},
    {"rstd_null", [](Pointers& p) { p.rstd = nullptr; }, StatusCode::kNullPointer, {"rstd"}},
    {"cos_null", [](Pointers& p) { p.cos = nullptr; }, StatusCode::kNullPointer, {"cos"}},
    {"sin_null", [](Pointers& p) { p.sin = nullptr; }, StatusCode::kNullPointer, {"sin"}},
    {"dx_null", [](Pointers& p) { p.dx = nullptr; }, StatusCode::kNullPointer, {"dx"}},
    {"dweight_null", [](Pointers& p) { p.dweight = nullptr; }, StatusCode::kNullPointer, {"dweight"}},
    {"dbias_null", [](Pointers& p) { p.dbias = nullptr; }, StatusCode::kNullPointer, {"dbias"}},
    {"x_misaligned", [](Pointers& p) { p.x = Shifted(p.x, 2); }, StatusCode::kInvalidAlias, {"x", "4"}},
    {"dx_misaligned", [](Pointers& p) { p.dx = Shifted(p.dx, 1); }, StatusCode::kInvalidAlias, {"dx", "4"}},
    {"dx_in_x", [](Pointers& p) { p.dx = Shifted(const_cast<void*>(p.x), 4); }, StatusCode::kInvalidAlias, {"dx", "x"}},
    {"dx_on_dy_in_another_order",
     [](Pointers& p) { p.dx = const_cast<void*>(p.dy); },
     StatusCode::kInvalidAlias,
     {"dx", "dy"}},
    {"dweight_is_dbias", [](Pointers& p) { p.dweight = p.dbias; }, StatusCode::kInvalidAlias, {"dweight", "dbias"}},
    {"dbias_is_weight",
     [](Pointers& p) { p.dbias = const_cast<void*>(p.weight); },
     StatusCode::kInvalidAlias,
     {"dbias", "weight"}},
    {"dbias_in_dx", [](Pointers& p) { p.dbias = Shifted(p.dx, 64); }, StatusCode::kInvalidAlias, {"dbias", "dx"}},
};

class NormRopePlanRefusals : public ::testing::TestWithParam<RunRefusal<NormRopeBackwardPointers>> {};

TEST_P(NormRopePlanRefusals, SaysWhyAndWritesNothing) {
  const std::vector<NormRopeProblem> problems = ListOfFive({});
  const List<BackwardList> list({problems[4], problems[0]});
  const NormRopeBackwardPlan plan = PlanOf(list);
  std::vector<NormRopeBackwardPointers> pointers = list.pointers;
  GetParam().change(pointers[1]);
  std::vector<std::string> words = {"norm_rope_backward: segments[1]"};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(RunPlan(plan, pointers), GetParam().code, words));
  for (const NormRopeBackwardTensors& one : list.tensors) {
    for (const Tensor* tensor :
         {&one.dy, &one.x, &one.weight, &one.mean, &one.rstd, &one.cos, &one.sin, &one.dx, &one.dweight, &one.dbias}) {
      EXPECT_TRUE(tensor->Unchanged("a tensor"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormRopePlanRefusals, ::testing::ValuesIn(kRunRefusals),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TYPED_TEST(NormRopePlans, ANumberOfPointersThatIsNotTheSegments) {
  const List<TypeParam> list(ListOfFive({}));
  const auto plan = PlanOf(list);
  auto pointers = list.pointers;
  pointers.pop_back();
  EXPECT_TRUE(Refused(RunPlan(plan, pointers), StatusCode::kInvalidAttribute, {TypeParam::kName, "4", "5"}) ||
              Refused(RunPlan(plan, pointers), StatusCode::kInvalidShape, {TypeParam::kName, "4", "5"}));
}

// What the plan was not given, or does not use, is not asked for, and neither read nor written where it is there.
TEST(NormRopePlan, UnusedPointersAreIgnored) {
  for (const NormType norm : kNormTypes) {
    for (int wanted = 1; wanted < 8; ++wanted) {
      NormRopeProblem problem = ProblemOf(norm, {}, {2, 50, 5, 64}, RotaryMode::kHalf, 3);
      const NormRopeBackwardTensors full(problem);
      ASSERT_TRUE(Ok(Compute(full)));
      problem.dx = wanted & 1;
      problem.dweight = wanted & 2;
      problem.dbias = wanted & 4;
      const List<BackwardList> list({problem});
      const NormRopeBackwardTensors& t = list.tensors[0];
      std::vector<NormRopeBackwardPointers> pointers = {{.dy = t.dy.data(),
                                                         .x = t.x.data(),
                                                         .weight = t.weight.data(),
                                                         .mean = t.mean.data(),
                                                         .rstd = t.rstd.data(),
                                                         .cos = t.cos.data(),
                                                         .sin = t.sin.data(),
                                                         .dx = t.dx.data(),
                                                         .dweight = t.dweight.data(),
                                                         .dbias = t.dbias.data()}};
      const NormRopeBackwardPlan plan = PlanOf(list);
      for (const auto& given : {list.pointers, pointers}) {
        ASSERT_TRUE(Ok(RunPlan(plan, given)));
        EXPECT_TRUE((problem.dx ? t.dx.Bits() == full.dx.Bits() : t.dx.Unchanged("dx"))) << problem;
        EXPECT_TRUE((problem.WantsDweight() ? t.dweight.Bits() == full.dweight.Bits()  //
                                            : t.dweight.Unchanged("dweight")))
            << problem;
        EXPECT_TRUE((problem.WantsDbias() ? t.dbias.Bits() == full.dbias.Bits() : t.dbias.Unchanged("dbias")))
            << problem;
      }
    }
  }
}

// ---- Extents of 0 -----------------------------------------------------------------------------------------------

TYPED_TEST(NormRopePlans, ExtentsOfZero) {
  for (const NormRopeTypes& types : kAllNormRopeTypes) {
    for (const NormType norm : kNormTypes) {
      for (const Shape& shape : {Shape{0, 3, 2, 8}, {2, 0, 2, 8}, {2, 3, 0, 8}, {2, 3, 2, 0}, {0, 0, 0, 0}}) {
        for (const bool turns : {false, true}) {
          NormRopeProblem problem = ProblemOf(norm, types, shape, RotaryMode::kHalf, 2);
          if (!turns) problem.rotary.reset();
          const List<TypeParam> list({problem}), planned({problem});
          ASSERT_TRUE(Ok(TypeParam::Call(list.Args()))) << problem;
          ASSERT_TRUE(Ok(RunPlan(PlanOf(planned), planned.pointers))) << problem;
          if (shape[3] != 0) list.Check();  // the statistics of no values are not defined
          EXPECT_TRUE(list.ResultBits() == planned.ResultBits()) << problem;
        }
      }
    }
  }
}

TEST(NormRopePlan, SumsOverNothingAreZero) {
  for (const NormRopeTypes& types : kAllNormRopeTypes) {
    for (const Shape& shape : {Shape{0, 3, 2, 40}, {2, 0, 2, 40}, {2, 3, 0, 40}}) {
      for (const Layout layout : kOutputLayouts) {
        NormRopeProblem problem = ProblemOf(NormType::kLayerAffine, types, shape, RotaryMode::kHalf, 2);
        problem.weight_grads_layout = layout;
        const NormRopeBackwardTensors tensors(problem);
        NormRopeBackwardSegment segments[] = {tensors.Segment()};
        for (auto* view : {&segments[0].x, &segments[0].mean, &segments[0].rstd, &segments[0].weight}) view->reset();
        ASSERT_TRUE(Ok(NormRopeBackward({segments, {}}))) << problem;
        EXPECT_EQ(tensors.dweight.Bits(), std::vector<std::uint64_t>(40, 0)) << problem;
        EXPECT_EQ(tensors.dbias.Bits(), std::vector<std::uint64_t>(40, 0)) << problem;
        EXPECT_TRUE(tensors.dweight.GuardsIntact("dweight"));
      }
    }
  }
}

TYPED_TEST(NormRopePlans, NoSegmentsAndNothingWanted) {
  EXPECT_TRUE(Ok(TypeParam::Call({})));
  typename TypeParam::Plan plan;
  ASSERT_TRUE(Ok(TypeParam::Plan::Create({}, &plan)));
  EXPECT_EQ(plan.workspace_size(), 0u);
  EXPECT_TRUE(Ok(plan.Run({}, nullptr, 0)));
}

// Sizes beyond 2^63 saturate.
TEST(NormRopePlan, AstronomicalWorkspace) {
  const std::int64_t width = std::int64_t{1} << 59;
  const std::int64_t rows[] = {1, 1, 1, width}, row[] = {width}, statistic[] = {1, 1, 1, 1};
  const std::int64_t still[] = {0, 0, 0, 0}, one[] = {1};
  float data[4] = {};
  std::vector<NormRopeBackwardSegment> segments(2);
  for (NormRopeBackwardSegment& segment : segments) {
    segment.dy = {data, DType::kF16, rows, still};
    segment.x = segment.dy;
    segment.norm_type = NormType::kLayerAffine;
    segment.mean = segment.rstd = ConstTensorView{data, DType::kF32, statistic, still};
    segment.dweight = segment.dbias = TensorView{data, DType::kF16, row, one};
  }
  for (const std::size_t count : {1u, 2u}) {
    NormRopeBackwardPlan plan;
    ASSERT_TRUE(Ok(NormRopeBackwardPlan::Create({.segments = {segments.data(), count}}, &plan)));
    EXPECT_GE(plan.workspace_size(), std::size_t{1} << 62) << count;
    EXPECT_LE(plan.workspace_size(), std::size_t{1} << 63) << count;
  }
}

// More rows than could be visited, with nothing in them.
TEST(NormRopePlan, RowsOfNothingTakeNoTime) {
  const std::int64_t rows[] = {1 << 20, 1 << 20, 1 << 20, 0};
  const std::int64_t statistic[] = {1 << 20, 1 << 20, 1 << 20, 1};
  const std::int64_t still[] = {0, 0, 0, 0};
  const float statistics[] = {1};
  for (const NormType norm : {NormType::kNone, NormType::kRms}) {
    NormRopeBackwardSegment segment;
    segment.dy = {nullptr, DType::kF32, rows, still};
    segment.norm_type = norm;
    if (norm == NormType::kRms) {
      segment.x = segment.dy;
      segment.rstd = ConstTensorView{statistics, DType::kF32, statistic, still};
    }
    segment.dx = TensorView{nullptr, DType::kF32, rows, still};
    EXPECT_TRUE(Ok(NormRopeBackward({.segments = {&segment, 1}})));
  }
}

// Strides along axes of one step are never used, whatever they are.
TEST(NormRopePlan, MeaninglessStrides) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t shape[] = {1, 1, 1, 4}, one[] = {1, 1, 1, 1};
  const std::int64_t strides[] = {kLeast, kMost, kLeast, 1}, any[] = {kMost, kLeast, kMost, kMost};
  std::array<float, 4> dy = {1, 2, 3, 4};
  const std::array<float, 4> cos = {0, 0, 0, 0}, sin = {1, 1, 1, 1}, x = {1, 3, 1, 3};
  const float mean = 2, rstd = 1;
  NormRopeBackwardSegment segments[1];
  segments[0].dy = {dy.data(), DType::kF32, shape, strides};
  segments[0].rotation = NormRopeRotation{{cos.data(), DType::kF32, shape, strides},
                                          {sin.data(), DType::kF32, shape, strides},
                                          0,
                                          {.mode = RotaryMode::kHalf}};
  std::array<float, 4> dx = {};
  segments[0].dx = TensorView{dx.data(), DType::kF32, shape, strides};
  EXPECT_TRUE(Ok(NormRopeBackward({segments, {}})));
  EXPECT_EQ(dx, (std::array<float, 4>{3, 4, -1, -2}));
  segments[0].norm_type = NormType::kLayer;
  segments[0].x = {x.data(), DType::kF32, shape, strides};
  segments[0].mean = {&mean, DType::kF32, one, any};
  segments[0].rstd = {&rstd, DType::kF32, one, any};
  EXPECT_TRUE(Ok(NormRopeBackward({segments, {}})));
  // h = (3, 4, -1, -2), its mean 1, x_hat (-1, 1, -1, 1), the mean of h * x_hat 0.
  EXPECT_EQ(dx, (std::array<float, 4>{2, 3, -2, -3}));
}

// ---- Plans of the joint call ------------------------------------------------------------------------------------

NormRopeConcatProblem JointProblem() {
  NormRopeConcatProblem problem;
  problem.types = {DType::kBF16, DType::kF32, DType::kBF16};
  problem.batch = 2;
  problem.heads = 4;
  problem.key_heads = 2;
  problem.head_dim = 64;
  problem.seq_query = 50;
  problem.seq_encoder_query = 20;
  problem.seq_key = 41;
  problem.seq_encoder_key = 30;
  problem.seq_rope = 60;
  problem.options.norm_type = NormType::kLayerAffine;
  problem.options.norm_added_type = NormType::kRmsAffine;
  problem.options.rotary = RotaryOptions{.mode = RotaryMode::kInterleave};
  problem.options.rope_start = 5;
  problem.execution.num_threads = 3;
  return problem;
}

TEST(NormRopeConcatPlan, RunsOnOtherMemoryAndAllocatesNothing) {
  NormRopeConcatProblem problem = JointProblem();
  NormRopeConcatBackwardPlan plan;
  NormRopeConcatPlan forward_plan;
  {
    const NormRopeConcatTensors first(problem);
    ASSERT_TRUE(Ok(NormRopeConcatBackwardPlan::Create(first.BackwardArgs(), &plan)));
    ASSERT_TRUE(Ok(NormRopeConcatPlan::Create(first.ForwardArgs(), &forward_plan)));
  }
  std::vector<std::byte> workspace(std::max(plan.workspace_size(), forward_plan.workspace_size()));
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    problem.seed = seed;
    const NormRopeConcatTensors backward(problem), forward(problem);
    const NormRopeConcatBackwardArgs args = backward.BackwardArgs();
    const NormRopeConcatArgs forward_args = forward.ForwardArgs();
    ASSERT_TRUE(Ok(plan.Run(args, workspace.data(), workspace.size())));  // may start OpenMP's threads
    const std::int64_t before = Allocations();
    const Status status = plan.Run(args, workspace.data(), workspace.size());
    const Status forward_status = forward_plan.Run(forward_args, workspace.data(), workspace.size());
    EXPECT_EQ(Allocations(), before);
    ASSERT_TRUE(Ok(status));
    ASSERT_TRUE(Ok(forward_status));
    EXPECT_TRUE(backward.CheckBackward());
    EXPECT_TRUE(forward.CheckForward());
  }
}

TEST(NormRopeConcatPlan, RefusesWhatCannotRun) {
  const NormRopeConcatTensors tensors(JointProblem());
  NormRopeConcatBackwardPlan plan;
  const std::vector<std::string> empty = {"norm_rope_concat_backward: ", "plan"};
  EXPECT_TRUE(Refused(plan.Run(tensors.BackwardArgs(), nullptr, 0), StatusCode::kNullPointer, empty));
  EXPECT_TRUE(Refused(NormRopeConcatPlan().Run(tensors.ForwardArgs(), nullptr, 0), StatusCode::kNullPointer,
                      {"norm_rope_concat: ", "plan"}));
  ASSERT_TRUE(Ok(NormRopeConcatBackwardPlan::Create(tensors.BackwardArgs(), &plan)));
  ASSERT_GT(plan.workspace_size(), 0u);
  std::vector<std::byte> workspace(plan.workspace_size());
  EXPECT_TRUE(Refused(plan.Run(tensors.BackwardArgs(), nullptr, plan.workspace_size()), StatusCode::kNullPointer,
                      {"norm_rope_concat_backward: ", "workspace"}));
  EXPECT_TRUE(Refused(plan.Run(tensors.BackwardArgs(), workspace.data(), workspace.size() - 1),
                      StatusCode::kWorkspaceTooSmall, {"norm_rope_concat_backward: ", "workspace"}));
  NormRopeConcatBackwardArgs args = tensors.BackwardArgs();
  args.norm_added_key.dweight.reset();
  EXPECT_TRUE(Refused(plan.Run(args, workspace.data(), workspace.size()), StatusCode::kNullPointer,
                      {"norm_rope_concat_backward: norm_added_key.dweight"}));
  for (const StreamTensors* stream : {&tensors.query, &tensors.key, &tensors.value, &tensors.encoder_query,
                                      &tensors.encoder_key, &tensors.encoder_value}) {
    EXPECT_TRUE(stream->dx.Unchanged("dx"));
    EXPECT_TRUE(stream->dweight.Unchanged("dweight"));
    EXPECT_TRUE(stream->dbias.Unchanged("dbias"));
  }
  EXPECT_NE(plan.Describe().find("norm_rope_concat_backward, 6 segments\n"), std::string::npos) << plan.Describe();
}

// The encoder's own tables are not replaced by the others.
TEST(NormRopeConcatPlan, TablesThatThePlanKnowsMustBeThere) {
  NormRopeConcatProblem problem = JointProblem();
  problem.seq_rope = 30;
  problem.seq_encoder_rope = 2;
  const NormRopeConcatTensors tensors(problem);
  NormRopeConcatBackwardArgs args = tensors.BackwardArgs();
  NormRopeConcatBackwardPlan plan;
  ASSERT_TRUE(Ok(NormRopeConcatBackwardPlan::Create(args, &plan)));
  std::vector<std::byte> workspace(plan.workspace_size());
  args.encoder_rope_cos.reset();
  args.encoder_rope_sin.reset();
  EXPECT_TRUE(Refused(plan.Run(args, workspace.data(), workspace.size()), StatusCode::kNullPointer,
                      {"norm_rope_concat_backward: encoder_rope_cos"}));
  EXPECT_TRUE(tensors.encoder_query.dx.Unchanged("dencoder_query"));
}

}  // namespace
}  // namespace gyrograd::testing
