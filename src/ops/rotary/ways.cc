// What each way asks of a call, and where it pays.
#include "ops/rotary/ways.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include "core/machine.h"
#include "ops/rotary/plan.h"

namespace gyrograd::internal {
namespace {

using Plan = RotaryPlanData;

// ---- visits

bool HasSummedRows(const Plan& plan) { return !plan.summed.empty(); }

// In all that is read: what is written goes where it may.
bool RowsUnderOneTableRowLieCloser(const Plan& plan) {
  if (!HasSummedRows(plan)) return false;
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
         (unturned || plan.reads_tables()) && PairUp(plan, kIn, kX, {kDcos, kDsin});
}

// Chunks of a run each add up as the runs of one chunk do.
bool ChunksAreRuns(const Plan& plan) {
  return plan.call.wants_sums() && plan.tree.chunks > 1 && plan.tree.chunk_terms <= SumTree::kRunTerms;
}

// Apart, they serve those alone who need the blocks.
bool TableRowsAreBlocksEnough(const Plan& plan) { return plan.table_rows >= 8; }

// ---- stores

bool WholeLines(const Plan& plan, int operand, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(SizeOf(plan.call.views[operand].dtype)) % kCacheLine == 0;
}

// From row to row, and from step to step of a row, unless these are left out.
bool DistancesAreWholeLines(const Plan& plan, int operand, bool rows_alone) {
  const auto whole = [&](const RotaryAxis& axis) { return WholeLines(plan, operand, axis.strides[operand]); };
  return std::all_of(plan.kept.begin(), plan.kept.end() - (rows_alone ? 1 : 0), whole) &&
         std::all_of(plan.summed.begin(), plan.summed.end(), whole);
}

// What a kernel writes of a row at a time: one member of a step, or both side by side.
bool StepsAreWholeLines(const Plan& plan) {
  const auto arithmetic = static_cast<std::int64_t>(plan.type == DType::kF64 ? sizeof(double) : sizeof(float));
  const std::int64_t pairs = plan.kernels->member_bytes / arithmetic;
  return WholeLines(plan, kOut, plan.maps[kOut].IsSplit() ? pairs : 2 * pairs);
}

// One strided operand makes a kernel take all for strided.
bool MayStream(const Plan& plan) {
  const bool strided = plan.maps[kIn].IsStrided() || (plan.call.wants_sums() && plan.maps[kX].IsStrided());
  return !plan.passes() && !strided && RowsAreWholeLines(plan, kOut) && StepsAreWholeLines(plan);
}

bool MayStageLines(const Plan& plan) {
  return MayStage(plan) || (plan.rows_fit_stage() && WholeLines(plan, kOut, plan.row_elements()) &&
                            DistancesAreWholeLines(plan, kOut, plan.steps_a_row == 2));
}

bool PassesTheCache(const Plan& plan) { return plan.large_output && plan.kernels->streams; }

}  // namespace

bool RowsAreWholeLines(const RotaryPlanData& plan, int operand) {
  const PairMap& map = plan.maps[operand];
  const bool split =
      map.IsSplit() && WholeLines(plan, operand, map.member_stride) && WholeLines(plan, operand, plan.pairs);
  const bool interleaved = map.IsInterleaved() && WholeLines(plan, operand, 2 * plan.pairs);
  return (split || interleaved) && WholeLines(plan, operand, map.offset) &&
         DistancesAreWholeLines(plan, operand, false);
}

// Rows that lie one behind the other, as they are visited, are whole lines but for the ends of a batch.
bool MayStage(const RotaryPlanData& plan) {
  const bool rows_adjoin = !plan.summed.empty() && plan.summed.back().strides[kOut] == plan.row_elements();
  const bool tables_adjoin =
      !plan.is_near() && !plan.kept.empty() && plan.kept.back().strides[kOut] == plan.row_elements();
  return plan.rows_fit_stage() && (rows_adjoin || tables_adjoin);
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
      {SumWay::kMergedChunks, "runs of all chunks in one", ChunksAreRuns, TableRowsAreBlocksEnough},
      {SumWay::kRuns, "runs and totals", Always, Always},
  };
  return kWays;
}

WayList<StoreWay, RotaryPlanData> StoreWays() {
  static constexpr WayEntry<StoreWay, Plan> kWays[] = {
      {StoreWay::kStreamed, "past the cache", MayStream, PassesTheCache},
      {StoreWay::kStaged, "past the cache, by batches", MayStageLines, PassesTheCache},
      {StoreWay::kCached, "through the cache", Always, Always},
  };
  return kWays;
}

}  // namespace gyrograd::internal
