// The ways to do a rotary call's work, and which of them its plan takes.
#ifndef GYROGRAD_OPS_ROTARY_WAYS_H_
#define GYROGRAD_OPS_ROTARY_WAYS_H_

#include <optional>

#include "ops/way_list.h"

namespace gyrograd::internal {

struct RotaryPlanData;

// In which order rows are visited.
enum class VisitWay {
  kNear,  // all rows under one table row, then those under the next: they lie closer
  kFar,   // a few rows under every table row of the panel, then the next few
};

// Where the rotation's coefficients come from.
enum class TableWay {
  kDirect,    // the tables, read where they are used
  kPrepared,  // made for the table rows of a panel, once for all rows under them
};

// How the sums of the tables' gradients are made.
enum class SumWay {
  kSingleTerms,   // every sum is one product, written as it is made
  kMergedChunks,  // the tree's chunks are one run each: added as if they were the runs of one
  kRuns,          // runs and totals in near memory, written, or kept for other chunks, when all their terms are added
};

// How rows are written.
enum class StoreWay {
  kStreamed,  // past the cache, as they are made: the output is far larger, and a step of pairs is whole lines
  kStaged,    // past the cache, a batch at a time, which is put together in near memory
  kCached,    // through the cache
};

struct RotaryWays {
  VisitWay visits = VisitWay::kFar;
  TableWay tables = TableWay::kPrepared;
  SumWay sums = SumWay::kRuns;
  StoreWay stores = StoreWay::kCached;
};

// What a test wants; a way that a call does not allow is not taken.
struct ForcedRotaryWays {
  std::optional<VisitWay> visits = std::nullopt;
  std::optional<TableWay> tables = std::nullopt;
  std::optional<SumWay> sums = std::nullopt;
  std::optional<StoreWay> stores = std::nullopt;
};

WayList<VisitWay, RotaryPlanData> VisitWays();
WayList<TableWay, RotaryPlanData> TableWays();
WayList<SumWay, RotaryPlanData> SumWays();
WayList<StoreWay, RotaryPlanData> StoreWays();  // of an output whose first element starts a line

// Whether an operand's rows are whole cache lines where its first element starts one: else the processor would read the
// lines that stores are to pass by.
bool RowsAreWholeLines(const RotaryPlanData& plan, int operand);

// Whether rows may be staged even where they are not.
bool MayStage(const RotaryPlanData& plan);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_WAYS_H_
