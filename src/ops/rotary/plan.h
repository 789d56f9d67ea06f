// The plan of a rotary call: what a backend needs to know and nothing of where it came from. Here a layout becomes
// loops.
//
// Every row is turned into pairs: member m of pair p of an operand stands at offset + p * pair_stride + m *
// member_stride. Quarter mode is half mode with one more kept axis of two steps, so that four modes are two maps.
//
// The work is cut, by shape alone, into blocks: (chunk of the sums' terms) x (tile of table rows) x (segment of pairs).
// A block goes through its tile panel by panel: it prepares the table rows of a panel and goes through the rows under
// them in the order of the terms, `visit_rows` at a time: as its VisitWay says, of one table row after the other or of
// all.
#ifndef GYROGRAD_OPS_ROTARY_PLAN_H_
#define GYROGRAD_OPS_ROTARY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/axes.h"
#include "core/sum_tree.h"
#include "ops/rotary/kernels.h"
#include "ops/rotary/validate.h"
#include "ops/rotary/ways.h"

namespace gyrograd::internal {

using RotaryAxis = Axis<kRotaryOperands>;

// How the pairs of an operand lie in memory; strides in elements.
struct PairMap {
  std::int64_t offset = 0;
  std::int64_t pair_stride = 1;
  std::int64_t member_stride = 0;

  // The two layouts that vector loads take: members apart, each contiguous; and members side by side.
  bool IsSplit() const { return pair_stride == 1; }
  bool IsInterleaved() const { return pair_stride == 2 && member_stride == 1; }
  bool IsStrided() const { return !IsSplit() && !IsInterleaved(); }
};

// Channels that do not turn: `count` from `begin` on are copied.
struct PassedChannels {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

struct RotaryPlanData {
  RotaryCall call;  // the views, their shapes and strides kept in `extents`
  std::vector<std::int64_t> extents;

  bool empty = false;  // dy has no elements: sums are 0
  DType type = DType::kF32;
  DType table_type = DType::kF32;
  bool per_pair_tables = false;

  std::int64_t pairs = 0;  // of a row
  std::array<PairMap, kRotaryOperands> maps;
  std::array<std::int64_t, kRotaryOperands> channel_strides = {};  // of the last axis
  std::vector<RotaryAxis> kept;                                    // one step, one table row
  std::vector<RotaryAxis> summed;                                  // one step, one more row under the same table row
  std::int64_t table_rows = 1;                                     // steps of the kept axes
  std::int64_t rows_per_table_row = 1;                             // steps of the summed axes
  // Of the innermost kept axis: 2 where quarter mode's two steps are an axis of their own.
  std::int64_t steps_a_row = 1;
  std::array<PassedChannels, 2> passed;  // copied with a row's first step

  SumTree tree;  // counts terms; per-pair tables have two terms a row
  std::int64_t rows_per_run = SumTree::kRunTerms;
  std::int64_t chunks = 1;  // the tree's, or all in one; without sums, enough of them to share the work
  std::int64_t chunk_rows = 1;

  std::int64_t segment_pairs = 0;
  std::int64_t segments = 1;
  RotaryWays ways;
  std::int64_t panel_rows = 1;           // table rows worked on together
  std::int64_t prepared_panel_rows = 1;  // the same where coefficients are kept, too: interleave-half in place
  std::int64_t tile_rows = 1;            // table rows of a block, a multiple of panel_rows
  std::int64_t tiles = 1;
  std::int64_t visit_rows = 1;
  int num_threads = 1;
  bool large_output = false;  // the work is far larger than the last-level cache: stores that pass it by

  // Chunk totals, f64. Interleave-half rows of several segments keep them too: in place, their sums cannot be written
  // before cos and sin, which they may lie on, have been read again.
  std::size_t partials_bytes = 0;    // chunk totals, f64
  std::size_t row_buffer_bytes = 0;  // a thread's; interleave-half in place, rows too long for the stack

  const RotaryKernels* kernels = nullptr;

  std::size_t workspace_bytes() const;
  bool is_near() const { return ways.visits == VisitWay::kNear; }
  bool reads_tables() const { return ways.tables == TableWay::kDirect; }
  bool keeps_partials() const;
  bool passes() const { return passed[0].count + passed[1].count > 0; }
  // Of the output, what one table row has a part in: a row, or a half of it where quarter mode's steps are merged.
  std::int64_t row_elements() const;
  bool rows_fit_stage() const;
};

// Rows up to this long are laid out anew in a backend's scratch memory (interleave-half in place).
inline constexpr std::int64_t kStackRowElements = 4096;

// Rows that are staged are put together in a piece of the nearest cache, a row in a quarter of it or less. Shorter rows
// than these cost more on their way than lines that are not read save.
inline constexpr std::int64_t kStageBytes = 8192;
inline constexpr std::int64_t kMinStagedRowBytes = 128;

// call must have passed ValidateViews. `other_bytes` are moved by the same work beside the call's own.
std::shared_ptr<const RotaryPlanData> MakeRotaryPlan(const RotaryCall& call, std::int64_t other_bytes = 0,
                                                     const ForcedRotaryWays& forced = {});

std::string Describe(const RotaryPlanData& plan);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_PLAN_H_
