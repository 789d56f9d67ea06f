// Rules of single arguments, with their words.
#include "ops/argument.h"

#include <algorithm>
#include <charconv>

#include "core/dtype.h"
#include "core/overlap.h"
#include "ops/rotary/kernels.h"

namespace gyrograd::internal {

std::string Argument::text() const {
  return segment < 0 ? std::string(name) : "segments[" + std::to_string(segment) + "]." + name;
}

Status Argument::Refuse(StatusCode code, const std::string& rest) const {
  return Status(code, std::string(operator_name) + ": " + text() + rest);
}

Status Argument::RefuseShape(const ConstTensorView& view, const std::string& rule) const {
  return Refuse(StatusCode::kInvalidShape, " has shape " + ToString(view.shape) + "; " + rule);
}

// ---- hints

namespace {

// The first placement, or the last one; empty where there is none.
std::vector<bool> PlaceTable(Extents in, Extents table, std::size_t own_last, bool from_the_end) {
  if (in.size() < own_last || table.size() < own_last) return {};
  std::vector<bool> own(in.size(), false);
  const std::size_t axes = in.size() - own_last, wanted = table.size() - own_last;
  std::fill(own.begin() + static_cast<std::ptrdiff_t>(axes), own.end(), true);
  std::size_t placed = 0;
  for (std::size_t i = 0; i < axes && placed < wanted; ++i) {
    const std::size_t axis = from_the_end ? axes - 1 - i : i;
    const std::int64_t extent = table[from_the_end ? wanted - 1 - placed : placed];
    if (extent != 1 && extent != in[axis]) continue;
    own[axis] = true;
    ++placed;
  }
  return placed == wanted ? own : std::vector<bool>();
}

// The table's extents where it is placed, 1 elsewhere.
std::vector<std::int64_t> PlacedShape(Extents table, const std::vector<bool>& own) {
  std::vector<std::int64_t> shape;
  std::size_t taken = 0;
  for (const bool is_own : own) shape.push_back(is_own ? table[taken++] : 1);
  return shape;
}

}  // namespace

std::vector<std::vector<bool>> TablePlacements(Extents in, Extents table, std::size_t own_last) {
  std::vector<std::vector<bool>> placements;
  for (const bool from_the_end : {false, true}) {
    std::vector<bool> own = PlaceTable(in, table, own_last, from_the_end);
    if (own.empty()) return placements;
    if (!placements.empty() && PlacedShape(table, own) == PlacedShape(table, placements[0])) continue;
    placements.push_back(std::move(own));
  }
  return placements;
}

std::string HintOfRank(Extents in, Extents table, std::size_t own_last) {
  if (table.size() < own_last || table.size() > in.size()) return "";
  return std::string(kHint) + "add extents of 1" + SuchAs(TablePlacements(in, table, own_last), [&](const auto& own) {
           return ToString(PlacedShape(table, own));
         });
}

std::string HintOfExchange(const Argument& argument) {
  return std::string(kHint) + "exchange axes 1 and 2 of " + argument.text();
}

std::string HintOfOrder(const Argument& argument, Extents shape, Extents wanted, const Argument& model) {
  if (shape.size() != 4 || wanted.size() != 4) return "";
  const std::int64_t exchanged[] = {wanted[0], wanted[2], wanted[1], wanted[3]};
  if (!std::equal(shape.begin(), shape.end(), exchanged)) return "";
  return HintOfExchange(argument) + ", or of " + model.text();
}

// ---- null

Status ValidateNotNull(const Argument& argument, Extents shape, const void* data) {
  if (data != nullptr || IsEmpty(shape)) return Status();
  return argument.Refuse(StatusCode::kNullPointer,
                         " has no data (a null pointer); only a tensor without elements may have none");
}

Status ValidateKnownType(const Argument& argument, DType type) {
  if (IsDType(type)) return Status();
  return argument.Refuse(StatusCode::kInvalidType, " has the unknown type " + std::to_string(static_cast<int>(type)) +
                                                       "; it must be f64, f32, f16 or bf16");
}

namespace {

Status RefuseType(const Argument& argument, DType type, const Argument& model, DType model_type, const char* or_else) {
  return argument.Refuse(StatusCode::kInvalidType, std::string(" has type ") + Name(type) + "; it must be " +
                                                       model.text() + "'s, " + Name(model_type) + or_else);
}

}  // namespace

Status ValidateSameType(const Argument& argument, DType type, const Argument& model, DType model_type) {
  return type == model_type ? Status() : RefuseType(argument, type, model, model_type, "");
}

Status ValidateCompanionType(const Argument& argument, DType type, const Argument& model, DType model_type) {
  const bool narrow = model_type == DType::kF16 || model_type == DType::kBF16;
  if (type == model_type || (narrow && type == DType::kF32)) return Status();
  return RefuseType(argument, type, model, model_type, narrow ? ", or f32" : "");
}

std::int64_t RowMultiple(RotaryMode mode) { return mode == RotaryMode::kQuarter ? 4 : 2; }

Status ValidateMode(const Argument& prefix, RotaryMode mode) {
  const int value = static_cast<int>(mode);
  if (value >= 0 && value <= 3) return Status();
  return prefix.Refuse(
      StatusCode::kInvalidAttribute,
      "mode is " + std::to_string(value) + "; it must be 0 (half), 1 (interleave), 2 (quarter) or 3 (interleave-half)");
}

Status ValidateRotaryDim(const Argument& prefix, const RotaryOptions& options, const Argument& row,
                         std::int64_t width) {
  const std::int64_t dim = options.rotary_dim.value_or(width);
  const std::int64_t offset = options.rotary_offset;
  const auto refuse = [&](const std::string& text) { return prefix.Refuse(StatusCode::kInvalidAttribute, text); };
  if (options.rotary_dim && dim < 2 && !(dim == 0 && width == 0)) {
    return refuse("rotary_dim is " + std::to_string(dim) + "; it must be at least 2");
  }
  if (offset < 0) return refuse("rotary_offset is " + std::to_string(offset) + "; it must be at least 0");
  if (options.rotary_dim && dim % RowMultiple(options.mode) != 0) {
    return refuse("rotary_dim is " + std::to_string(dim) + "; in mode " + Name(options.mode) +
                  " it must be divisible by " + std::to_string(RowMultiple(options.mode)));
  }
  if (width >= 0 && (dim > width || offset > width - dim)) {
    return refuse("rotary_offset is " + std::to_string(offset) + " and rotary_dim is " + std::to_string(dim) +
                  "; their sum must be at most " + row.text() + "'s last extent, " + std::to_string(width));
  }
  return Status();
}

Status ValidateExecution(const char* operator_name, const Execution& execution) {
  if (execution.num_threads < 0) {
    return Argument{operator_name, "num_threads"}.Refuse(
        StatusCode::kInvalidAttribute, " is " + std::to_string(execution.num_threads) + "; it must be at least 0");
  }
  if (FindRotaryKernels(execution.cpu_target) == nullptr) {
    return Argument{operator_name, "cpu_target"}.Refuse(
        StatusCode::kInvalidAttribute,
        std::string(" is '") + Name(execution.cpu_target) + "'; this build on this processor does not have it");
  }
  return Status();
}

Status ValidateSize(const Argument& argument, const ConstTensorView& view) {
  if (view.strides.size() != view.shape.size()) {
    return argument.Refuse(StatusCode::kInvalidShape, " has " + std::to_string(view.strides.size()) +
                                                          " strides; it must have one for each of its " +
                                                          std::to_string(view.shape.size()) + " extents");
  }
  for (const std::int64_t extent : view.shape) {
    if (extent < 0) return argument.RefuseShape(view, "no extent may be negative");
  }
  if (!BytesOf(view)) {
    return argument.Refuse(StatusCode::kInvalidShape, " has shape " + ToString(view.shape) + " and strides " +
                                                          ToString(view.strides) + "; its size must fit in 64 bits");
  }
  return Status();
}

Status ValidateSameShape(const Argument& argument, const ConstTensorView& view, const Argument& model,
                         const ConstTensorView& model_view) {
  if (std::equal(view.shape.begin(), view.shape.end(), model_view.shape.begin(), model_view.shape.end())) {
    return Status();
  }
  return argument.RefuseShape(view, "it must be " + model.text() + "'s, " + ToString(model_view.shape));
}

Status ValidateRowWidth(const Argument& row, const ConstTensorView& view, const RotaryOptions& options) {
  if (options.rotary_dim || view.shape.back() % RowMultiple(options.mode) == 0) return Status();
  return row.RefuseShape(view, std::string("in mode ") + Name(options.mode) + " its last extent must be divisible by " +
                                   std::to_string(RowMultiple(options.mode)));
}

namespace {

// What a table of this width may have been meant for, beside rows of `row`.
std::string HintOfWidth(const RotaryOptions& options, std::int64_t width, std::int64_t row) {
  const bool per_pair = options.per_pair_tables;
  const std::int64_t dim = options.rotary_dim.value_or(row);
  if (width == 0) return "";
  std::string hint;
  if (!per_pair && width == dim / 2) hint = "per_pair_tables for one value a pair";
  if (per_pair && width == dim) hint = "no per_pair_tables for one value a channel";
  const bool narrow = width < (per_pair ? row / 2 : row);
  const std::int64_t part = narrow && per_pair ? 2 * width : width;
  if (!options.rotary_dim && narrow && part % RowMultiple(options.mode) == 0) {
    hint += (hint.empty() ? "" : ", or ") + ("rotary_dim = " + std::to_string(part)) + " for partial rotary";
  }
  return hint.empty() ? hint : std::string(kHint) + hint;
}

std::string Hexadecimal(std::uintptr_t address) {
  char digits[2 * sizeof(address)];
  const char* const end = std::to_chars(digits, digits + sizeof(digits), address, 16).ptr;
  return "0x" + std::string(static_cast<const char*>(digits), end);
}

}  // namespace

Status ValidateTableWidth(const Argument& table, const ConstTensorView& view, const RotaryOptions& options,
                          const Argument& row, std::int64_t width) {
  const std::int64_t dim = options.rotary_dim.value_or(width);
  const std::int64_t wanted = options.per_pair_tables ? dim / 2 : dim;
  if (view.shape.back() == wanted) return Status();
  return table.RefuseShape(view, "its last extent must equal " +
                                     (options.per_pair_tables ? "half the rotary dimension (per_pair_tables)"
                                      : options.rotary_dim    ? "rotary_dim"
                                                              : row.text() + "'s") +
                                     ", " + std::to_string(wanted) + HintOfWidth(options, view.shape.back(), width));
}

Status ValidateOwnElements(const Argument& output, const ConstTensorView& view) {
  const Sharing sharing = SharesWithItself(view);
  if (sharing == Sharing::kNone) return Status();
  return output.Refuse(
      StatusCode::kInvalidAlias,
      " has shape " + ToString(view.shape) + " and strides " + ToString(view.strides) + "; " +
          (sharing == Sharing::kShared ? "its elements share memory, which no output's may"
                                       : "whether its elements share memory, which no output's may, could "
                                         "not be decided within the work limit"));
}

Status ValidateAlignment(const Argument& argument, const ConstTensorView& view, const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t size = SizeOf(view.dtype);
  if (address % size == 0 || IsEmpty(view.shape)) return Status();
  return argument.Refuse(StatusCode::kInvalidAlias, " has data at address " + Hexadecimal(address) +
                                                        "; it must be a multiple of its element's size, " +
                                                        std::to_string(size));
}

Status ValidateSharing(const Argument& output, const ConstTensorView& a, const Argument& other,
                       const ConstTensorView& b, bool may_alias) {
  const Sharing sharing = SharesBytes(a, b);
  if (sharing == Sharing::kNone || (may_alias && SameElements(a, b))) return Status();
  const std::string shares = " shares memory with " + other.text();
  if (sharing == Sharing::kUndecided) {
    return Status(StatusCode::kInvalidAlias, std::string(output.operator_name) + ": whether " + output.text() + shares +
                                                 ", which is not allowed, could not be decided within the work limit");
  }
  return output.Refuse(
      StatusCode::kInvalidAlias,
      shares + (may_alias ? "; it may do so only with the same address, type and strides" : "; it may not"));
}

}  // namespace gyrograd::internal
