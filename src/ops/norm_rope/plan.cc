// Where segments become pieces of work, chunks of rows, and workspace.
#include "ops/norm_rope/plan.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "core/machine.h"
#include "core/partition.h"

namespace gyrograd::internal {
namespace {

using Operand = NormRopeOperand;

constexpr std::int64_t kPad = 32;  // the widest kernel's step, in pairs or channels
constexpr std::int64_t kVisitBytes = std::int64_t{4} << 10;
constexpr std::int64_t kBlockBytes = std::int64_t{256} << 10;

// ---- views as [batch, sequence, heads, channels]

// dy backward and y forward are [B, N, S, D], all others [B, S, N, D].
bool HeadsFirst(bool forward, int operand) {
  return operand == (forward ? Operand::kOut : Operand::kIn) || operand == Operand::kCos || operand == Operand::kSin;
}

RowStrides StridesOf(const SegmentCall& segment, bool forward, int operand) {
  if (!segment.given[operand]) return {};
  const ConstTensorView& view = segment.views[operand];
  if (view.shape.size() == 2) return {0, view.shape[0] == 1 ? 0 : view.strides[0], 0, view.strides[1]};  // [L, R]
  const int sequence = HeadsFirst(forward, operand) ? 2 : 1;
  const auto stride = [&view](int axis) { return view.shape[axis] == 1 ? 0 : view.strides[axis]; };
  // The last axis keeps its stride: one channel is never far from itself.
  return {stride(0), stride(sequence), stride(3 - sequence), view.strides[3]};
}

// ---- parts

// As MapPairs of the rotary plan, in channels; R is the row that turns, `pairs` those of one part.
ChannelMap MapChannels(RotaryMode mode, bool of_x, std::int64_t offset, std::int64_t pairs) {
  const bool neighbours = mode == RotaryMode::kInterleave || (mode == RotaryMode::kInterleaveHalf && of_x);
  return neighbours ? ChannelMap{offset, 2, 1} : ChannelMap{offset, 1, pairs};
}

RowPart TurningPart(const RotaryOptions& options, std::int64_t index, std::int64_t pairs) {
  RowPart part;
  part.turns = true;
  part.count = pairs;
  part.x = MapChannels(options.mode, true, options.rotary_offset + index * 2 * pairs, pairs);
  part.y = MapChannels(options.mode, false, options.rotary_offset + index * 2 * pairs, pairs);
  part.table = options.per_pair_tables ? ChannelMap{index * pairs, 1, 0}
                                       : MapChannels(options.mode, false, index * 2 * pairs, pairs);
  return part;
}

void AddChannels(std::int64_t begin, std::int64_t end, std::vector<RowPart>& parts) {
  if (begin == end) return;
  RowPart part;
  part.count = end - begin;
  part.x = part.y = ChannelMap{begin, 1, 0};
  parts.push_back(part);
}

std::vector<RowPart> PartsOf(const SegmentCall& segment) {
  std::vector<RowPart> parts;
  const bool turns = segment.rotates && segment.rope_rows > 0;
  const std::int64_t width = turns ? segment.rotary_dim() : 0;
  const std::int64_t offset = turns ? segment.options.rotary_offset : 0;
  AddChannels(0, offset, parts);
  if (turns) {
    const std::int64_t rows = segment.options.mode == RotaryMode::kQuarter ? 2 : 1;
    for (std::int64_t i = 0; i < rows; ++i) parts.push_back(TurningPart(segment.options, i, width / (2 * rows)));
  }
  AddChannels(offset + width, segment.head_dim, parts);
  return parts;
}

// ---- a segment with a norm

void CutPositions(NormPiece& piece) {
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, SaturatingMul(piece.head_dim, static_cast<std::int64_t>(SizeOf(piece.type))));
  // Chunks begin with a run.
  const std::int64_t unit = NormPiece::kRunRows / std::gcd(piece.heads, NormPiece::kRunRows);
  const std::int64_t least =
      std::max<std::int64_t>(1, kBlockBytes / SaturatingMul(SaturatingMul(row_bytes, 3), piece.heads));
  const std::int64_t even = CeilDiv(piece.positions(), piece.max_chunks());
  // Without sums a chunk is only a block, and there may be more of them.
  const std::int64_t wanted = piece.wants_sums() ? even : std::min(even, least);
  piece.chunk_positions = RoundUp(std::max<std::int64_t>(wanted, 1), unit);
  piece.chunks = CeilDiv(piece.positions(), piece.chunk_positions);
  piece.visit_rows = std::clamp<std::int64_t>(kVisitBytes / row_bytes, 4, NormPiece::kRunRows);
}

void PlanScratch(NormPiece& piece) {
  const std::int64_t arithmetic = piece.type == DType::kF64 ? sizeof(double) : sizeof(float);
  const std::int64_t parameters = piece.forward ? 2 : 1;
  const std::int64_t sums = piece.wants_sums() ? 2 : 0;
  const std::int64_t shuffled = piece.swaps_pairs ? RoundUp(piece.head_dim, kPad) : 0;
  const std::int64_t kept =
      SaturatingAdd(SaturatingMul(parameters + sums, piece.values), SaturatingMul(2, piece.turned_values));
  piece.scratch_bytes = SaturatingMul(SaturatingAdd(kept, shuffled), arithmetic);
  if (!piece.wants_sums()) return;
  const std::int64_t numbers = piece.type == DType::kF64 ? 2 : 1;  // a total, and its error
  piece.partials_bytes = SaturatingMul(SaturatingMul(piece.chunks, piece.sum_values()), numbers * sizeof(double));
}

NormPiece NormPieceOf(const NormRopeCall& call, std::size_t index) {
  const SegmentCall& segment = call.segments[index];
  const auto strides = [&](int operand) { return StridesOf(segment, call.forward, operand); };
  NormPiece piece;
  piece.segment = index;
  piece.forward = call.forward;
  piece.type = segment.views[Operand::kIn].dtype;
  piece.subtracts_mean = IsLayerNorm(segment.norm_type);
  piece.wants_dweight = segment.given[Operand::kDweight];
  piece.wants_dbias = segment.given[Operand::kDbias];
  piece.eps = segment.eps;
  piece.batch = segment.batch;
  piece.sequence = segment.sequence;
  piece.heads = segment.heads;
  piece.head_dim = segment.head_dim;
  piece.parts = PartsOf(segment);
  if (segment.rotates) {
    piece.table_type = segment.views[Operand::kCos].dtype;
    piece.rope_first = segment.rope_first;
    piece.rope_rows = segment.rope_rows;
    piece.cos = strides(Operand::kCos);
    piece.sin = strides(Operand::kSin);
  }
  piece.heads_share_tables = piece.cos.heads == 0 && piece.sin.heads == 0;
  piece.swaps_pairs = segment.rotates && segment.options.mode == RotaryMode::kInterleaveHalf;
  piece.in = strides(Operand::kIn);
  piece.x = call.forward ? piece.in : strides(Operand::kX);
  piece.out = strides(Operand::kOut);
  piece.mean = strides(Operand::kMean);
  piece.rstd = strides(Operand::kRstd);
  const int parameters[] = {Operand::kWeight, Operand::kBias, Operand::kDweight, Operand::kDbias};
  for (int i = 0; i < 4; ++i) {
    if (!segment.given[parameters[i]]) continue;
    piece.weight_type = segment.views[parameters[i]].dtype;
    piece.parameter_strides[i] = segment.views[parameters[i]].strides[0];
  }
  for (const RowPart& part : piece.parts) {
    piece.values = SaturatingAdd(piece.values, part.padded());
    if (part.turns) piece.turned_values = SaturatingAdd(piece.turned_values, part.padded());
  }
  CutPositions(piece);
  PlanScratch(piece);
  return piece;
}

// ---- a segment without norm

// Positions begin .. end - 1 of two [batch, sequence, heads, channels] operands.
void AddCopy(const NormRopeCall& call, std::size_t index, std::int64_t begin, std::int64_t end,
             std::vector<CopyPiece>& copies) {
  const SegmentCall& segment = call.segments[index];
  if (begin == end || segment.head_dim == 0) return;
  const RowStrides in = StridesOf(segment, call.forward, Operand::kIn);
  const RowStrides out = StridesOf(segment, call.forward, Operand::kOut);
  CopyPiece copy;
  copy.segment = index;
  copy.element_bytes = SizeOf(segment.views[Operand::kIn].dtype);
  copy.in_offset = begin * in.sequence;
  copy.out_offset = begin * out.sequence;
  // A position's heads may lie one behind the other: then they are one row.
  std::vector<Axis<2>> inner = {{segment.heads, {in.heads, out.heads}},
                                {segment.head_dim, {in.channels, out.channels}}};
  MergeAxes(inner);
  if (!inner.empty()) {
    copy.row = inner.back();
    inner.pop_back();
  }
  copy.outer = {{segment.batch, {in.batch, out.batch}}, {end - begin, {in.sequence, out.sequence}}};
  MergeAxes(copy.outer);
  copy.outer.insert(copy.outer.end(), inner.begin(), inner.end());
  for (const Axis<2>& axis : copy.outer) copy.rows *= axis.extent;
  const std::int64_t row_bytes = SaturatingMul(copy.row.extent, 2 * static_cast<std::int64_t>(copy.element_bytes));
  copy.block_rows = std::max<std::int64_t>(1, kBlockBytes / row_bytes);
  // Rows far apart: the next step of the second loop is read soon.
  if (copy.outer.size() > 1 && copy.row.strides[0] == 1) copy.ahead = copy.outer[copy.outer.size() - 2].strides[0];
  copies.push_back(std::move(copy));
}

// A [B, N, S, D] view (a table: its extents may be 1, or it is [L, R]) as [B, S, N, D], from position `first` on,
// `length` of them.
struct Turned {
  std::array<std::int64_t, 4> shape;
  std::array<std::int64_t, 4> strides;
  std::int64_t offset;  // bytes

  Turned(const ConstTensorView& view, bool heads_first, std::int64_t first, std::int64_t length) : offset(0) {
    if (view.shape.size() == 2) {
      shape = {1, length, 1, view.shape[1]};
      strides = {0, view.strides[0], 0, view.strides[1]};
      return;
    }
    const int sequence = heads_first ? 2 : 1;
    shape = {view.shape[0], length, view.shape[3 - sequence], view.shape[3]};
    strides = {view.strides[0], view.strides[sequence], view.strides[3 - sequence], view.strides[3]};
    offset = first * view.strides[sequence] * static_cast<std::int64_t>(SizeOf(view.dtype));
  }
};

// The positions that turn, as a rotary call without sums.
void AddRotary(const NormRopeCall& call, std::size_t index, std::optional<StoreWay> forced, NormRopePlanData& plan) {
  const SegmentCall& segment = call.segments[index];
  const std::array<std::array<int, 2>, 4> operands = {
      {{Operand::kIn, kIn}, {Operand::kOut, kOut}, {Operand::kCos, kCos}, {Operand::kSin, kSin}}};
  RotaryCall rotary;
  rotary.forward = call.forward;
  rotary.options = segment.options;
  rotary.execution = call.execution;
  RotaryPiece piece;
  piece.segment = index;
  std::vector<Turned> views;
  views.reserve(operands.size());
  for (const auto& [from, to] : operands) {
    const ConstTensorView& view = segment.views[from];
    const bool table = from == Operand::kCos || from == Operand::kSin;
    views.emplace_back(view, HeadsFirst(call.forward, from), table ? 0 : segment.rope_first, segment.rope_rows);
    rotary.views[to] = {nullptr, view.dtype, views.back().shape, views.back().strides};
    rotary.given[to] = true;
    piece.offsets[to] = views.back().offset;
  }
  piece.plan = MakeRotaryPlan(rotary, plan.bytes_moved, {.stores = forced});
  plan.rotaries.push_back(std::move(piece));
}

// ---- all

std::int64_t BytesMoved(const NormRopeCall& call) {
  std::int64_t bytes = 0;
  for (const SegmentCall& segment : call.segments) {
    for (const int operand : {Operand::kIn, Operand::kX, Operand::kOut}) {
      if (segment.given[operand]) bytes = SaturatingAdd(bytes, ElementBytes(segment.views[operand]));
    }
  }
  return bytes;
}

void AddPieces(const NormRopeCall& call, std::size_t index, std::optional<StoreWay> forced, NormRopePlanData& plan) {
  const SegmentCall& segment = call.segments[index];
  if (!segment.wants_outputs(call.forward)) return;
  const bool statistics = call.forward && (segment.given[Operand::kMean] || segment.given[Operand::kRstd]);
  if (segment.head_dim == 0 && !statistics) return;  // nothing to write
  if (!segment.has_rows()) {
    if (segment.given[Operand::kDweight] || segment.given[Operand::kDbias]) plan.zero_sums.push_back(index);
    return;
  }
  if (IsNorm(segment.norm_type)) {
    plan.norms.push_back(NormPieceOf(call, index));
    return;
  }
  const bool turns = segment.rotates && segment.rope_rows > 0;
  const std::int64_t first = turns ? segment.rope_first : 0;
  const std::int64_t last = turns ? first + segment.rope_rows : 0;
  AddCopy(call, index, 0, first, plan.copies);
  if (turns && segment.head_dim > 0) AddRotary(call, index, forced, plan);
  AddCopy(call, index, last, segment.sequence, plan.copies);
}

std::int64_t Blocks(const NormRopePlanData& plan) {
  std::int64_t blocks = 0;
  for (const NormPiece& piece : plan.norms) blocks += piece.chunks;
  for (const RotaryPiece& piece : plan.rotaries)
    blocks += piece.plan->chunks * piece.plan->tiles * piece.plan->segments;
  for (const CopyPiece& piece : plan.copies) blocks += piece.blocks();
  return blocks;
}

// Gives every piece its part of the workspace, in whole cache lines.
void PlanWorkspace(NormRopePlanData& plan) {
  std::int64_t end = 0;
  const auto take = [&end](std::int64_t bytes) {
    const std::int64_t begin = end;
    end = SaturatingAdd(end, RoundUp(bytes, kWorkspaceAlignment));
    return begin;
  };
  for (NormPiece& piece : plan.norms) {
    piece.partials_at = take(piece.partials_bytes);
    if (piece.scratch_bytes > kStackScratchBytes) {
      plan.scratch_bytes = std::max(plan.scratch_bytes, RoundUp(piece.scratch_bytes, kWorkspaceAlignment));
    }
  }
  plan.scratch_at = take(SaturatingMul(plan.scratch_bytes, plan.num_threads));
  for (RotaryPiece& piece : plan.rotaries) {
    const auto row_buffer = static_cast<std::int64_t>(piece.plan->row_buffer_bytes);
    piece.workspace_at = take(SaturatingMul(row_buffer, plan.num_threads));
  }
  // Room to align.
  plan.workspace_bytes = end == 0 ? 0 : static_cast<std::size_t>(SaturatingAdd(end, kWorkspaceAlignment - 1));
}

}  // namespace

std::int64_t CopyPiece::blocks() const { return CeilDiv(rows, block_rows); }

std::int64_t RowPart::padded() const { return SaturatingMul(members(), RoundUp(count, kPad)); }

WayList<StoreWay, NormRopePlanData> NormStoreWays() {
  constexpr auto kPasses = [](const NormRopePlanData& plan) {
    return plan.kernels->streams && plan.bytes_moved / 2 >= LastLevelCacheBytes();
  };
  static constexpr WayEntry<StoreWay, NormRopePlanData> kWays[] = {
      {StoreWay::kStreamed, "past the cache where lines are whole", Always, kPasses},
      {StoreWay::kCached, "through the cache", Always, Always},
  };
  return kWays;
}

std::shared_ptr<const NormRopePlanData> MakeNormRopePlan(const NormRopeCall& call, std::optional<StoreWay> forced) {
  auto owned = std::make_shared<NormRopePlanData>();
  NormRopePlanData& plan = *owned;
  plan.call = call;
  plan.call.Detach();
  plan.kernels = FindNormRopeKernels(call.execution.cpu_target);
  plan.bytes_moved = BytesMoved(call);
  for (std::size_t i = 0; i < call.segments.size(); ++i) AddPieces(call, i, forced, plan);
  const StoreWay stores = ChooseWay(NormStoreWays(), plan, forced);
  for (NormPiece& piece : plan.norms) piece.stores = stores;
  for (CopyPiece& piece : plan.copies) piece.stores = stores;
  plan.num_threads = ThreadsFor(plan.bytes_moved, Blocks(plan), call.execution.num_threads);
  PlanWorkspace(plan);
  return owned;
}

// ---- words

namespace {

std::string Count(std::int64_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string DescribeNorm(const NormRopeCall& call, const NormPiece& piece) {
  const SegmentCall& segment = call.segments[piece.segment];
  std::string text = "segment " + std::to_string(piece.segment) + ": norm " + Name(segment.norm_type);
  text += ", " + Count(piece.positions(), "position", "positions") + " x " + Count(piece.heads, "head", "heads") +
          " x " + std::to_string(piece.head_dim) + " channels, ";
  text += Count(static_cast<std::int64_t>(piece.parts.size()), "part", "parts") + " a row";
  if (piece.turned_values > 0) {
    text += ", positions " + std::to_string(piece.rope_first) + " to " +
            std::to_string(piece.rope_first + piece.rope_rows - 1) + " turn (" + Name(segment.options.mode) + ")";
  }
  text += "\n  " + Count(piece.chunks, "chunk", "chunks") + " of " +
          Count(piece.chunk_positions, "position", "positions") + ", " + Count(piece.visit_rows, "row", "rows") +
          " a visit, stores " + NameOf(NormStoreWays(), piece.stores) + "\n";
  return text;
}

// What the plan of a piece says beyond what its segment and the whole plan say: indented, without the whole's lines.
std::string DescribeRotary(const RotaryPiece& piece) {
  const std::string all = Describe(*piece.plan);
  std::string text = "segment " + std::to_string(piece.segment) + ": no norm, turning positions\n";
  for (std::string_view rest = all; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    if (line.starts_with("target: ") || line.starts_with("threads: ") || line.starts_with("workspace: ")) continue;
    text.append("  ").append(line);
  }
  return text;
}

}  // namespace

std::string Describe(const NormRopePlanData& plan) {
  std::string text = std::string(plan.call.name) + ", " +
                     Count(static_cast<std::int64_t>(plan.call.segments.size()), "segment", "segments") + "\n";
  text += std::string("target: ") + plan.kernels->name + "\n";
  for (const NormPiece& piece : plan.norms) text += DescribeNorm(plan.call, piece);
  for (const RotaryPiece& piece : plan.rotaries) text += DescribeRotary(piece);
  for (const CopyPiece& piece : plan.copies) {
    text += "segment " + std::to_string(piece.segment) + ": " + Count(piece.rows, "row", "rows") + " copied\n";
  }
  text += "threads: " + std::to_string(plan.num_threads) + "\nworkspace: " + std::to_string(plan.workspace_bytes) +
          " bytes\n";
  return text;
}

}  // namespace gyrograd::internal
