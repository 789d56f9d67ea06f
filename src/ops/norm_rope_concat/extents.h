// What the views of a joint call, however wrong, say of its extents: how long the streams are, where they lie in their
// joint sequence, and whose batch, heads and channels the others follow.
#ifndef GYROGRAD_OPS_NORM_ROPE_CONCAT_EXTENTS_H_
#define GYROGRAD_OPS_NORM_ROPE_CONCAT_EXTENTS_H_

#include <cstdint>
#include <optional>

#include "ops/norm_rope_concat/call.h"

namespace gyrograd::internal {

inline bool HasRank4(const std::optional<ConstTensorView>& view) { return view && view->shape.size() == 4; }

// ---- rows

// A view of rows, [B, N, S, D] or [B, S, N, D], and what messages call it. The extents need rank 4.
struct Rows {
  Argument argument;
  const ConstTensorView* view = nullptr;
  bool heads_first = false;

  bool has_rank_4() const { return view != nullptr && view->shape.size() == 4; }
  std::int64_t batch() const { return view->shape[0]; }
  std::int64_t heads() const { return view->shape[heads_first ? 1 : 2]; }
  std::int64_t sequence() const { return view->shape[heads_first ? 2 : 1]; }
  std::int64_t head_dim() const { return view->shape[3]; }
};

// The joint view, and the x of a stream; without a view where it was not given.
Rows JointRowsOf(const NormRopeConcatCall& call, int joint);
Rows StreamRowsOf(const NormRopeConcatCall& call, int stream);

// Whose batch, heads and channels a joint sequence has: the incoming gradient's; forward the first stream's, or the
// output's where no stream is given. Without a view where nothing is asked of the joint sequence.
Rows ModelOf(const NormRopeConcatCall& call, int joint);

// ---- lengths

// The rows of a stream, and the argument that says so; null where none does.
struct Length {
  std::int64_t rows = 0;
  const char* source = nullptr;
};

// Value's lengths are key's: each tells the other's.
Length StatedLength(const NormRopeConcatCall& call, int stream);

// The joint view's sequence extent; 0 where it has none.
std::int64_t JointLength(const NormRopeConcatCall& call, int joint);

// The lengths of a joint sequence's two streams. An encoder stream that nothing speaks of has none; an image stream has
// what is left.
struct Lengths {
  Length image, encoder;

  // No overflow: a joint sequence that could not hold the encoder stream is refused without adding.
  bool SumTo(std::int64_t rows) const {
    return image.rows >= 0 && encoder.rows >= 0 && encoder.rows <= rows && image.rows == rows - encoder.rows;
  }
};

Lengths LengthsOf(const NormRopeConcatCall& call, int joint);

// Where a stream lies in its joint sequence; inside it, whatever the lengths say.
struct Span {
  std::int64_t start = 0;
  std::int64_t rows = 0;
};

Span SpanOf(const NormRopeConcatCall& call, int stream);

// ---- tables

// A table whose rows can be told: [L, R] or rank 4, with as many strides.
bool IsTable(const std::optional<ConstTensorView>& view);

// L.
inline std::int64_t TableRows(const ConstTensorView& table) { return table.shape[table.shape.size() - 2]; }

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_CONCAT_EXTENTS_H_
