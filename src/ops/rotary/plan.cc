// Where a rotary call becomes loops, tiles and a tree of sums.
#include "ops/rotary/plan.h"

#include <algorithm>
#include <cstdlib>

#include "core/machine.h"
#include "core/partition.h"
#include "core/strides.h"

namespace gyrograd::internal {
namespace {

// What a panel keeps in the first-level cache and on the stack: coefficients, runs and totals of this many pairs of
// f32.
constexpr std::int64_t kPanelPairs = 1024;
constexpr std::int64_t kPadPairs = 32;     // the widest kernel's step
constexpr std::int64_t kFarVisitRows = 4;  // under one table row while its neighbours wait
// Of one operand: rows under one table row; and between one step of the outer summed loops and the next.
constexpr std::int64_t kVisitBytes = std::int64_t{4} << 10;
constexpr std::int64_t kNearStretchBytes = std::int64_t{128} << 10;
constexpr std::int64_t kFarStretchBytes = std::int64_t{32} << 10;
constexpr std::int64_t kEnoughBlocks = 64;                     // for any number of threads worth having
constexpr std::int64_t kBlockBytes = std::int64_t{256} << 10;  // of dy, x and dx
constexpr std::int64_t kMinBlockBytes = std::int64_t{32} << 10;

bool IsTable(int operand) { return operand == kCos || operand == kSin || operand == kDcos || operand == kDsin; }

// Interleave mode pairs neighbours everywhere, interleave-half in x alone.
bool PairsNeighbours(const RotaryCall& call, int operand) {
  switch (call.options.mode) {
    case RotaryMode::kInterleave: return true;
    case RotaryMode::kInterleaveHalf: return !IsTable(operand) && (operand == kIn) == call.forward;
    default: return false;
  }
}

// A mode is this: where pair p, member m of each operand stands in its row.
PairMap MapPairs(const RotaryCall& call, int operand, std::int64_t pairs) {
  const std::int64_t stride = call.views[operand].strides.back();
  PairMap map;
  map.offset = IsTable(operand) ? 0 : call.options.rotary_offset * stride;
  if (IsTable(operand) && call.options.per_pair_tables) {
    map.pair_stride = stride;
    map.member_stride = 0;
  } else if (PairsNeighbours(call, operand)) {
    map.pair_stride = 2 * stride;
    map.member_stride = stride;
  } else {
    map.pair_stride = stride;
    map.member_stride = pairs * stride;
  }
  return map;
}

// In quarter mode, the step from the first two quarters to the last two.
RotaryAxis QuarterAxis(const RotaryCall& call, std::int64_t pairs) {
  RotaryAxis axis{2, {}};
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (!call.given[i]) continue;
    const bool one_member = IsTable(i) && call.options.per_pair_tables;
    axis.strides[i] = call.views[i].strides.back() * pairs * (one_member ? 1 : 2);
  }
  return axis;
}

void MakeLoops(const RotaryCall& call, RotaryPlanData& plan) {
  const Extents in = call.views[kIn].shape;
  const Extents table = call.views[kCos].shape;
  for (std::size_t a = 0; a + 1 < in.size(); ++a) {
    if (in[a] == 1) continue;  // its strides may be anything
    const bool summed = table[a] == 1;
    RotaryAxis axis{in[a], {}};
    for (int i = 0; i < kRotaryOperands; ++i) {
      if (call.given[i] && !(summed && IsTable(i))) axis.strides[i] = call.views[i].strides[a];
    }
    (summed ? plan.summed : plan.kept).push_back(axis);
  }
  // The terms of the sums are numbered by the summed axes' logical order; the kept ones may be walked in memory's.
  const int walked = call.given[kOut] ? kOut : kIn;
  std::sort(plan.kept.begin(), plan.kept.end(), [walked](const RotaryAxis& a, const RotaryAxis& b) {
    return std::abs(a.strides[walked]) > std::abs(b.strides[walked]);
  });
  // Innermost, so that both steps of a row are neighbours whatever the strides: PassChannels relies on it.
  if (call.options.mode == RotaryMode::kQuarter) plan.kept.push_back(QuarterAxis(call, plan.pairs));
  MergeAxes(plan.kept);
  MergeAxes(plan.summed);
  if (call.options.mode == RotaryMode::kQuarter && plan.kept.back().extent == 2) plan.steps_a_row = 2;
  for (const RotaryAxis& axis : plan.kept) plan.table_rows *= axis.extent;
  for (const RotaryAxis& axis : plan.summed) plan.rows_per_table_row *= axis.extent;
}

void PassChannels(const RotaryCall& call, RotaryPlanData& plan) {
  const std::int64_t begin = call.options.rotary_offset;
  const std::int64_t end = begin + call.rotary_dim();
  plan.passed = {PassedChannels{0, begin}, PassedChannels{end, call.views[kIn].shape.back() - end}};
}

// The pairs of a panel that the backend's scratch memory holds: coefficients alone, sums alone, or both.
std::int64_t PanelPairs(const RotaryCall& call, const RotaryPlanData& plan, bool prepared) {
  const std::int64_t with_sums = prepared ? kPanelPairs / 2 : kPanelPairs / 4 * 3;
  const std::int64_t pairs = call.wants_sums() ? with_sums : kPanelPairs;
  return plan.type == DType::kF64 ? pairs / 2 : pairs;
}

std::int64_t RowBytes(const RotaryPlanData& plan) {
  return 2 * plan.segment_pairs * static_cast<std::int64_t>(SizeOf(plan.type));
}

// The most table rows of a panel that leave blocks enough. Without sums rows under one table row are shared out, too;
// far rows are worth their stretches, but not where chunks that would share the work are merged.
std::int64_t SharedPanelRows(const RotaryCall& call, const RotaryPlanData& plan) {
  if (!call.wants_sums() || (!plan.is_near() && plan.ways.sums != SumWay::kMergedChunks)) return plan.table_rows;
  const std::int64_t bytes = std::max<std::int64_t>(1, SaturatingMul(plan.rows_per_table_row, RowBytes(plan)));
  return std::max(plan.table_rows / kEnoughBlocks, CeilDiv(kMinBlockBytes, bytes));
}

// How many table rows are worked on together: as many as make a long stretch of memory between one step of the outer
// summed loops and the next, as leave enough blocks, and as the scratch memory holds where something is kept of them.
std::int64_t PanelRows(const RotaryCall& call, const RotaryPlanData& plan, bool prepared) {
  const std::int64_t padded = CeilDiv(plan.segment_pairs, kPadPairs) * kPadPairs;
  const bool keeps_nothing = !prepared && !call.wants_sums();
  const std::int64_t held = std::max(plan.steps_a_row, PanelPairs(call, plan, prepared) / padded);
  const std::int64_t most = keeps_nothing ? plan.table_rows : held;
  const std::int64_t near_rows = plan.is_near() ? plan.summed.back().extent : 1;
  const std::int64_t stretch = (plan.is_near() ? kNearStretchBytes : kFarStretchBytes);
  const std::int64_t long_rows =
      std::min(stretch / SaturatingMul(near_rows, RowBytes(plan)), SharedPanelRows(call, plan));
  const std::int64_t rows = std::min({most, std::max(long_rows, plan.steps_a_row), plan.table_rows});
  const std::int64_t whole = rows - rows % plan.steps_a_row;
  const std::int64_t even = CeilDiv(plan.table_rows, CeilDiv(plan.table_rows, whole));  // no small one at the end
  return std::min(whole, RoundUp(even, plan.steps_a_row));
}

// Rows that stay in the nearest cache while all steps of pairs go over them; enough of them to share their table row.
std::int64_t NearVisitRows(const RotaryPlanData& plan) {
  return std::clamp<std::int64_t>(kVisitBytes / RowBytes(plan), kFarVisitRows, SumTree::kRunTerms);
}

void CutTerms(RotaryPlanData& plan) {
  const std::int64_t members = plan.per_pair_tables ? 2 : 1;
  const std::int64_t table_elements = plan.table_rows * plan.pairs * (3 - members);
  plan.tree = SumTree::For(plan.rows_per_table_row * members, table_elements);
  plan.rows_per_run = SumTree::kRunTerms / members;
  plan.chunks = plan.tree.chunks;
  plan.chunk_rows = plan.tree.chunk_terms / members;
}

void CutRows(const RotaryCall& call, const ForcedRotaryWays& forced, RotaryPlanData& plan) {
  plan.ways.visits = ChooseWay(VisitWays(), plan, forced.visits);
  plan.ways.tables = ChooseWay(TableWays(), plan, forced.tables);
  // In place, interleave-half takes its tables in another order than they stand in.
  const bool may_prepare = !plan.reads_tables() || call.options.mode == RotaryMode::kInterleaveHalf;
  plan.segment_pairs = std::min(plan.pairs, PanelPairs(call, plan, may_prepare) / plan.steps_a_row);
  plan.segments = CeilDiv(plan.pairs, plan.segment_pairs);
  plan.ways.sums = ChooseWay(SumWays(), plan, forced.sums);
  if (plan.ways.sums == SumWay::kMergedChunks) {
    plan.chunks = 1;
    plan.chunk_rows = plan.rows_per_table_row;
  }
  plan.panel_rows = PanelRows(call, plan, !plan.reads_tables());
  plan.prepared_panel_rows = PanelRows(call, plan, true);
  plan.visit_rows = plan.is_near() ? NearVisitRows(plan) : kFarVisitRows;
}

// Without sums no order binds: rows under one table row may be shared out freely.
void ShareRows(RotaryPlanData& plan, std::int64_t row_bytes) {
  const std::int64_t panels = CeilDiv(plan.table_rows, plan.panel_rows);
  const std::int64_t wanted = CeilDiv(kEnoughBlocks, SaturatingMul(panels, plan.segments));
  const std::int64_t least = CeilDiv(kMinBlockBytes, plan.panel_rows * row_bytes);
  plan.chunk_rows = std::min(plan.rows_per_table_row, std::max(CeilDiv(plan.rows_per_table_row, wanted), least));
  plan.chunks = CeilDiv(plan.rows_per_table_row, plan.chunk_rows);
}

// Tiles of as many panels as make a block worth a thread's while, but no fewer blocks than many threads would need.
void ShareWork(const RotaryCall& call, std::int64_t other_bytes, RotaryPlanData& plan) {
  const auto size = static_cast<std::int64_t>(SizeOf(plan.type));
  const int streams = 1 + call.wants_sums() + call.given[kOut];
  const std::int64_t row_bytes = plan.segment_pairs * 2 * size * streams;
  if (!call.wants_sums()) ShareRows(plan, row_bytes);
  const std::int64_t panels = CeilDiv(plan.table_rows, plan.panel_rows);
  const std::int64_t panel_bytes = SaturatingMul(SaturatingMul(plan.panel_rows, plan.chunk_rows), row_bytes);
  const std::int64_t most = CeilDiv(SaturatingMul(SaturatingMul(panels, plan.segments), plan.chunks), kEnoughBlocks);
  const std::int64_t panels_a_tile = std::clamp<std::int64_t>(kBlockBytes / panel_bytes, 1, most);
  plan.tile_rows = plan.panel_rows * panels_a_tile;
  plan.tiles = CeilDiv(plan.table_rows, plan.tile_rows);
  const std::int64_t count = *ElementCount(call.views[kIn].shape);
  plan.num_threads =
      ThreadsFor(SaturatingMul(count, size * streams),
                 SaturatingMul(SaturatingMul(plan.tiles, plan.segments), plan.chunks), call.execution.num_threads);
  // Every element passes once: when it all takes more than the cache twice over, none of the output would be found
  // there.
  const std::int64_t table_bytes =
      SaturatingMul(plan.table_rows * plan.pairs, 2 * size * (2 + call.given[kDcos] + call.given[kDsin]));
  const std::int64_t all_bytes = SaturatingMul(count, size * streams) / 2 + table_bytes / 2;
  const std::int64_t cache_bytes = LastLevelCacheBytes();
  plan.large_output = (count >= (std::int64_t{1} << 20) && all_bytes >= cache_bytes) || other_bytes / 2 >= cache_bytes;
}

// In place, that is.
bool Shuffles(const RotaryCall& call) { return call.given[kOut] && call.options.mode == RotaryMode::kInterleaveHalf; }

void PlanWorkspace(const RotaryCall& call, RotaryPlanData& plan) {
  const bool f64 = plan.type == DType::kF64;
  if (plan.keeps_partials()) {
    const std::int64_t elements = plan.table_rows * plan.pairs * (plan.per_pair_tables ? 1 : 2);
    const std::int64_t element_bytes = 2 * static_cast<std::int64_t>(sizeof(double)) * (f64 ? 2 : 1);
    plan.partials_bytes = static_cast<std::size_t>(SaturatingMul(SaturatingMul(plan.chunks, elements), element_bytes));
  }
  if (Shuffles(call) && 2 * plan.pairs > kStackRowElements) {
    plan.row_buffer_bytes = static_cast<std::size_t>(2 * plan.pairs) * SizeOf(plan.type);
  }
}

// The call's spans refer to the caller's arrays; a plan keeps its own.
void KeepExtents(RotaryPlanData& plan) {
  std::size_t count = 0;
  for (int i = 0; i < kRotaryOperands; ++i) count += 2 * plan.call.views[i].shape.size();
  plan.extents.reserve(count);
  const auto keep = [&plan](Extents& span) {
    const std::size_t begin = plan.extents.size();
    plan.extents.insert(plan.extents.end(), span.begin(), span.end());
    span = Extents(plan.extents.data() + begin, span.size());
  };
  for (ConstTensorView& view : plan.call.views) {
    keep(view.shape);
    keep(view.strides);
    view.data = nullptr;
  }
}

}  // namespace

std::size_t RotaryPlanData::workspace_bytes() const {
  const std::int64_t rows = SaturatingMul(static_cast<std::int64_t>(row_buffer_bytes), num_threads);
  const std::size_t bytes = partials_bytes + static_cast<std::size_t>(rows);
  return bytes == 0 ? 0 : bytes + alignof(double) - 1;  // room to align
}

bool RotaryPlanData::keeps_partials() const {
  return call.wants_sums() && (chunks > 1 || (Shuffles(call) && segments > 1));
}

std::int64_t RotaryPlanData::row_elements() const {
  const bool half = call.options.mode == RotaryMode::kQuarter && steps_a_row == 1;
  return call.views[kOut].shape.back() / (half ? 2 : 1);
}

bool RotaryPlanData::rows_fit_stage() const {
  const std::int64_t bytes = row_elements() * static_cast<std::int64_t>(SizeOf(type));
  return !maps[kOut].IsStrided() && segments == 1 && bytes >= kMinStagedRowBytes && bytes <= kStageBytes / 4;
}

std::shared_ptr<const RotaryPlanData> MakeRotaryPlan(const RotaryCall& call, std::int64_t other_bytes,
                                                     const ForcedRotaryWays& forced) {
  auto owned = std::make_shared<RotaryPlanData>();
  RotaryPlanData& plan = *owned;
  plan.call = call;
  KeepExtents(plan);
  plan.kernels = FindRotaryKernels(call.execution.cpu_target);
  plan.type = call.views[kIn].dtype;
  plan.table_type = call.views[kCos].dtype;
  plan.per_pair_tables = call.options.per_pair_tables;
  plan.empty = IsEmpty(call.views[kIn].shape);
  if (plan.empty) return owned;
  plan.pairs = call.rotary_dim() / (call.options.mode == RotaryMode::kQuarter ? 4 : 2);
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (!call.given[i]) continue;
    plan.maps[i] = MapPairs(call, i, plan.pairs);
    plan.channel_strides[i] = call.views[i].strides.back();
  }
  MakeLoops(call, plan);
  PassChannels(call, plan);
  CutTerms(plan);
  CutRows(call, forced, plan);
  ShareWork(call, other_bytes, plan);
  if (call.given[kOut]) plan.ways.stores = ChooseWay(StoreWays(), plan, forced.stores);
  PlanWorkspace(call, plan);
  return owned;
}

namespace {

std::string Count(std::int64_t count, const char* one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

std::string DescribeLoops(std::string text, const char* operand, const std::vector<RotaryAxis>& axes) {
  if (axes.empty()) return text + " none\n";
  for (const RotaryAxis& axis : axes) {
    text += &axis == axes.data() ? " " : ", ";
    text += std::to_string(axis.extent) + " (" + operand + " stride " + std::to_string(axis.strides[kIn]) + ")";
  }
  return text + "\n";
}

const char* DescribeMap(const PairMap& map) {
  return map.IsSplit() ? "split" : map.IsInterleaved() ? "interleaved" : "strided";
}

std::string DescribeRow(const RotaryPlanData& plan) {
  std::string text = "row: " + Count(plan.pairs, "pair") + ", read " + DescribeMap(plan.maps[kIn]);
  if (plan.call.given[kOut]) text += std::string(", written ") + DescribeMap(plan.maps[kOut]);
  text += std::string("\ntables: ") + (plan.per_pair_tables ? "per pair, " : "") + DescribeMap(plan.maps[kCos]);
  return text + ", " + NameOf(TableWays(), plan.ways.tables) + "\n";
}

std::string DescribeBlocks(const RotaryPlanData& plan) {
  return "blocks: " + Count(plan.tiles, "tile") + " of at most " + Count(plan.tile_rows, "table row") + " (" +
         std::to_string(plan.panel_rows) + " at a time) x " + Count(plan.chunks, "share") + " of at most " +
         Count(plan.chunk_rows, "row") + " x " + Count(plan.segments, "part") + " of at most " +
         Count(plan.segment_pairs, "pair") + "; " + Count(plan.visit_rows, "row") + " a visit, " +
         NameOf(VisitWays(), plan.ways.visits) + "\n";
}

std::string DescribeSums(const RotaryPlanData& plan) {
  const SumTree& tree = plan.tree;
  const char* const way = NameOf(SumWays(), plan.ways.sums);
  if (tree.terms == 1) return std::string("sums: of 1 term, ") + way + "\n";
  return "sums: " + Count(tree.terms, "term") + " in " + Count(tree.chunks, "chunk") + " of at most " +
         std::to_string(tree.chunk_terms) + ", runs of " + std::to_string(SumTree::kRunTerms) + ", " + way + "\n";
}

}  // namespace

std::string Describe(const RotaryPlanData& plan) {
  std::string text = std::string(plan.call.name()) + ", mode " + Name(plan.call.options.mode) + ", " + Name(plan.type) +
                     ", tables " + Name(plan.table_type) + "\n";
  text += std::string("target: ") + plan.kernels->name + "\n";
  if (plan.empty) return text + (plan.call.wants_sums() ? "nothing to compute but zeros\n" : "nothing to compute\n");
  const char* const operand = plan.call.forward ? "x" : "dy";
  text += DescribeLoops("kept loops:", operand, plan.kept);
  text += DescribeLoops("summed loops:", operand, plan.summed);
  text += DescribeRow(plan) + DescribeBlocks(plan);
  if (plan.call.wants_sums()) text += DescribeSums(plan);
  if (plan.call.given[kOut]) {
    text += std::string("stores: ") + NameOf(StoreWays(), plan.ways.stores);
    const bool anywhere = plan.ways.stores == StoreWay::kCached || MayStage(plan);
    text += anywhere && plan.ways.stores != StoreWay::kStreamed ? "\n" : ", if the output starts a cache line\n";
  }
  return text + "threads: " + std::to_string(plan.num_threads) +
         "\nworkspace: " + std::to_string(plan.workspace_bytes()) + " bytes\n";
}

}  // namespace gyrograd::internal
