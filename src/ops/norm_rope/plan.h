// The plan of a list of segments: pieces of work that know nothing of users, and how they share the threads.
//
// A segment with a norm is one piece: rows under positions, turned or not, joined by their row sums. A segment without
// norm is a rotary call on its turning positions and a copy of the others. All pieces' blocks are numbered one after
// the other and shared by the threads as one.
#ifndef GYROGRAD_OPS_NORM_ROPE_PLAN_H_
#define GYROGRAD_OPS_NORM_ROPE_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/partition.h"
#include "ops/norm_rope/call.h"
#include "ops/norm_rope/kernels.h"
#include "ops/rotary/plan.h"
#include "ops/rotary/ways.h"

namespace gyrograd::internal {

// Where channel m of pair p stands in a row: offset + p * pair_step + m * member_step.
struct ChannelMap {
  std::int64_t offset = 0;
  std::int64_t pair_step = 1;
  std::int64_t member_step = 0;

  // The same places in a row of this stride, from the row's first channel on.
  PairMap Scaled(std::int64_t stride) const { return {offset * stride, pair_step * stride, member_step * stride}; }
};

// Some channels of a row: pairs that turn at the positions that have a table row, or channels that never do.
struct RowPart {
  bool turns = false;
  std::int64_t count = 0;  // pairs, or channels
  ChannelMap x, y, table;  // of channels: x alone counts

  int members() const { return turns ? 2 : 1; }
  // Room for one value of every channel, in steps of any kernel's vectors.
  std::int64_t padded() const;
};

// Strides of a [batch, sequence, heads, channels] operand, in elements, in this order whatever the view's.
struct RowStrides {
  std::int64_t batch = 0, sequence = 0, heads = 0, channels = 1;
};

// The order of a piece's sums over rows: positions (batch, sequence) in row-major order are cut into chunks; a chunk's
// rows (position, head) are added in runs of 16 in the arithmetic type, runs in f64 (f64: with compensation), chunks in
// index order.
struct NormPiece {
  static constexpr std::int64_t kRunRows = 16;

  std::size_t segment = 0;
  DType type = DType::kF32, weight_type = DType::kF32, table_type = DType::kF32;
  bool forward = false;
  bool subtracts_mean = false;  // layer norms
  bool wants_dweight = false, wants_dbias = false;
  double eps = 0;
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;
  std::int64_t rope_first = 0, rope_rows = 0;
  RowStrides in, x, out, mean, rstd;  // forward: x is in
  RowStrides cos, sin;                // `sequence`: from one table row to the next
  bool heads_share_tables = false;
  bool swaps_pairs = false;                            // turning pairs lie in other channels of x than of y
  std::array<std::int64_t, 4> parameter_strides = {};  // weight, bias, dweight, dbias
  std::vector<RowPart> parts;

  std::int64_t values = 0;         // room for a value of every channel: the parts' padded() together
  std::int64_t turned_values = 0;  // of those that turn
  std::int64_t chunks = 1;
  std::int64_t chunk_positions = 1;
  std::int64_t visit_rows = 1;
  StoreWay stores = StoreWay::kCached;

  std::int64_t scratch_bytes = 0;   // a thread's
  std::int64_t partials_at = 0;     // in the workspace
  std::int64_t partials_bytes = 0;  // [chunk][sum_values()], f64; f64 activations: their errors after them
  std::int64_t positions() const { return batch * sequence; }
  bool wants_sums() const { return wants_dweight || wants_dbias; }
  // Of f64 totals, which are two numbers each, half as many.
  std::int64_t max_chunks() const { return type == DType::kF64 ? 32 : 64; }
  // Totals of a chunk: those of dweight, then those of dbias, as far as they are wanted.
  std::int64_t sum_values() const { return SaturatingMul(values, wants_dweight + wants_dbias); }
};

// Rows without norm that do not turn, or the part of them that stands before or after those that do.
struct CopyPiece {
  std::size_t segment = 0;
  std::size_t element_bytes = 4;
  std::int64_t in_offset = 0, out_offset = 0;
  std::vector<Axis<2>> outer;  // loops over rows, merged; strides of in and out
  Axis<2> row = {1, {1, 1}};   // what lies along the innermost loop
  std::int64_t rows = 1;       // steps of the outer loops
  std::int64_t block_rows = 1;
  std::int64_t ahead = 0;  // from a row to the one that is read soon; 0: its neighbour, which needs no asking for
  StoreWay stores = StoreWay::kCached;

  std::int64_t blocks() const;
};

struct RotaryPiece {
  std::size_t segment = 0;
  std::shared_ptr<const RotaryPlanData> plan;
  std::array<std::int64_t, kRotaryOperands> offsets = {};  // in bytes, from the segment's operands
  std::int64_t workspace_at = 0;
};

struct NormRopePlanData {
  NormRopeCall call;             // detached
  std::int64_t bytes_moved = 0;  // of rows, in and out
  std::vector<NormPiece> norms;
  std::vector<RotaryPiece> rotaries;
  std::vector<CopyPiece> copies;
  std::vector<std::size_t> zero_sums;  // segments without rows whose dweight or dbias are wanted
  int num_threads = 1;
  std::int64_t scratch_at = 0;     // norm pieces' scratch memory, where it is too large for the stack
  std::int64_t scratch_bytes = 0;  // a thread's
  std::size_t workspace_bytes = 0;
  const NormRopeKernels* kernels = nullptr;
};

// Scratch memory up to this size is a kernel's stack.
inline constexpr std::int64_t kStackScratchBytes = 49152;
inline constexpr std::int64_t kWorkspaceAlignment = 64;

// How rows with norm, and rows that are copied, are written; the others have a rotary call's ways.
WayList<StoreWay, NormRopePlanData> NormStoreWays();

// call must have passed ValidateViews. `forced`: what a test wants of all rows.
std::shared_ptr<const NormRopePlanData> MakeNormRopePlan(const NormRopeCall& call,
                                                         std::optional<StoreWay> forced = std::nullopt);

std::string Describe(const NormRopePlanData& plan);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_PLAN_H_
