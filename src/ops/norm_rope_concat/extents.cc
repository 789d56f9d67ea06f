// Extents of a joint call, read off its views.
#include "ops/norm_rope_concat/extents.h"

#include <algorithm>

namespace gyrograd::internal {
namespace {

using Operand = NormRopeOperand;

const ConstTensorView* PointerTo(const std::optional<ConstTensorView>& view) { return view ? &*view : nullptr; }

// What the stream's own views say: x, else its gradient. They are [B, S, N, D].
void AskStream(const NormRopeConcatCall& call, int stream, Length& length) {
  for (const int operand : {call.x_operand(), static_cast<int>(Operand::kOut)}) {
    const auto& view = call.own[stream][operand];
    if (length.source == nullptr && HasRank4(view)) {
      length = {view->shape[1], call.names(stream).operands[operand]};
    }
  }
}

}  // namespace

Rows JointRowsOf(const NormRopeConcatCall& call, int joint) {
  return {call.joint_argument(joint), PointerTo(call.joints[joint]), true};
}

Rows StreamRowsOf(const NormRopeConcatCall& call, int stream) {
  return {call.argument(kStreamNames[stream]), PointerTo(call.own[stream][call.x_operand()]), false};
}

Rows ModelOf(const NormRopeConcatCall& call, int joint) {
  const Rows whole = JointRowsOf(call, joint);
  if (!call.forward || whole.view == nullptr) return whole;
  for (const int stream : {2 * joint, 2 * joint + 1}) {
    if (const Rows rows = StreamRowsOf(call, stream); rows.view != nullptr) return rows;
  }
  return whole;
}

Length StatedLength(const NormRopeConcatCall& call, int stream) {
  Length length;
  const bool encoder = IsEncoder(stream);
  if (JointOf(stream) == 0) {
    AskStream(call, stream, length);
  } else {
    AskStream(call, 2 + encoder, length);
    AskStream(call, 4 + encoder, length);
  }
  return length;
}

std::int64_t JointLength(const NormRopeConcatCall& call, int joint) {
  const Rows rows = JointRowsOf(call, joint);
  return rows.has_rank_4() ? rows.sequence() : 0;
}

Lengths LengthsOf(const NormRopeConcatCall& call, int joint) {
  Lengths lengths{StatedLength(call, 2 * joint), StatedLength(call, 2 * joint + 1)};
  const std::int64_t rows = JointLength(call, joint);
  if (lengths.image.source == nullptr && lengths.encoder.rows <= rows) lengths.image.rows = rows - lengths.encoder.rows;
  return lengths;
}

Span SpanOf(const NormRopeConcatCall& call, int stream) {
  const std::int64_t joint = std::max<std::int64_t>(JointLength(call, JointOf(stream)), 0);
  const std::int64_t image = std::clamp<std::int64_t>(LengthsOf(call, JointOf(stream)).image.rows, 0, joint);
  const bool encoder_first = call.options.concat_order == ConcatOrder::kEncoderFirst;
  if (IsEncoder(stream)) return {encoder_first ? 0 : image, joint - image};
  return {encoder_first ? joint - image : 0, image};
}

bool IsTable(const std::optional<ConstTensorView>& view) {
  return view && IsTableRank(view->shape.size()) && view->strides.size() == view->shape.size();
}

}  // namespace gyrograd::internal
