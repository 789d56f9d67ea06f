// The rules of the rotary operator, in their order of precedence.
#include "ops/rotary/validate.h"

#include <string>
#include <string_view>
#include <utility>

#include "core/overlap.h"
#include "ops/argument.h"

namespace gyrograd::internal {
namespace {

constexpr const char* kBackwardNames[kRotaryOperands] = {"dy", "x", "cos", "sin", "dx", "dcos", "dsin"};
constexpr const char* kForwardNames[kRotaryOperands] = {"x", "", "cos", "sin", "y", "", ""};

const char* NameOf(const RotaryCall& call, int operand) {
  return (call.forward ? kForwardNames : kBackwardNames)[operand];
}

Argument ArgumentOf(const RotaryCall& call, int operand) { return {call.name(), NameOf(call, operand)}; }

// The first refusal of rule(argument, operand) over all given operands.
template <class Rule>
Status ForEachGiven(const RotaryCall& call, const Rule& rule) {
  for (int i = 0; i < kRotaryOperands; ++i) {
    if (!call.given[i]) continue;
    if (Status status = rule(ArgumentOf(call, i), i); !status.ok()) return status;
  }
  return Status();
}

// ---- types

Status ValidateTypes(const RotaryCall& call) {
  const Status known = ForEachGiven(
      call, [&](const Argument& argument, int i) { return ValidateKnownType(argument, call.views[i].dtype); });
  if (!known.ok()) return known;
  const auto must_equal = [&call](int operand, int model) {
    if (!call.given[operand]) return Status();
    return ValidateSameType(ArgumentOf(call, operand), call.views[operand].dtype, ArgumentOf(call, model),
                            call.views[model].dtype);
  };
  for (const int operand : {kX, kOut}) {
    if (Status status = must_equal(operand, kIn); !status.ok()) return status;
  }
  if (Status status = ValidateCompanionType(ArgumentOf(call, kCos), call.views[kCos].dtype, ArgumentOf(call, kIn),
                                            call.views[kIn].dtype);
      !status.ok()) {
    return status;
  }
  for (const int operand : {kSin, kDcos, kDsin}) {
    if (Status status = must_equal(operand, kCos); !status.ok()) return status;
  }
  return Status();
}

// ---- attributes

Status ValidateAttributes(const RotaryCall& call) {
  const Argument options{call.name(), ""};
  if (Status status = ValidateMode(options, call.options.mode); !status.ok()) return status;
  const Extents in = call.views[kIn].shape;
  if (!in.empty()) {  // or it is refused with the shapes
    const Status status = ValidateRotaryDim(options, call.options, ArgumentOf(call, kIn), in.back());
    if (!status.ok()) return status;
  }
  return ValidateExecution(call.name(), call.execution);
}

// ---- missing arguments

Status ValidateMissing(const RotaryCall& call) {
  if (!call.wants_sums() || call.given[kX]) return Status();
  return ArgumentOf(call, kX).Refuse(
      StatusCode::kMissingArgument, std::string(" is missing; ") + (call.given[kDcos] ? "dcos" : "dsin") + " needs it");
}

// ---- shapes

Status ValidateShapeOf(const RotaryCall& call, int operand, int model) {
  if (!call.given[operand]) return Status();
  return ValidateSameShape(ArgumentOf(call, operand), call.views[operand], ArgumentOf(call, model), call.views[model]);
}

Status ValidateTableShape(const RotaryCall& call) {
  const Argument cos = ArgumentOf(call, kCos);
  const Argument row = ArgumentOf(call, kIn);
  const ConstTensorView& view = call.views[kCos];
  const Extents in = call.views[kIn].shape;
  if (view.shape.size() != in.size()) {
    return cos.RefuseShape(
        view, "its rank must be " + row.text() + "'s, " + std::to_string(in.size()) + HintOfRank(in, view.shape));
  }
  if (Status status = ValidateTableWidth(cos, view, call.options, row, in.back()); !status.ok()) return status;
  for (std::size_t axis = 0; axis + 1 < in.size(); ++axis) {
    if (view.shape[axis] == 1 || view.shape[axis] == in[axis]) continue;
    return cos.RefuseShape(view, "its extent of axis " + std::to_string(axis) + " must be 1 or " + row.text() + "'s, " +
                                     std::to_string(in[axis]));
  }
  return Status();
}

Status ValidateShapes(const RotaryCall& call) {
  const ConstTensorView& in = call.views[kIn];
  const Argument row = ArgumentOf(call, kIn);
  if (in.shape.empty()) return row.RefuseShape(in, "its rank must be at least 1");
  const Status sizes =
      ForEachGiven(call, [&](const Argument& argument, int i) { return ValidateSize(argument, call.views[i]); });
  if (!sizes.ok()) return sizes;
  if (Status status = ValidateRowWidth(row, in, call.options); !status.ok()) return status;
  for (const int operand : {kX, kOut}) {
    if (Status status = ValidateShapeOf(call, operand, kIn); !status.ok()) return status;
  }
  if (Status status = ValidateTableShape(call); !status.ok()) return status;
  for (const int operand : {kSin, kDcos, kDsin}) {
    if (Status status = ValidateShapeOf(call, operand, kCos); !status.ok()) return status;
  }
  return Status();
}

// ---- memory

Status ValidateOutputs(const RotaryCall& call) {
  return ForEachGiven(call, [&](const Argument& argument, int i) {
    return IsOutput(i) ? ValidateOwnElements(argument, call.views[i]) : Status();
  });
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

ConstTensorView At(const RotaryCall& call, const RotaryAddresses& data, int operand) {
  ConstTensorView view = call.views[operand];
  view.data = data[operand];
  return view;
}

}  // namespace

RotaryCall RotaryCall::From(const RotaryBackwardArgs& args) {
  RotaryCall call;
  const auto set = [&call](RotaryOperand operand, const auto& view) {
    call.views[operand] = {view.data, view.dtype, view.shape, view.strides};
    call.given[operand] = true;
    call.bytes[operand] = BytesOf(call.views[operand]).value_or(ByteRange{});
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
  for (const auto rule : {ValidateTypes, ValidateAttributes, ValidateMissing, ValidateShapes, ValidateOutputs}) {
    if (Status status = rule(call); !status.ok()) return status;
  }
  return Status();
}

Status ValidateNull(const RotaryCall& call, const RotaryAddresses& data) {
  return ForEachGiven(
      call, [&](const Argument& argument, int i) { return ValidateNotNull(argument, call.views[i].shape, data[i]); });
}

Status ValidateMemory(const RotaryCall& call, const RotaryAddresses& data) {
  const Status aligned = ForEachGiven(
      call, [&](const Argument& argument, int i) { return ValidateAlignment(argument, call.views[i], data[i]); });
  if (!aligned.ok()) return aligned;
  for (int output = kOut; output < kRotaryOperands; ++output) {
    if (!call.given[output]) continue;
    for (int other = 0; other < output; ++other) {
      if (!call.given[other] || !RangesMeet(data[output], call.bytes[output], data[other], call.bytes[other])) continue;
      const Status status = ValidateSharing(ArgumentOf(call, output), At(call, data, output), ArgumentOf(call, other),
                                            At(call, data, other), MayAlias(output, other));
      if (!status.ok()) return status;
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

}  // namespace gyrograd::internal
