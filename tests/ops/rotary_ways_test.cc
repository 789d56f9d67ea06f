// Ways to do the same work: each of them, wherever a call allows it, has the bits of the one that the plan takes.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/rotary/plan.h"
#include "ops/rotary/run.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

using internal::ForcedRotaryWays;
using internal::MakeRotaryPlan;
using internal::RotaryCall;
using internal::RotaryPlanData;
using internal::StoreWay;
using internal::SumWay;
using internal::TableWay;
using internal::VisitWay;

std::vector<ForcedRotaryWays> Combinations() {
  std::vector<ForcedRotaryWays> all;
  for (const auto& visits : internal::VisitWays()) {
    for (const auto& tables : internal::TableWays()) {
      for (const auto& sums : internal::SumWays()) {
        for (const auto& stores : internal::StoreWays()) all.push_back({visits.way, tables.way, sums.way, stores.way});
      }
    }
  }
  return all;
}

// A plan whose ways are forced, on a problem's tensors.
class ForcedRun {
 public:
  // Which outputs are asked for: dx, dcos, dsin.
  using Wanted = std::array<bool, 3>;

  ForcedRun(const BackwardTensors& tensors, const Wanted& wanted, const ForcedRotaryWays& forced)
      : tensors_(tensors),
        wanted_(wanted),
        args_(tensors.Args(wanted[0], wanted[1], wanted[2], wanted[1])),
        call_(RotaryCall::From(args_)),
        plan_(MakeRotaryPlan(call_, 0, forced)),
        workspace_(std::make_unique_for_overwrite<std::byte[]>(plan_->workspace_bytes())) {}

  // What the plan takes; stores as the output's address allows them.
  std::array<std::string, 4> names() {
    const internal::RotaryRun run = PrepareRun(*plan_, AddressesOf(call_), workspace_.get());
    return {NameOf(internal::VisitWays(), plan_->ways.visits), NameOf(internal::TableWays(), plan_->ways.tables),
            NameOf(internal::SumWays(), plan_->ways.sums), NameOf(internal::StoreWays(), run.stores)};
  }

  std::vector<std::uint64_t> Bits() {
    const std::array outputs = {&tensors_.dx, &tensors_.dcos, &tensors_.dsin};
    for (const Tensor* output : outputs) output->Clear();
    EXPECT_TRUE(Ok(RunChecked(*plan_, AddressesOf(call_), workspace_.get(), plan_->workspace_bytes())));
    std::vector<std::uint64_t> bits;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(outputs[i]->GuardsIntact("output " + std::to_string(i))) << tensors_.problem;
      if (!wanted_[i]) continue;
      const std::vector<std::uint64_t> more = outputs[i]->Bits();
      bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
  }

 private:
  const BackwardTensors& tensors_;
  Wanted wanted_;
  RotaryBackwardArgs args_;
  RotaryCall call_;
  std::shared_ptr<const RotaryPlanData> plan_;
  std::unique_ptr<std::byte[]> workspace_;
};

constexpr ForcedRun::Wanted kDx = {true, false, false}, kAll = {true, true, true}, kTables = {false, true, true};

class RotaryWays : public ::testing::TestWithParam<ModeAndTypes> {
 protected:
  // Rows of whole lines and of none, under table rows near and far, alone and many; partial and misaligned ones.
  std::vector<Problem> Problems() const {
    const auto [mode, types] = GetParam();
    std::vector<Problem> problems;
    for (const std::int64_t dim : {4, 36, 124, 128, 192}) {
      for (const std::array<Shape, 2>& shapes :
           {std::array<Shape, 2>{Shape{2, 5, 19}, Shape{1, 5, 1}},
            std::array<Shape, 2>{Shape{3, 2, 23}, Shape{1, 1, 23}}, std::array<Shape, 2>{Shape{2, 23}, Shape{2, 23}},
            std::array<Shape, 2>{Shape{2, 9, 2}, Shape{1, 9, 1}},
            std::array<Shape, 2>{Shape{2, 9, 17}, Shape{1, 9, 1}}}) {
        Shape dy = shapes[0];
        dy.push_back(dim);
        problems.push_back(MakeProblem(mode, types, dy, shapes[1]));
        problems.back().execution.num_threads = dim == 124 ? 2 : 1;  // whose blocks share lines
      }
    }
    for (const std::int64_t offset : {0, 5, 64}) {
      Problem part = MakeProblem(mode, types, {2, 3, 18, 192}, {1, 3, 1});
      part.rotary_dim = 128;
      part.rotary_offset = offset;
      part.tables = {1, 3, 1, 128};
      problems.push_back(part);
    }
    for (const Layout layout : {Layout::kOffsetOne, Layout::kPacked, Layout::kSwapped, Layout::kTransposed}) {
      Problem problem = MakeProblem(mode, types, {2, 7, 17, 64}, {1, 7, 1});
      problem.dx_layout = layout;
      problems.push_back(problem);
    }
    problems.push_back(MakeProblem(mode, types, {2, 7, 17, 64}, {1, 7, 1}, true));
    return problems;
  }

  // Runs every combination that differs from those before; the names of all ways that were taken.
  static std::set<std::string> RunAll(const BackwardTensors& tensors, const ForcedRun::Wanted& wanted) {
    const std::vector<std::uint64_t> want = ForcedRun(tensors, wanted, {}).Bits();
    std::set<std::array<std::string, 4>> seen;
    std::set<std::string> taken;
    for (const ForcedRotaryWays& forced : Combinations()) {
      ForcedRun run(tensors, wanted, forced);
      const std::array<std::string, 4> names = run.names();
      if (!seen.insert(names).second) continue;
      EXPECT_TRUE(run.Bits() == want) << tensors.problem << ": " << ::testing::PrintToString(names);
      taken.insert(names.begin(), names.end());
    }
    return taken;
  }
};

TEST_P(RotaryWays, AllHaveTheSameBits) {
  std::set<std::string> taken;
  for (Problem problem : Problems()) {
    for (const CpuTarget target : AvailableCpuTargets()) {
      problem.execution.cpu_target = target;
      const BackwardTensors tensors(problem);
      for (const ForcedRun::Wanted& wanted : {kDx, kAll, kTables}) {
        taken.merge(RunAll(tensors, wanted));
      }
    }
  }
  std::vector<const char*> every = {"by table rows",    "by panels",
                                    "prepared",         "runs of all chunks in one",
                                    "runs and totals",  "past the cache, by batches",
                                    "through the cache"};
  // Tables of another type are neither read nor, their gradients, written where rows are.
  if (GetParam().types.activations == GetParam().types.tables) {
    every.insert(every.end(), {"read where they are used", "written as they are made"});
  }
  if (AvailableCpuTargets().front() == CpuTarget::kAvx512) every.push_back("past the cache");  // a step fills lines
  for (const char* const name : every) EXPECT_TRUE(taken.contains(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(All, RotaryWays, ModesAndTypes(), ModeAndTypesName);

// ---- which ways are taken

// The ways that a call takes beside work so large that nothing of it stays in the cache.
internal::RotaryWays WaysOf(const Problem& problem, const ForcedRun::Wanted& wanted) {
  RotaryBackwardArgs args;
  const Shape strides = StridesOf(Layout::kContiguous, problem.dy);
  const Shape table_strides = StridesOf(Layout::kContiguous, problem.tables);
  args.dy = {nullptr, problem.types.activations, problem.dy, strides};
  args.cos = args.sin = {nullptr, problem.types.tables, problem.tables, table_strides};
  const TensorView table_gradient{nullptr, problem.types.tables, problem.tables, table_strides};
  if (wanted[0]) args.dx = TensorView{nullptr, problem.types.activations, problem.dy, strides};
  if (wanted[1]) args.x = args.dy;
  if (wanted[1]) args.dcos = table_gradient;
  if (wanted[2]) args.dsin = table_gradient;
  args.options = problem.Options();
  args.execution = problem.execution;
  return MakeRotaryPlan(RotaryCall::From(args), std::int64_t{1} << 50)->ways;
}

TEST(RotaryWay, ByLayout) {
  const Types bf16 = {DType::kBF16, DType::kBF16};
  const auto ways = [&](RotaryMode mode, const Shape& dy, const Shape& tables, const ForcedRun::Wanted& wanted = kDx) {
    return WaysOf(MakeProblem(mode, bf16, dy, tables), wanted);
  };
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 40, 32, 128}, {1, 40, 1}).visits, VisitWay::kNear);
  EXPECT_EQ(ways(RotaryMode::kQuarter, {2, 40, 32, 128}, {1, 40, 1}).visits, VisitWay::kNear);
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 32, 40, 128}, {1, 1, 40}).visits, VisitWay::kFar);
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 40, 32, 128}, {1, 40, 1}).tables, TableWay::kDirect);
  EXPECT_EQ(ways(RotaryMode::kInterleaveHalf, {2, 40, 32, 128}, {1, 40, 1}).tables, TableWay::kDirect);
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 40, 32, 128}, {2, 40, 32}, kAll).sums, SumWay::kSingleTerms);
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 40, 32, 128}, {1, 40, 1}, kAll).sums, SumWay::kMergedChunks);
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 4000, 32, 128}, {1, 4000, 1}, kAll).sums, SumWay::kRuns);
  EXPECT_EQ(ways(RotaryMode::kHalf, {2, 40, 32, 128}, {1, 40, 1}, kTables).stores, StoreWay::kCached);
}

TEST(RotaryWay, StoresByTarget) {
  for (const CpuTarget target : AvailableCpuTargets()) {
    const auto stores = [&](RotaryMode mode, DType type, std::int64_t dim) {
      Problem problem = MakeProblem(mode, {type, type}, {2, 40, 32, dim}, {1, 40, 1});
      problem.execution.cpu_target = target;
      return WaysOf(problem, kDx).stores;
    };
    if (target == CpuTarget::kPortable) {
      EXPECT_EQ(stores(RotaryMode::kHalf, DType::kF32, 128), StoreWay::kCached);
      continue;
    }
    // A step of half mode is as long as two vectors of f32 in whatever type: 16 bits fill a line with 64 bytes a
    // vector.
    const bool lines = target == CpuTarget::kAvx512;
    EXPECT_EQ(stores(RotaryMode::kHalf, DType::kBF16, 128), lines ? StoreWay::kStreamed : StoreWay::kStaged);
    EXPECT_EQ(stores(RotaryMode::kHalf, DType::kBF16, 126), StoreWay::kStaged);
    EXPECT_EQ(stores(RotaryMode::kHalf, DType::kBF16, 6), StoreWay::kCached);
    EXPECT_EQ(stores(RotaryMode::kHalf, DType::kF32, 126), StoreWay::kStaged);
  }
}

}  // namespace
}  // namespace gyrograd::testing
