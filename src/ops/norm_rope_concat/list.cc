// The segments of a joint call.
#include "ops/norm_rope_concat/list.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>

#include "ops/norm_rope_concat/extents.h"

namespace gyrograd::internal {
namespace {

using Operand = NormRopeOperand;

bool IsGiven(const NormRopeConcatCall& call, int stream) {
  for (const auto& view : call.own[stream]) {
    if (view) return true;
  }
  return false;
}

// A stream is there where it may have rows, or was given anything.
bool IsThere(const NormRopeConcatCall& call, int stream) {
  if (!call.joints[JointOf(stream)]) return false;
  return !IsEncoder(stream) || IsGiven(call, stream) || SpanOf(call, stream).rows != 0;
}

// The slices' shapes.
class ExtentsStore {
 public:
  static constexpr std::size_t kPerSegment = 3 * 4;  // the joint view's and each table's

  explicit ExtentsStore(std::size_t segments)
      : memory_(new std::int64_t[segments * kPerSegment]), next_(memory_.get()) {}

  Extents Keep(std::initializer_list<std::int64_t> values) {
    std::copy(values.begin(), values.end(), next_);
    next_ += values.size();
    return Extents(next_ - values.size(), values.size());
  }
  const std::shared_ptr<std::int64_t[]>& memory() const { return memory_; }

 private:
  std::shared_ptr<std::int64_t[]> memory_;
  std::int64_t* next_;
};

// The bytes from a view's data to the start of a slice of it; 0 for one without elements, and where it would overflow
// (then the whole view is refused).
std::int64_t SliceOffset(const ConstTensorView& slice, std::int64_t start, std::int64_t stride) {
  std::int64_t offset;
  if (IsEmpty(slice.shape) || __builtin_mul_overflow(start, stride, &offset) ||
      __builtin_mul_overflow(offset, static_cast<std::int64_t>(SizeOf(slice.dtype)), &offset)) {
    return 0;
  }
  return offset;
}

const void* Shift(const void* data, std::int64_t offset) {
  if (data == nullptr) return nullptr;
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(offset));
}

void GiveSlice(SegmentCall& segment, bool forward, int operand, ConstTensorView slice, std::int64_t offset) {
  slice.data = Shift(slice.data, offset);
  segment.offsets[operand] = offset;
  segment.Give(forward, operand, slice);
}

void GiveJoint(const NormRopeConcatCall& call, SegmentCall& segment, ExtentsStore& store) {
  const int joint = JointOf(segment.stream);
  ConstTensorView slice = *call.joints[joint];
  std::int64_t offset = 0;
  if (slice.shape.size() == 4) {
    const Span span = SpanOf(call, segment.stream);
    const Rows model = ModelOf(call, joint), rows = model.has_rank_4() ? model : JointRowsOf(call, joint);
    segment.batch = rows.batch();
    segment.sequence = span.rows;
    segment.heads = rows.heads();
    segment.head_dim = rows.head_dim();
    segment.model_name = rows.argument.name;
    slice.shape = store.Keep({slice.shape[0], slice.shape[1], span.rows, slice.shape[3]});
    if (slice.strides.size() == 4) offset = SliceOffset(slice, span.start, slice.strides[2]);
  }
  GiveSlice(segment, call.forward, call.joint_operand(), slice, offset);
}

// Rows first .. first + rows - 1 of a table.
void GiveTableRows(const NormRopeConcatCall& call, SegmentCall& segment, int operand, const ConstTensorView& table,
                   std::int64_t first, ExtentsStore& store) {
  ConstTensorView slice = table;
  const Extents shape = table.shape;
  slice.shape = shape.size() == 2 ? store.Keep({segment.rope_rows, shape[1]})
                                  : store.Keep({shape[0], shape[1], segment.rope_rows, shape[3]});
  GiveSlice(segment, call.forward, operand, slice, SliceOffset(slice, first, slice.strides[shape.size() - 2]));
}

// The part of the tables that meets the stream.
void GiveRotation(const NormRopeConcatCall& call, SegmentCall& segment, ExtentsStore& store) {
  if (!call.options.rotary || IsValue(segment.stream)) return;
  segment.table = call.table_of(segment.stream);
  const auto &cos = call.tables[segment.table], &sin = call.tables[segment.table + 1];
  if (!IsTable(cos) || !IsTable(sin)) return;
  const std::int64_t start = call.has_encoder_tables() ? 0 : SpanOf(call, segment.stream).start;
  std::int64_t end;
  if (__builtin_add_overflow(call.options.rope_start, TableRows(*cos), &end)) return;
  const std::int64_t first = std::max(call.options.rope_start, start);
  end = std::min(end, start + segment.sequence);
  if (first >= end || call.options.rope_start < 0) return;
  segment.rotates = true;
  segment.options = *call.options.rotary;
  segment.rope_first = first - start;
  segment.rope_rows = end - first;
  GiveTableRows(call, segment, Operand::kCos, *cos, first - call.options.rope_start, store);
  GiveTableRows(call, segment, Operand::kSin, *sin, first - call.options.rope_start, store);
}

SegmentCall SegmentOf(const NormRopeConcatCall& call, int stream, ExtentsStore& store) {
  SegmentCall segment;
  segment.stream = stream;
  segment.norm_type = call.norm_type(stream);
  segment.eps = call.eps;
  segment.names = &call.names(stream);
  segment.model = call.joint_operand();
  GiveJoint(call, segment, store);
  for (int operand = 0; operand < kNormRopeOperands; ++operand) {
    if (call.own[stream][operand]) segment.Give(call.forward, operand, *call.own[stream][operand]);
  }
  GiveRotation(call, segment, store);
  return segment;
}

}  // namespace

NormRopeCall ListOf(const NormRopeConcatCall& call) {
  NormRopeCall list;
  list.forward = call.forward;
  list.listed = false;
  list.name = call.name;
  list.execution = call.execution;
  list.segments.reserve(kStreams);
  ExtentsStore store(kStreams);
  for (int stream = 0; stream < kStreams; ++stream) {
    if (IsThere(call, stream)) list.segments.push_back(SegmentOf(call, stream, store));
  }
  list.extents = store.memory();
  return list;
}

NormRopeConcatPointers PointersOf(const NormRopeCall& planned, const NormRopeConcatCall& call) {
  NormRopeConcatPointers pointers = {};
  for (std::size_t i = 0; i < planned.segments.size(); ++i) {
    const SegmentCall& segment = planned.segments[i];
    for (int operand = 0; operand < kNormRopeOperands; ++operand) {
      if (!segment.given[operand]) continue;
      const auto& view = operand == call.joint_operand() ? call.joints[JointOf(segment.stream)]
                         : operand == Operand::kCos      ? call.tables[segment.table]
                         : operand == Operand::kSin      ? call.tables[segment.table + 1]
                                                         : call.own[segment.stream][operand];
      if (view) pointers[i][operand] = Shift(view->data, segment.offsets[operand]);
    }
  }
  return pointers;
}

}  // namespace gyrograd::internal
