// The rules that hold of any tensor, type or option of any operator, and the words that refuse them.
#ifndef GYROGRAD_OPS_ARGUMENT_H_
#define GYROGRAD_OPS_ARGUMENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// ---- hints

// Stands before the hint that ends a message where a likely intent is visible.
inline constexpr std::string_view kHint = "; hint: ";

// The ways in which a table of lower rank may stand among a tensor's axes, its last `own_last` axes the last ones: for
// each of the tensor's axes whether the table has it, at extent 1 or the tensor's. Of all ways the first and the last,
// once where they make the same shape; none where there is no way.
std::vector<std::vector<bool>> TablePlacements(Extents in, Extents table, std::size_t own_last = 1);

// "such as A or B", out of what `write` makes of each placement; nothing where there is none.
template <class Write>
std::string SuchAs(const std::vector<std::vector<bool>>& placements, const Write& write) {
  std::string text;
  for (const std::vector<bool>& own : placements) text += (text.empty() ? ", such as " : " or ") + write(own);
  return text;
}

// Where a table of lower rank lacks axes of extent 1.
std::string HintOfRank(Extents in, Extents table, std::size_t own_last = 1);
// Where positions and heads, axes 1 and 2, stand in the other order.
std::string HintOfExchange(const Argument& argument);
// The same where `shape` is the wanted one with those axes exchanged: it, or what told the wanted one, may be meant.
std::string HintOfOrder(const Argument& argument, Extents shape, Extents wanted, const Argument& model);

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
