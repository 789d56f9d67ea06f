// The rules of norm + rotary that need no addresses, in their order of precedence, and all of them.
#include "ops/norm_rope/validate.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/guard.h"

namespace gyrograd {
namespace internal {
namespace {

using Operand = NormRopeOperand;

// ---- types

// The operand whose type some others follow: the first one met.
struct TypeModel {
  Argument argument = {};
  DType type = DType::kF32;
  bool set = false;

  void Meet(const Argument& met, DType met_type) {
    if (!set) *this = {met, met_type, true};
  }
};

bool IsRow(int operand) { return operand == Operand::kIn || operand == Operand::kX || operand == Operand::kOut; }

bool IsParameter(int operand) {
  return operand == Operand::kWeight || operand == Operand::kBias || operand == Operand::kDweight ||
         operand == Operand::kDbias;
}

Status ValidateStatisticsType(const Argument& argument, DType type, const TypeModel& rows) {
  const DType wanted = rows.type == DType::kF64 ? DType::kF64 : DType::kF32;
  if (type == wanted) return Status();
  return argument.Refuse(StatusCode::kInvalidType, std::string(" has type ") + Name(type) + "; it must be " +
                                                       Name(wanted) + ", as " + rows.argument.text() + " is " +
                                                       Name(rows.type));
}

Status ValidateTypesAmong(const NormRopeCall& call, const TypeModel& rows) {
  TypeModel parameters;
  return ForEachGiven(call, [&](std::size_t i, int operand) {
    const Argument argument = call.argument(i, operand);
    const DType type = call.segments[i].views[operand].dtype;
    if (IsRow(operand)) return ValidateSameType(argument, type, rows.argument, rows.type);
    if (operand == Operand::kMean || operand == Operand::kRstd) return ValidateStatisticsType(argument, type, rows);
    if (operand == Operand::kSin) {
      return ValidateSameType(argument, type, call.argument(i, Operand::kCos),
                              call.segments[i].views[Operand::kCos].dtype);
    }
    if (IsParameter(operand) && parameters.set) {
      return ValidateSameType(argument, type, parameters.argument, parameters.type);
    }
    if (IsParameter(operand)) parameters.Meet(argument, type);
    return ValidateCompanionType(argument, type, rows.argument, rows.type);
  });
}

// ---- attributes

// Outputs that the norm does not define.
Status ValidateDefined(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  const auto rule = [&](int operand, bool defined, const char* what) {
    if (!segment.given[operand] || defined) return Status();
    return call.argument(i, operand)
        .Refuse(StatusCode::kInvalidAttribute, std::string(" is asked for; ") + segment.names->norm_type + " " +
                                                   Name(segment.norm_type) + " has no " + what);
  };
  const bool has_bias = segment.norm_type == NormType::kLayerAffine;
  if (Status status = rule(Operand::kDweight, IsAffine(segment.norm_type), "weight"); !status.ok()) return status;
  if (Status status = rule(Operand::kDbias, has_bias, "bias"); !status.ok()) return status;
  if (Status status = rule(Operand::kMean, IsLayerNorm(segment.norm_type), "mean"); !status.ok()) return status;
  return rule(Operand::kRstd, IsNorm(segment.norm_type), "rstd");
}

Status ValidateRotationOptions(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  if (!segment.rotates) return Status();
  const Argument prefix = call.named(i, segment.names->rotation);
  if (Status status = ValidateMode(prefix, segment.options.mode); !status.ok()) return status;
  if (segment.views[segment.model].shape.size() == 4) {
    const Argument row = call.model_argument(i);
    if (Status status = ValidateRotaryDim(prefix, segment.options, row, segment.head_dim); !status.ok()) return status;
  }
  if (segment.rope_first >= 0) return Status();
  return call.named(i, segment.names->first)
      .Refuse(StatusCode::kInvalidAttribute, " is " + std::to_string(segment.rope_first) + "; it must be at least 0");
}

Status ValidateEps(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  if (!call.forward || !IsNorm(segment.norm_type) || segment.eps >= 0) return Status();
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%g", segment.eps);
  return call.named(i, segment.names->eps)
      .Refuse(StatusCode::kInvalidAttribute, std::string(" is ") + text.data() + "; it must be at least 0");
}

Status ValidateSegmentAttributes(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  if (Status status = ValidateNormType(call.named(i, segment.names->norm_type), segment.norm_type); !status.ok()) {
    return status;
  }
  if (Status status = ValidateDefined(call, i); !status.ok()) return status;
  if (Status status = ValidateEps(call, i); !status.ok()) return status;
  return ValidateRotationOptions(call, i);
}

// ---- missing arguments

// A norm's inputs, where the segment has rows and something is asked of it.
Status ValidateSegmentMissing(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  if (!segment.has_rows() || !segment.wants_outputs(call.forward)) return Status();
  const auto rule = [&](int operand, bool needed) {
    if (!needed || segment.given[operand]) return Status();
    return call.argument(i, operand)
        .Refuse(StatusCode::kMissingArgument,
                std::string(" is missing; ") + segment.names->norm_type + " " + Name(segment.norm_type) + " needs it");
  };
  const bool backward = !call.forward;
  for (const auto& [operand, needed] :
       {std::pair<int, bool>{Operand::kX, backward && IsNorm(segment.norm_type)},
        {Operand::kRstd, backward && IsNorm(segment.norm_type)},
        {Operand::kMean, backward && IsLayerNorm(segment.norm_type)},
        {Operand::kWeight, IsAffine(segment.norm_type) && segment.given[Operand::kOut]},
        {Operand::kBias, call.forward && segment.norm_type == NormType::kLayerAffine}}) {
    if (Status status = rule(operand, needed); !status.ok()) return status;
  }
  return Status();
}

// ---- shapes

// The shape that an operand must have; rank 0 for tables, which have rules of their own.
struct Expected {
  std::array<std::int64_t, 4> extents = {};
  std::size_t rank = 0;
  const char* axes = "";

  Extents shape() const { return Extents(extents.data(), rank); }
};

Expected ExpectedOf(const SegmentCall& s, bool forward, int operand) {
  switch (operand) {
    case Operand::kWeight:
    case Operand::kBias:
    case Operand::kDweight:
    case Operand::kDbias: return {{s.head_dim}, 1, "[D]"};
    case Operand::kMean:
    case Operand::kRstd: return {{s.batch, s.sequence, s.heads, 1}, 4, "[B, S, N, 1]"};
    case Operand::kCos:
    case Operand::kSin: return {};
    default: break;
  }
  const bool transposed = operand == (forward ? Operand::kOut : Operand::kIn);
  if (transposed) return {{s.batch, s.heads, s.sequence, s.head_dim}, 4, "[B, N, S, D]"};
  return {{s.batch, s.sequence, s.heads, s.head_dim}, 4, "[B, S, N, D]"};
}

Status ValidateExpectedShape(const NormRopeCall& call, std::size_t i, int operand) {
  const SegmentCall& segment = call.segments[i];
  const Extents shape = segment.views[operand].shape;
  const Expected expected = ExpectedOf(segment, call.forward, operand);
  const Extents wanted = expected.shape();
  if (expected.rank == 0 || std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end())) return Status();
  const Argument argument = call.argument(i, operand), model = call.model_argument(i);
  return argument.RefuseShape(segment.views[operand], std::string("it must be ") + expected.axes + " of " +
                                                          model.text() + ", " + ToString(wanted) +
                                                          HintOfOrder(argument, shape, wanted, model));
}

Status ValidateTables(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  if (!segment.rotates) return Status();
  const Argument row = call.model_argument(i), cos = call.argument(i, Operand::kCos);
  const ConstTensorView& view = segment.views[Operand::kCos];
  if (Status status = ValidateRowWidth(row, segment.views[segment.model], segment.options); !status.ok()) return status;
  if (Status status = ValidateTableRank(cos, view, segment.batch, segment.heads); !status.ok()) return status;
  if (Status status = ValidateTableWidth(cos, view, segment.options, row, segment.head_dim); !status.ok()) {
    return status;
  }
  if (Status status = ValidateTableBroadcast(cos, view, row, segment.batch, segment.heads); !status.ok()) return status;
  if (segment.rope_first > segment.sequence - segment.rope_rows) {
    return cos.RefuseShape(view, "its " + std::to_string(segment.rope_rows) + " rows and " +
                                     call.named(i, segment.names->first).text() + ", " +
                                     std::to_string(segment.rope_first) + ", must sum to at most " + row.text() +
                                     "'s sequence extent, " + std::to_string(segment.sequence));
  }
  return ValidateSameShape(call.argument(i, Operand::kSin), segment.views[Operand::kSin], cos, view);
}

}  // namespace

Status ValidateNormType(const Argument& argument, NormType type) {
  if (type == NormType::kNone || IsNorm(type)) return Status();
  return argument.Refuse(StatusCode::kInvalidAttribute,
                         " is " + std::to_string(static_cast<int>(type)) +
                             "; it must be 0 (none), 1 (layer), 2 (layer_affine), 3 (rms) or 4 (rms_affine)");
}

Status ValidateTableRank(const Argument& table, const ConstTensorView& view, std::int64_t batch, std::int64_t heads) {
  const Extents shape = view.shape;
  if (IsTableRank(shape.size())) return Status();
  std::string hint;
  if (shape.size() == 1) hint = HintOfRank(std::array<std::int64_t, 2>{1, shape[0]}, shape, 1);
  if (shape.size() == 3) hint = HintOfRank(std::array<std::int64_t, 4>{batch, heads, shape[1], shape[2]}, shape, 2);
  return table.RefuseShape(view, "its rank must be 2 or 4" + hint);
}

Status ValidateTableBroadcast(const Argument& table, const ConstTensorView& view, const Argument& row,
                              std::int64_t batch, std::int64_t heads) {
  if (view.shape.size() != 4) return Status();
  const auto fits = [&view](int axis, std::int64_t extent) {
    return view.shape[axis] == 1 || view.shape[axis] == extent;
  };
  const auto refuse = [&](const char* what, std::int64_t extent, const std::string& hint) {
    return table.RefuseShape(view, std::string("its ") + what + " extent must be 1 or " + row.text() + "'s, " +
                                       std::to_string(extent) + hint);
  };
  if (!fits(0, batch)) return refuse("batch", batch, "");
  if (!fits(1, heads)) return refuse("head", heads, fits(2, heads) ? HintOfExchange(table) : "");
  return Status();
}

Status ValidateTypes(const NormRopeCall& call) {
  TypeModel rows;
  const Status known = ForEachGiven(call, [&](std::size_t i, int operand) {
    const DType type = call.segments[i].views[operand].dtype;
    if (IsRow(operand)) rows.Meet(call.argument(i, operand), type);
    return ValidateKnownType(call.argument(i, operand), type);
  });
  return known.ok() ? ValidateTypesAmong(call, rows) : known;
}

Status ValidateAttributes(const NormRopeCall& call) {
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    if (Status status = ValidateSegmentAttributes(call, i); !status.ok()) return status;
  }
  return ValidateExecution(call.name, call.execution);
}

Status ValidateMissing(const NormRopeCall& call) {
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    if (Status status = ValidateSegmentMissing(call, i); !status.ok()) return status;
  }
  return Status();
}

Status ValidateShapes(const NormRopeCall& call) {
  const Status sizes = ForEachGiven(call, [&](std::size_t i, int operand) {
    const ConstTensorView& view = call.segments[i].views[operand];
    const bool is_model = operand == call.segments[i].model;
    if (is_model && view.shape.size() != 4) return call.argument(i, operand).RefuseShape(view, "its rank must be 4");
    return ValidateSize(call.argument(i, operand), view);
  });
  if (!sizes.ok()) return sizes;
  const Status shapes =
      ForEachGiven(call, [&](std::size_t i, int operand) { return ValidateExpectedShape(call, i, operand); });
  if (!shapes.ok()) return shapes;
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    if (Status status = ValidateTables(call, i); !status.ok()) return status;
  }
  return Status();
}

Status ValidateOwnElements(const NormRopeCall& call) {
  return ForEachGiven(call, [&](std::size_t i, int operand) {
    if (!call.IsOutput(operand)) return Status();
    return ValidateOwnElements(call.argument(i, operand), call.segments[i].views[operand]);
  });
}

Status ValidateViews(const NormRopeCall& call) {
  for (Status (*const rule)(const NormRopeCall&) :
       {ValidateTypes, ValidateAttributes, ValidateMissing, ValidateShapes,
        static_cast<Status (*)(const NormRopeCall&)>(ValidateOwnElements)}) {
    if (Status status = rule(call); !status.ok()) return status;
  }
  return Status();
}

Status ValidateCount(const NormRopeCall& call, std::size_t entries) {
  if (entries == call.segments.size()) return Status();
  return Argument{call.name, "pointers"}.Refuse(StatusCode::kInvalidShape,
                                                " has " + std::to_string(entries) +
                                                    " entries; it must have one for each of the plan's " +
                                                    std::to_string(call.segments.size()) + " segments");
}

Status ValidateNull(const NormRopeCall& call, const NormRopeAddresses& data) {
  return ForEachGiven(call, [&](std::size_t i, int operand) {
    return ValidateNotNull(call.argument(i, operand), call.segments[i].views[operand].shape, data(i, operand));
  });
}

Status Validate(const NormRopeCall& call) {
  const NormRopeAddresses data = AddressesOf(call);
  if (Status status = ValidateNull(call, data); !status.ok()) return status;
  if (Status status = ValidateViews(call); !status.ok()) return status;
  return ValidateMemory(call, data);
}

}  // namespace internal

Status ValidateNormRopeBackward(const NormRopeBackwardArgs& args) {
  return internal::Guard([&] { return internal::Validate(internal::NormRopeCall::From(args)); });
}

Status ValidateNormRope(const NormRopeArgs& args) {
  return internal::Guard([&] { return internal::Validate(internal::NormRopeCall::From(args)); });
}

}  // namespace gyrograd
