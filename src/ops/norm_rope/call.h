// A call of norm + rotary as data: a list of segments, their views, and the addresses of a run. Forward and backward
// are one call with two directions; norm_rope_concat makes the same call of its streams.
#ifndef GYROGRAD_OPS_NORM_ROPE_CALL_H_
#define GYROGRAD_OPS_NORM_ROPE_CALL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/strides.h"
#include "gyrograd/norm_rope.h"
#include "ops/argument.h"

namespace gyrograd::internal {

// The tensors of a segment. Backward: kIn is dy, kX is x, kOut is dx. Forward: kIn is x, kOut is y, and kMean and kRstd
// are outputs too.
struct NormRopeOperand {
  enum Index : int { kIn, kX, kWeight, kBias, kMean, kRstd, kCos, kSin, kOut, kDweight, kDbias };
};
inline constexpr int kNormRopeOperands = 11;

inline constexpr bool IsNorm(NormType type) { return type >= NormType::kLayer && type <= NormType::kRmsAffine; }
inline constexpr bool IsLayerNorm(NormType type) { return type == NormType::kLayer || type == NormType::kLayerAffine; }
inline constexpr bool IsAffine(NormType type) { return type == NormType::kLayerAffine || type == NormType::kRmsAffine; }

inline constexpr bool IsNormRopeOutput(bool forward, int operand) {
  return operand >= NormRopeOperand::kOut ||
         (forward && (operand == NormRopeOperand::kMean || operand == NormRopeOperand::kRstd));
}

// What messages call a segment's arguments.
struct NormRopeNames {
  std::array<const char*, kNormRopeOperands> operands;
  const char* norm_type;
  const char* eps;
  const char* rotation;  // stands before "mode", "rotary_dim", "rotary_offset"
  const char* first;     // of the rotation's positions
};

inline ConstTensorView ViewOf(const ConstTensorView& view) { return view; }
inline ConstTensorView ViewOf(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

inline bool IsTableRank(std::size_t rank) { return rank == 2 || rank == 4; }

struct SegmentCall {
  NormType norm_type = NormType::kNone;
  double eps = 0;
  bool rotates = false;  // cos and sin are given; they may have no rows
  RotaryOptions options;
  std::int64_t rope_first = 0;
  std::int64_t rope_rows = 0;  // of the tables, which are [L, R] or of rank 4
  // Of `model`; zeros where its rank is not 4.
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  int model = NormRopeOperand::kIn;  // whose shape the others must have
  const char* model_name = nullptr;  // the argument that tells it; null: the operand's own name
  // What the norm does not use is not given. The spans belong to the caller, or to the call's `extents`.
  std::array<ConstTensorView, kNormRopeOperands> views;
  std::array<bool, kNormRopeOperands> given = {};
  std::array<ByteRange, kNormRopeOperands> bytes = {};  // BytesOf(views[i]), for given views that passed it
  const NormRopeNames* names = nullptr;
  // For norm_rope_concat: which stream this is, which tables it reads, and how far from the data of the caller's view
  // that of each view lies.
  int stream = 0;
  int table = 0;  // of the call's pairs of tables
  std::array<std::int64_t, kNormRopeOperands> offsets = {};

  // Gives the segment one more view, unless its norm (set before) does not use it.
  void Give(bool forward, int operand, const ConstTensorView& view);

  bool has_rows() const { return batch != 0 && sequence != 0 && heads != 0; }
  bool wants_outputs(bool forward) const;
  std::int64_t rotary_dim() const { return options.rotary_dim.value_or(head_dim); }
};

struct NormRopeCall {
  bool forward = false;
  bool listed = true;  // the caller knows of segments: messages name them by their index
  const char* name = "";
  std::vector<SegmentCall> segments;
  Execution execution;
  std::shared_ptr<std::int64_t[]> extents;  // shapes and strides that are not the caller's

  static NormRopeCall From(const NormRopeBackwardArgs& args);
  static NormRopeCall From(const NormRopeArgs& args);

  bool IsOutput(int operand) const { return IsNormRopeOutput(forward, operand); }
  Argument argument(std::size_t segment, int operand) const { return named(segment, names(segment).operands[operand]); }
  Argument named(std::size_t segment, const char* text) const {
    return {name, text, listed ? static_cast<std::int64_t>(segment) : -1};
  }
  // Whose shape the segment's other operands must have.
  Argument model_argument(std::size_t segment) const {
    const SegmentCall& s = segments[segment];
    return s.model_name == nullptr ? argument(segment, s.model) : named(segment, s.model_name);
  }
  const NormRopeNames& names(std::size_t segment) const { return *segments[segment].names; }

  // Copies every shape and stride and forgets the data, so that the call outlives its arguments.
  void Detach();
};

// The first refusal of rule(segment index, operand) over all given operands.
template <class Rule>
Status ForEachGiven(const NormRopeCall& call, const Rule& rule) {
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    for (int operand = 0; operand < kNormRopeOperands; ++operand) {
      if (!call.segments[i].given[operand]) continue;
      if (Status status = rule(i, operand); !status.ok()) return status;
    }
  }
  return Status();
}

// The addresses of a run, read where the caller keeps them. Only those of given operands mean something.
struct NormRopeAddresses {
  const void* source;
  const void* (*at)(const void* source, std::size_t segment, int operand);

  const void* operator()(std::size_t segment, int operand) const { return at(source, segment, operand); }
};

using NormRopePointerRow = std::array<const void*, kNormRopeOperands>;

// Each refers to what it is made of.
NormRopeAddresses AddressesOf(const NormRopeCall& call);
NormRopeAddresses AddressesOf(std::span<const NormRopeBackwardPointers> pointers);
NormRopeAddresses AddressesOf(std::span<const NormRopePointers> pointers);
NormRopeAddresses AddressesOf(std::span<const NormRopePointerRow> pointers);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_CALL_H_
