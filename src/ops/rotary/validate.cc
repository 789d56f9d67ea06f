// The rules of the rotary operator, in their order of precedence.
#include "ops/rotary/validate.h"

#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "core/overlap.h"
#include "core/strides.h"
#include "ops/rotary/kernels.h"

namespace gyrograd::internal {
namespace {

constexpr const char* kBackwardNames[kRotaryOperands] = {"dy", "x", "cos", "sin", "dx", "dcos", "dsin"};
constexpr const char* kForwardNames[kRotaryOperands] = {"x", "", "cos", "sin", "y", "", ""};

const char* NameOf(const RotaryCall& call, int operand) {
  return (call.forward ? kForwardNames : kBackwardNames)[operand];
}

// Builds "rotary_backward: " + text.
Status Refuse(const RotaryCall& call, StatusCode code, const std::string& text) {
  return Status(code, std::string(call.name()) + ": " + text);
}

// ---- types

Status ValidateTypes(const RotaryCall& call) {
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (call.given[i] && !IsDType(call.views[i].dtype)) {
      return Refuse(call, StatusCode::kInvalidType,
                    std::string(NameOf(call, i)) + " has the unknown type " +
                        std::to_string(static_cast<int>(call.views[i].dtype)) + "; it must be f64, f32, f16 or bf16");
    }
  }
  const auto must_equal = [&call](int operand, int model) {
    if (!call.given[operand] || call.views[operand].dtype == call.views[model].dtype) return Status();
    return Refuse(call, StatusCode::kInvalidType,
                  std::string(NameOf(call, operand)) + " has type " + Name(call.views[operand].dtype) +
                      "; it must be " + NameOf(call, model) + "'s, " + Name(call.views[model].dtype));
  };
  for (const int operand : {kX, kOut}) {
    if (Status status = must_equal(operand, kIn); !status.ok()) return status;
  }
  const DType type = call.views[kIn].dtype;
  const DType table = call.views[kCos].dtype;
  const bool narrow = type == DType::kF16 || type == DType::kBF16;
  if (table != type && !(narrow && table == DType::kF32)) {
    return Refuse(call, StatusCode::kInvalidType,
                  std::string("cos has type ") + Name(table) + "; it must be " + NameOf(call, kIn) + "'s, " +
                      Name(type) + (narrow ? ", or f32" : ""));
  }
  for (const int operand : {kSin, kDcos, kDsin}) {
    if (Status status = must_equal(operand, kCos); !status.ok()) return status;
  }
  return Status();
}

// ---- attributes

std::int64_t PairMultiple(RotaryMode mode) { return mode == RotaryMode::kQuarter ? 4 : 2; }

Status ValidateRotaryDim(const RotaryCall& call) {
  if (call.views[kIn].shape.empty()) return Status();  // refused with the shapes
  const std::int64_t width = call.views[kIn].shape.back();
  const std::int64_t offset = call.options.rotary_offset;
  const std::int64_t dim = call.rotary_dim();
  const bool smallest = dim >= 2 || (dim == 0 && width == 0) || !call.options.rotary_dim;
  if (!smallest) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  "rotary_dim is " + std::to_string(dim) + "; it must be at least 2");
  }
  if (offset < 0) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  "rotary_offset is " + std::to_string(offset) + "; it must be at least 0");
  }
  if (call.options.rotary_dim && dim % PairMultiple(call.options.mode) != 0) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  "rotary_dim is " + std::to_string(dim) + "; in mode " + Name(call.options.mode) +
                      " it must be divisible by " + std::to_string(PairMultiple(call.options.mode)));
  }
  if (width >= 0 && (dim > width || offset > width - dim)) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  "rotary_offset is " + std::to_string(offset) + " and rotary_dim is " + std::to_string(dim) +
                      "; their sum must be at most " + NameOf(call, kIn) + "'s last extent, " + std::to_string(width));
  }
  return Status();
}

Status ValidateAttributes(const RotaryCall& call) {
  const int mode = static_cast<int>(call.options.mode);
  if (mode < 0 || mode > 3) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  "mode is " + std::to_string(mode) +
                      "; it must be 0 (half), 1 (interleave), 2 (quarter) or 3 (interleave-half)");
  }
  if (Status status = ValidateRotaryDim(call); !status.ok()) return status;
  if (call.execution.num_threads < 0) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  "num_threads is " + std::to_string(call.execution.num_threads) + "; it must be at least 0");
  }
  if (FindRotaryKernels(call.execution.cpu_target) == nullptr) {
    return Refuse(call, StatusCode::kInvalidAttribute,
                  std::string("cpu_target is ") + Name(call.execution.cpu_target) +
                      "; this build on this processor does not have it");
  }
  return Status();
}

// ---- missing arguments

Status ValidateMissing(const RotaryCall& call) {
  if (call.wants_sums() && !call.given[kX]) {
    return Refuse(call, StatusCode::kMissingArgument,
                  std::string("x is missing; ") + (call.given[kDcos] ? "dcos" : "dsin") + " needs it");
  }
  return Status();
}

// ---- shapes

std::string Has(const RotaryCall& call, int operand) {
  return std::string(NameOf(call, operand)) + " has shape " + ToString(call.views[operand].shape);
}

Status ValidateSize(const RotaryCall& call, int operand) {
  const ConstTensorView& view = call.views[operand];
  if (view.strides.size() != view.shape.size()) {
    return Refuse(call, StatusCode::kInvalidShape,
                  std::string(NameOf(call, operand)) + " has " + std::to_string(view.strides.size()) +
                      " strides; it must have one for each of its " + std::to_string(view.shape.size()) + " extents");
  }
  for (const std::int64_t extent : view.shape) {
    if (extent < 0) return Refuse(call, StatusCode::kInvalidShape, Has(call, operand) + "; no extent may be negative");
  }
  if (!BytesOf(view)) {
    return Refuse(call, StatusCode::kInvalidShape,
                  Has(call, operand) + " and strides " + ToString(view.strides) + "; its size must fit in 64 bits");
  }
  return Status();
}

bool SameShape(const ConstTensorView& a, const ConstTensorView& b) {
  return a.shape.size() == b.shape.size() && std::equal(a.shape.begin(), a.shape.end(), b.shape.begin());
}

Status ValidateSameShape(const RotaryCall& call, int operand, int model) {
  if (!call.given[operand] || SameShape(call.views[operand], call.views[model])) return Status();
  return Refuse(
      call, StatusCode::kInvalidShape,
      Has(call, operand) + "; it must be " + NameOf(call, model) + "'s, " + ToString(call.views[model].shape));
}

// The first placement, or the last one; empty where there is none.
std::vector<bool> PlaceTable(Extents in, Extents table, bool from_the_end) {
  std::vector<bool> own(in.size(), false);
  own.back() = true;
  const std::size_t axes = in.size() - 1;
  std::size_t placed = 0;
  for (std::size_t i = 0; i < axes && placed + 1 < table.size(); ++i) {
    const std::size_t axis = from_the_end ? axes - 1 - i : i;
    const std::int64_t extent = table[from_the_end ? table.size() - 2 - placed : placed];
    if (extent != 1 && extent != in[axis]) continue;
    own[axis] = true;
    ++placed;
  }
  return placed + 1 == table.size() ? own : std::vector<bool>();
}

// The table's extents where it is placed, 1 elsewhere.
std::vector<std::int64_t> PlacedShape(Extents table, const std::vector<bool>& own) {
  std::vector<std::int64_t> shape;
  std::size_t taken = 0;
  for (const bool is_own : own) shape.push_back(is_own ? table[taken++] : 1);
  return shape;
}

std::string HintOfRank(Extents in, Extents table) {
  if (table.empty() || table.size() > in.size()) return "";
  return std::string(kHint) + "add extents of 1" +
         SuchAs(TablePlacements(in, table), [&](const auto& own) { return ToString(PlacedShape(table, own)); });
}

// What a table of another width may have been meant for.
std::string HintOfWidth(const RotaryCall& call) {
  const std::int64_t width = call.views[kCos].shape.back();
  const std::int64_t row = call.views[kIn].shape.back();
  const bool per_pair = call.options.per_pair_tables;
  if (width == 0) return "";
  std::string hint;
  if (!per_pair && width == call.rotary_dim() / 2) hint = "per_pair_tables for one value a pair";
  if (per_pair && width == call.rotary_dim()) hint = "no per_pair_tables for one value a channel";
  const bool narrow = width < (per_pair ? row / 2 : row);
  const std::int64_t dim = narrow && per_pair ? 2 * width : width;
  if (!call.options.rotary_dim && narrow && dim % PairMultiple(call.options.mode) == 0) {
    hint += (hint.empty() ? "" : ", or ") + ("rotary_dim = " + std::to_string(dim)) + " for partial rotary";
  }
  return hint.empty() ? hint : std::string(kHint) + hint;
}

Status ValidateTableShape(const RotaryCall& call) {
  const Extents in = call.views[kIn].shape;
  const Extents table = call.views[kCos].shape;
  if (table.size() != in.size()) {
    return Refuse(call, StatusCode::kInvalidShape,
                  Has(call, kCos) + "; its rank must be " + NameOf(call, kIn) + "'s, " + std::to_string(in.size()) +
                      HintOfRank(in, table));
  }
  const std::int64_t width = call.options.per_pair_tables ? call.rotary_dim() / 2 : call.rotary_dim();
  if (table.back() != width) {
    return Refuse(call, StatusCode::kInvalidShape,
                  Has(call, kCos) + "; its last extent must equal " +
                      (call.options.per_pair_tables ? "half the rotary dimension (per_pair_tables), "
                       : call.options.rotary_dim    ? "rotary_dim, "
                       : call.forward               ? "x's, "
                                                    : "dy's, ") +
                      std::to_string(width) + HintOfWidth(call));
  }
  for (std::size_t axis = 0; axis + 1 < in.size(); ++axis) {
    if (table[axis] == 1 || table[axis] == in[axis]) continue;
    return Refuse(call, StatusCode::kInvalidShape,
                  Has(call, kCos) + "; its extent of axis " + std::to_string(axis) + " must be 1 or " +
                      NameOf(call, kIn) + "'s, " + std::to_string(in[axis]));
  }
  return Status();
}

Status ValidateShapes(const RotaryCall& call) {
  const Extents in = call.views[kIn].shape;
  if (in.empty()) {
    return Refuse(call, StatusCode::kInvalidShape,
                  std::string(NameOf(call, kIn)) + " has shape []; its rank must be at least 1");
  }
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (!call.given[i]) continue;
    if (Status status = ValidateSize(call, i); !status.ok()) return status;
  }
  if (in.back() % PairMultiple(call.options.mode) != 0 && !call.options.rotary_dim) {
    return Refuse(call, StatusCode::kInvalidShape,
                  Has(call, kIn) + "; in mode " + Name(call.options.mode) + " its last extent must be divisible by " +
                      std::to_string(PairMultiple(call.options.mode)));
  }
  for (const int operand : {kX, kOut}) {
    if (Status status = ValidateSameShape(call, operand, kIn); !status.ok()) return status;
  }
  if (Status status = ValidateTableShape(call); !status.ok()) return status;
  for (const int operand : {kSin, kDcos, kDsin}) {
    if (Status status = ValidateSameShape(call, operand, kCos); !status.ok()) return status;
  }
  return Status();
}

// ---- memory

Status ValidateOwnElements(const RotaryCall& call) {
  for (int i = kOut; i < kRotaryOperands; ++i) {
    if (!call.given[i]) continue;
    const Sharing sharing = SharesWithItself(call.views[i]);
    if (sharing == Sharing::kNone) continue;
    return Refuse(call, StatusCode::kInvalidAlias,
                  Has(call, i) + " and strides " + ToString(call.views[i].strides) + "; " +
                      (sharing == Sharing::kShared ? "its elements share memory, which no output's may"
                                                   : "whether its elements share memory, which no output's may, could "
                                                     "not be decided within the work limit"));
  }
  return Status();
}

// May an output lie exactly on this other operand?
bool MayAlias(int output, int other) {
  switch (output) {
    case kOut: return other == kIn || other == kX;
    case kDcos: return other == kCos;
    case kDsin: return other == kSin;
    default: return false;
  }
}

std::string Hexadecimal(std::uintptr_t address) {
  char digits[2 * sizeof(address)];
  const char* const end = std::to_chars(digits, digits + sizeof(digits), address, 16).ptr;
  return "0x" + std::string(static_cast<const char*>(digits), end);
}

Status ValidateAlignment(const RotaryCall& call, const RotaryAddresses& data) {
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (!call.given[i]) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(data[i]);
    const std::size_t size = SizeOf(call.views[i].dtype);
    if (address % size == 0 || IsEmpty(call.views[i].shape)) continue;
    return Refuse(call, StatusCode::kInvalidAlias,
                  std::string(NameOf(call, i)) + " has data at address " + Hexadecimal(address) +
                      "; it must be a multiple of its element's size, " + std::to_string(size));
  }
  return Status();
}

ConstTensorView At(const RotaryCall& call, const RotaryAddresses& data, int operand) {
  ConstTensorView view = call.views[operand];
  view.data = data[operand];
  return view;
}

Status ValidateSharing(const RotaryCall& call, const RotaryAddresses& data, int output, int other) {
  const ConstTensorView a = At(call, data, output);
  const ConstTensorView b = At(call, data, other);
  const Sharing sharing = SharesBytes(a, b);
  if (sharing == Sharing::kNone || (MayAlias(output, other) && SameElements(a, b))) return Status();
  const std::string pair = std::string(NameOf(call, output)) + " shares memory with " + NameOf(call, other);
  if (sharing == Sharing::kUndecided) {
    return Refuse(call, StatusCode::kInvalidAlias,
                  "whether " + pair + ", which is not allowed, could not be decided within the work limit");
  }
  return Refuse(call, StatusCode::kInvalidAlias,
                pair + (MayAlias(output, other) ? "; it may do so only with the same address, type and strides"
                                                : "; it may not"));
}

}  // namespace

RotaryCall RotaryCall::From(const RotaryBackwardArgs& args) {
  RotaryCall call;
  const auto set = [&call](RotaryOperand operand, const auto& view) {
    call.views[operand] = {view.data, view.dtype, view.shape, view.strides};
    call.given[operand] = true;
  };
  set(kIn, args.dy);
  set(kCos, args.cos);
  set(kSin, args.sin);
  if (args.x) set(kX, *args.x);
  if (args.dx) set(kOut, *args.dx);
  if (args.dcos) set(kDcos, *args.dcos);
  if (args.dsin) set(kDsin, *args.dsin);
  call.options = args.options;
  call.execution = args.execution;
  return call;
}

RotaryCall RotaryCall::From(const RotaryArgs& args) {
  RotaryCall call = From(RotaryBackwardArgs{.dy = args.x,
                                            .cos = args.cos,
                                            .sin = args.sin,
                                            .x = std::nullopt,
                                            .dx = args.y,
                                            .dcos = std::nullopt,
                                            .dsin = std::nullopt,
                                            .options = args.options,
                                            .execution = args.execution});
  call.forward = true;
  return call;
}

RotaryAddresses AddressesOf(const RotaryCall& call) {
  RotaryAddresses data = {};
  for (int i = 0; i < kRotaryOperands; ++i) data[i] = call.views[i].data;
  return data;
}

Status ValidateViews(const RotaryCall& call) {
  for (const auto rule : {ValidateTypes, ValidateAttributes, ValidateMissing, ValidateShapes, ValidateOwnElements}) {
    if (Status status = rule(call); !status.ok()) return status;
  }
  return Status();
}

Status ValidateNull(const RotaryCall& call, const RotaryAddresses& data) {
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (!call.given[i] || data[i] != nullptr || IsEmpty(call.views[i].shape)) continue;
    return Refuse(
        call, StatusCode::kNullPointer,
        std::string(NameOf(call, i)) + " has no data (a null pointer); only a tensor without elements may have none");
  }
  return Status();
}

Status ValidateMemory(const RotaryCall& call, const RotaryAddresses& data) {
  if (Status status = ValidateAlignment(call, data); !status.ok()) return status;
  for (int output = kOut; output < kRotaryOperands; ++output) {
    if (!call.given[output]) continue;
    for (int other = 0; other < output; ++other) {
      if (!call.given[other]) continue;
      if (Status status = ValidateSharing(call, data, output, other); !status.ok()) return status;
    }
  }
  return Status();
}

Status Validate(const RotaryCall& call) {
  const RotaryAddresses data = AddressesOf(call);
  if (Status status = ValidateNull(call, data); !status.ok()) return status;
  if (Status status = ValidateViews(call); !status.ok()) return status;
  return ValidateMemory(call, data);
}

std::vector<std::vector<bool>> TablePlacements(Extents in, Extents table) {
  std::vector<std::vector<bool>> placements;
  for (const bool from_the_end : {false, true}) {
    std::vector<bool> own = PlaceTable(in, table, from_the_end);
    if (own.empty()) return placements;
    if (!placements.empty() && PlacedShape(table, own) == PlacedShape(table, placements[0])) continue;
    placements.push_back(std::move(own));
  }
  return placements;
}

}  // namespace gyrograd::internal
