// The rules that hold of any tensor, type or option of any operator, and the words that refuse them.
#ifndef GYROGRAD_OPS_ARGUMENT_H_
#define GYROGRAD_OPS_ARGUMENT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/strides.h"
#include "gyrograd/execution.h"
#include "gyrograd/rotary.h"
#include "gyrograd/status.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::internal {

// An argument as messages name it: "norm_rope_backward: segments[1].x". Text is made only when something is refused.
struct Argument {
  const char* operator_name;
  const char* name;
  std::int64_t segment = -1;  // its place in the list, for an operator that takes one

  // "segments[1].x".
  std::string text() const;
  // "norm_rope_backward: segments[1].x" + rest.
  Status Refuse(StatusCode code, const std::string& rest) const;
  // "norm_rope_backward: segments[1].x has shape [2, 3]; " + rule.
  Status RefuseShape(const ConstTensorView& view, const std::string& rule) const;
};

// Stands before the hint that ends a message where a likely intent is visible.
inline constexpr std::string_view kHint = "; hint: ";

// ---- null

Status ValidateNotNull(const Argument& argument, Extents shape, const void* data);

// ---- types

Status ValidateKnownType(const Argument& argument, DType type);
Status ValidateSameType(const Argument& argument, DType type, const Argument& model, DType model_type);
// The model's type, or f32 beside f16 and bf16.
Status ValidateCompanionType(const Argument& argument, DType type, const Argument& model, DType model_type);

// ---- attributes

// What divides a row that turns: 2, in quarter mode 4.
std::int64_t RowMultiple(RotaryMode mode);

// `prefix` is what stands before the options' names, such as "options.".
Status ValidateMode(const Argument& prefix, RotaryMode mode);
// rotary_dim and rotary_offset lie in a row of `width`.
Status ValidateRotaryDim(const Argument& prefix, const RotaryOptions& options, const Argument& row, std::int64_t width);
Status ValidateExecution(const char* operator_name, const Execution& execution);

// ---- shapes

// As many strides as extents, no extent negative, every size within 64 bits.
Status ValidateSize(const Argument& argument, const ConstTensorView& view);
Status ValidateSameShape(const Argument& argument, const ConstTensorView& view, const Argument& model,
                         const ConstTensorView& model_view);
// A row that turns whole divides by RowMultiple.
Status ValidateRowWidth(const Argument& row, const ConstTensorView& view, const RotaryOptions& options);
// The last extent of a table, beside a row of `width`.
Status ValidateTableWidth(const Argument& table, const ConstTensorView& view, const RotaryOptions& options,
                          const Argument& row, std::int64_t width);

// ---- memory

// No two elements of an output share a byte.
Status ValidateOwnElements(const Argument& output, const ConstTensorView& view);
Status ValidateAlignment(const Argument& argument, const ConstTensorView& view, const void* data);
// An output shares no byte with another operand; where it may alias, no byte but the same elements'.
Status ValidateSharing(const Argument& output, const ConstTensorView& a, const Argument& other,
                       const ConstTensorView& b, bool may_alias);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_ARGUMENT_H_
