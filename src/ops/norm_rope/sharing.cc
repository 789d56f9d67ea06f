// The rules of memory: addresses are aligned, and outputs share bytes with nothing but what they may lie on.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "ops/norm_rope/validate.h"

namespace gyrograd::internal {
namespace {

using Operand = NormRopeOperand;

__extension__ using Wide = __int128;  // addresses and reaches never overflow it

// The bytes between an output's first and last, and who it is: segment * kNormRopeOperands + operand.
struct OutputBytes {
  Wide low;
  Wide high;
  Wide highest;  // of this and all that start before
  std::size_t id;
};

constexpr std::size_t kOutputsAtOnce = 64;

ConstTensorView At(const NormRopeCall& call, const NormRopeAddresses& data, std::size_t i, int operand) {
  ConstTensorView view = call.segments[i].views[operand];
  view.data = data(i, operand);
  return view;
}

// May an output lie exactly on this other operand of its segment?
bool MayAlias(const NormRopeCall& call, int output, int other) {
  if (output == Operand::kOut) return other == Operand::kIn || other == Operand::kX;
  return output == Operand::kDweight && other == Operand::kWeight && !call.forward;
}

// The operand's axes in the order of x, [B, S, N, D], so that its elements can be compared with those of x.
class InOrderOfX {
 public:
  explicit InOrderOfX(const ConstTensorView& view, bool transposed) : view_(view) {
    if (!transposed) return;
    for (int axis = 0; axis < 4; ++axis) {
      shape_[axis] = view.shape[kAxes[axis]];
      strides_[axis] = view.strides[kAxes[axis]];
    }
    view_.shape = shape_;
    view_.strides = strides_;
  }
  InOrderOfX(const InOrderOfX&) = delete;
  InOrderOfX& operator=(const InOrderOfX&) = delete;

  const ConstTensorView& view() const { return view_; }

 private:
  static constexpr int kAxes[4] = {0, 2, 1, 3};
  ConstTensorView view_;
  std::array<std::int64_t, 4> shape_ = {};
  std::array<std::int64_t, 4> strides_ = {};
};

Status ValidatePair(const NormRopeCall& call, const NormRopeAddresses& data, std::size_t output, std::size_t other) {
  const std::size_t i = output / kNormRopeOperands, j = other / kNormRopeOperands;
  const int a = static_cast<int>(output % kNormRopeOperands), b = static_cast<int>(other % kNormRopeOperands);
  const int transposed = call.forward ? Operand::kOut : Operand::kIn;
  const InOrderOfX first(At(call, data, i, a), a == transposed), second(At(call, data, j, b), b == transposed);
  return ValidateSharing(call.argument(i, a), first.view(), call.argument(j, b), second.view(),
                         i == j && MayAlias(call, a, b));
}

// Some outputs in the order of their first bytes: who meets a range of bytes is found without asking everyone.
class OutputList {
 public:
  bool full() const { return count_ == kOutputsAtOnce; }

  void Add(std::size_t id, Wide low, Wide high) { outputs_[count_++] = {low, high, high, id}; }

  void Sort() {
    std::sort(outputs_.begin(), outputs_.begin() + count_, [](const OutputBytes& a, const OutputBytes& b) {
      return std::pair(a.low, a.id) < std::pair(b.low, b.id);
    });
    for (std::size_t k = 1; k < count_; ++k) {
      outputs_[k].highest = std::max(outputs_[k].high, outputs_[k - 1].highest);
    }
  }

  template <class Body>
  void ForEachMeeting(Wide low, Wide high, const Body& body) const {
    const auto end = std::lower_bound(outputs_.begin(), outputs_.begin() + count_, high,
                                      [](const OutputBytes& output, Wide limit) { return output.low < limit; });
    for (auto it = end; it != outputs_.begin() && (it - 1)->highest > low; --it) {
      if ((it - 1)->high > low) body((it - 1)->id);
    }
  }

 private:
  std::array<OutputBytes, kOutputsAtOnce> outputs_;
  std::size_t count_ = 0;
};

// Calls body(id, low, high) for each given operand that has elements.
template <class Body>
void ForEachRange(const NormRopeCall& call, const NormRopeAddresses& data, std::size_t begin, const Body& body) {
  for (std::size_t id = begin; id < call.segments.size() * kNormRopeOperands; ++id) {
    const std::size_t i = id / kNormRopeOperands;
    const int operand = static_cast<int>(id % kNormRopeOperands);
    const SegmentCall& segment = call.segments[i];
    if (!segment.given[operand] || segment.bytes[operand].high == 0) continue;
    const Wide base = static_cast<Wide>(reinterpret_cast<std::uintptr_t>(data(i, operand)));
    if (!body(id, base + segment.bytes[operand].low, base + segment.bytes[operand].high)) return;
  }
}

// The outputs of `list` against everything; of several refusals that of the first output, with the first other.
Status ValidateOutputs(const NormRopeCall& call, const NormRopeAddresses& data, const OutputList& list) {
  Status refusal;
  std::pair<std::size_t, std::size_t> first(std::numeric_limits<std::size_t>::max(), 0);
  ForEachRange(call, data, 0, [&](std::size_t other, Wide low, Wide high) {
    const bool other_is_output = call.IsOutput(static_cast<int>(other % kNormRopeOperands));
    list.ForEachMeeting(low, high, [&](std::size_t output) {
      if (output == other || (other_is_output && other > output) || std::pair(output, other) > first) return;
      Status status = ValidatePair(call, data, output, other);
      if (status.ok()) return;
      first = {output, other};
      refusal = std::move(status);
    });
    return true;
  });
  return refusal;
}

}  // namespace

Status ValidateMemory(const NormRopeCall& call, const NormRopeAddresses& data) {
  const Status aligned = ForEachGiven(call, [&](std::size_t i, int operand) {
    return ValidateAlignment(call.argument(i, operand), call.segments[i].views[operand], data(i, operand));
  });
  if (!aligned.ok()) return aligned;
  for (std::size_t next = 0, end = call.segments.size() * kNormRopeOperands; next < end;) {
    OutputList list;
    std::size_t begin = next;
    next = end;
    ForEachRange(call, data, begin, [&](std::size_t id, Wide low, Wide high) {
      if (!call.IsOutput(static_cast<int>(id % kNormRopeOperands))) return true;
      if (list.full()) next = id;
      if (!list.full()) list.Add(id, low, high);
      return next == end;
    });
    list.Sort();
    if (Status status = ValidateOutputs(call, data, list); !status.ok()) return status;
  }
  return Status();
}

}  // namespace gyrograd::internal
