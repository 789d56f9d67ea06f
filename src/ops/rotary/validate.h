// The rules of the rotary operator: the only place that refuses. Forward and backward are one call with two directions.
#ifndef GYROGRAD_OPS_ROTARY_VALIDATE_H_
#define GYROGRAD_OPS_ROTARY_VALIDATE_H_

#include <array>
#include <cstdint>

#include "core/strides.h"
#include "gyrograd/rotary.h"
#include "ops/argument.h"

namespace gyrograd::internal {

// The tensors of a call, inputs first. Backward: kIn is dy, kOut is dx. Forward: kIn is x, kOut is y, and the other
// three are absent.
enum RotaryOperand : int { kIn, kX, kCos, kSin, kOut, kDcos, kDsin };
inline constexpr int kRotaryOperands = 7;
inline constexpr bool IsOutput(int operand) { return operand >= kOut; }

inline constexpr const char* kRotary = "rotary";
inline constexpr const char* kRotaryBackward = "rotary_backward";

struct RotaryCall {
  bool forward = false;
  std::array<ConstTensorView, kRotaryOperands> views;
  std::array<bool, kRotaryOperands> given = {};
  std::array<ByteRange, kRotaryOperands> bytes = {};  // BytesOf(views[i]), for given views that pass it
  RotaryOptions options;
  Execution execution;

  static RotaryCall From(const RotaryBackwardArgs& args);
  static RotaryCall From(const RotaryArgs& args);

  const char* name() const { return forward ? kRotary : kRotaryBackward; }
  bool wants_sums() const { return given[kDcos] || given[kDsin]; }
  std::int64_t rotary_dim() const { return options.rotary_dim.value_or(views[kIn].shape.back()); }
};

// One address an operand, null where the operand is absent.
using RotaryAddresses = std::array<const void*, kRotaryOperands>;

RotaryAddresses AddressesOf(const RotaryCall& call);

// Everything that can be said without addresses: types, attributes, missing arguments, shapes, and outputs whose own
// elements share memory.
Status ValidateViews(const RotaryCall& call);

// Everything that can be said of addresses, for views that passed ValidateViews.
Status ValidateNull(const RotaryCall& call, const RotaryAddresses& data);
Status ValidateMemory(const RotaryCall& call, const RotaryAddresses& data);

// All of it, in the order of StatusCode.
Status Validate(const RotaryCall& call);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ROTARY_VALIDATE_H_
