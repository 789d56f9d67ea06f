// What each way asks of a call, and where it pays.
#include "ops/rotary/ways.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/machine.h"
#include "ops/rotary/plan.h"

namespace gyrograd::internal {
namespace {

using Plan = RotaryPlanData;

// ---- visits

bool HasSummedRows(const Plan& plan) { return !plan.summed.empty(); }

// In all that is read: what is written goes where it may.
bool RowsUnderOneTableRowLieCloser(const Plan& plan) {
  if (plan.summed.empty()) return false;
  const std::size_t kept = plan.kept.size() - (plan.steps_a_row == 2 ? 1 : 0);
  const auto closer = [&](int operand) {
    return std::abs(plan.summed.back().strides[operand]) < std::abs(plan.kept[kept - 1].strides[operand]);
  };
  return kept == 0 || (closer(kIn) && (!plan.call.wants_sums() || closer(kX)));
}

// ---- tables and sums

// Whether vectors of two tables pair up with those of two operands' rows as they lie in memory: the tables may then be
// read, or written, where the rows are used.
bool PairUp(const Plan& plan, RotaryOperand in, RotaryOperand out, std::array<RotaryOperand, 2> tables) {
  const PairMap& a = plan.maps[in];
  const PairMap& b = plan.maps[out];
  if (plan.type != plan.table_type || a.IsStrided() || b.IsStrided()) return false;
  const bool interleaved = a.IsInterleaved() && b.IsInterleaved();
  return std::all_of(tables.begin(), tables.end(), [&](RotaryOperand table) {
    const PairMap& map = plan.maps[table];
    return !plan.call.given[table] || (interleaved ? map.IsInterleaved() : map.IsSplit());
  });
}

bool TablesPairUp(const Plan& plan) {
  const RotaryCall& call = plan.call;
  return PairUp(plan, kIn, call.given[kOut] ? kOut : kIn, {kCos, kSin}) &&
         !(call.wants_sums() && (plan.per_pair_tables || plan.maps[kX].IsStrided()));
}

bool EverySumIsOneProduct(const Plan& plan) {
  const bool unturned = !plan.call.given[kOut];
  return plan.call.wants_sums() && plan.tree.terms == 1 && !plan.keeps_partials() &&
         (unturned || plan.ways.tables == TableWay::kDirect) && PairUp(plan, kIn, kX, {kDcos, kDsin});
}

// ---- stores

// What a kernel writes of a row at a time: two vectors of one member, or of both.
bool StepsAreWholeLines(const Plan& plan) {
  const auto arithmetic = static_cast<std::int64_t>(plan.type == DType::kF64 ? sizeof(double) : sizeof(float));
  const std::int64_t pairs = 2 * plan.kernels->vector_bytes / arithmetic;
  const std::int64_t elements = plan.maps[kOut].IsSplit() ? pairs : 2 * pairs;
  return elements * static_cast<std::int64_t>(SizeOf(plan.type)) % kCacheLine == 0;
}

bool MayStream(const Plan& plan) {
  return plan.call.given[kOut] && !plan.passes() && RowsAreWholeLines(plan, kOut) && StepsAreWholeLines(plan);
}

bool MayStageLines(const Plan& plan) {
  return MayStage(plan) || (plan.rows_fit_stage() && RowsAreWholeLines(plan, kOut));
}

bool PassesTheCache(const Plan& plan) { return plan.large_output && plan.kernels->streams; }

// Short rows cost more on their way than lines that are not read save.
bool PassesTheCacheStaged(const Plan& plan) {
  return PassesTheCache(plan) && plan.row_elements() * static_cast<std::int64_t>(SizeOf(plan.type)) >= 2 * kCacheLine;
}

}  // namespace

bool RowsAreWholeLines(const RotaryPlanData& plan, int operand) {
  const auto size = static_cast<std::int64_t>(SizeOf(plan.call.views[operand].dtype));
  const auto whole = [size](std::int64_t elements) { return elements * size % kCacheLine == 0; };
  const auto whole_steps = [&](const RotaryAxis& axis) { return whole(axis.strides[operand]); };
  const PairMap& map = plan.maps[operand];
  const bool split = map.IsSplit() && whole(map.member_stride) && whole(plan.pairs);
  const bool interleaved = map.IsInterleaved() && whole(2 * plan.pairs);
  return (split || interleaved) && whole(map.offset) && std::ranges::all_of(plan.kept, whole_steps) &&
         std::ranges::all_of(plan.summed, whole_steps);
}

// Rows that lie one behind the other are whole lines but for the ends of a batch.
bool MayStage(const RotaryPlanData& plan) {
  return plan.rows_fit_stage() && ((!plan.summed.empty() && plan.summed.back().strides[kOut] == plan.row_elements()) ||
                                   (!plan.kept.empty() && plan.kept.back().strides[kOut] == plan.row_elements()));
}

WayList<VisitWay, RotaryPlanData> VisitWays() {
  static constexpr WayEntry<VisitWay, Plan> kWays[] = {
      {VisitWay::kNear, "by table rows", HasSummedRows, RowsUnderOneTableRowLieCloser},
      {VisitWay::kFar, "by panels", Always, Always},
  };
  return kWays;
}

WayList<TableWay, RotaryPlanData> TableWays() {
  static constexpr WayEntry<TableWay, Plan> kWays[] = {
      {TableWay::kDirect, "read where they are used", TablesPairUp, Always},
      {TableWay::kPrepared, "prepared", Always, Always},
  };
  return kWays;
}

WayList<SumWay, RotaryPlanData> SumWays() {
  static constexpr WayEntry<SumWay, Plan> kWays[] = {
      {SumWay::kSingleTerms, "written as they are made", EverySumIsOneProduct, Always},
      {SumWay::kRuns, "runs and totals", Always, Always},
  };
  return kWays;
}

WayList<StoreWay, RotaryPlanData> StoreWays() {
  static constexpr WayEntry<StoreWay, Plan> kWays[] = {
      {StoreWay::kStreamed, "past the cache", MayStream, PassesTheCache},
      {StoreWay::kStaged, "past the cache, by batches", MayStageLines, PassesTheCacheStaged},
      {StoreWay::kCached, "through the cache", Always, Always},
  };
  return kWays;
}

}  // namespace gyrograd::internal
