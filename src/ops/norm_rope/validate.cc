// The rules of norm + rotary, in their order of precedence.
#include "ops/norm_rope/validate.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/guard.h"

namespace gyrograd {

const char* Name(NormType type) {
  switch (type) {
    case NormType::kNone: return "none";
    case NormType::kLayer: return "layer";
    case NormType::kLayerAffine: return "layer_affine";
    case NormType::kRms: return "rms";
    case NormType::kRmsAffine: return "rms_affine";
  }
  return "unknown";
}

namespace internal {
namespace {

using Operand = NormRopeOperand;

constexpr NormRopeNames kBackwardNames = {
    {"dy", "x", "weight", "", "mean", "rstd", "rotation.cos", "rotation.sin", "dx", "dweight", "dbias"},
    "norm_type",
    "",
    "rotation.options.",
    "rotation.first"};
constexpr NormRopeNames kForwardNames = {
    {"x", "", "weight", "bias", "mean", "rstd", "rotation.cos", "rotation.sin", "y", "", ""},
    "norm_type",
    "eps",
    "rotation.options.",
    "rotation.first"};

bool Uses(bool forward, NormType type, int operand) {
  if (IsNormRopeOutput(forward, operand)) return true;
  switch (operand) {
    case Operand::kX:
    case Operand::kRstd: return IsNorm(type);
    case Operand::kMean: return IsLayerNorm(type);
    case Operand::kWeight: return IsAffine(type);
    case Operand::kBias: return type == NormType::kLayerAffine;
    default: return true;
  }
}

// ---- calls

ConstTensorView ViewOf(const ConstTensorView& view) { return view; }
ConstTensorView ViewOf(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

// Reads the extents of the model, [B, N, S, D] backward and [B, S, N, D] forward.
void Measure(SegmentCall& segment, bool forward) {
  const Extents shape = segment.views[segment.model].shape;
  if (shape.size() != 4) return;
  segment.batch = shape[0];
  segment.sequence = shape[forward ? 1 : 2];
  segment.heads = shape[forward ? 2 : 1];
  segment.head_dim = shape[3];
}

void GiveRotation(SegmentCall& segment, bool forward, const NormRopeRotation& rotation) {
  segment.rotates = true;
  segment.options = rotation.options;
  segment.rope_first = rotation.first;
  segment.rope_rows = rotation.cos.shape.size() == 4 ? rotation.cos.shape[2] : 0;
  segment.Give(forward, Operand::kCos, rotation.cos);
  segment.Give(forward, Operand::kSin, rotation.sin);
}

// What both directions of a segment have.
template <class Segment>
SegmentCall CallOf(const Segment& args, bool forward, const NormRopeNames& names) {
  SegmentCall segment;
  segment.norm_type = args.norm_type;
  segment.names = &names;
  const auto give = [&](int operand, const auto& view) {
    if (view) segment.Give(forward, operand, ViewOf(*view));
  };
  give(Operand::kWeight, args.weight);
  give(Operand::kMean, args.mean);
  give(Operand::kRstd, args.rstd);
  if (args.rotation) GiveRotation(segment, forward, *args.rotation);
  return segment;
}

SegmentCall CallOf(const NormRopeBackwardSegment& args) {
  SegmentCall segment = CallOf(args, false, kBackwardNames);
  segment.Give(false, Operand::kIn, args.dy);
  if (args.x) segment.Give(false, Operand::kX, *args.x);
  if (args.dx) segment.Give(false, Operand::kOut, ViewOf(*args.dx));
  if (args.dweight) segment.Give(false, Operand::kDweight, ViewOf(*args.dweight));
  if (args.dbias) segment.Give(false, Operand::kDbias, ViewOf(*args.dbias));
  Measure(segment, false);
  return segment;
}

SegmentCall CallOf(const NormRopeSegment& args) {
  SegmentCall segment = CallOf(args, true, kForwardNames);
  segment.eps = args.eps;
  segment.Give(true, Operand::kIn, args.x);
  if (args.bias) segment.Give(true, Operand::kBias, *args.bias);
  segment.Give(true, Operand::kOut, ViewOf(args.y));
  Measure(segment, true);
  return segment;
}

template <class Args>
NormRopeCall CallOf(const Args& args, bool forward, const char* name) {
  NormRopeCall call;
  call.forward = forward;
  call.name = name;
  call.execution = args.execution;
  call.segments.reserve(args.segments.size());
  for (const auto& segment : args.segments) call.segments.push_back(CallOf(segment));
  return call;
}

// ---- rules

// The first refusal of rule(segment index, operand) over all given operands.
template <class Rule>
Status ForEachGiven(const NormRopeCall& call, const Rule& rule) {
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    for (int operand = 0; operand < kNormRopeOperands; ++operand) {
      if (!call.segments[i].given[operand]) continue;
      if (Status status = rule(i, operand); !status.ok()) return status;
    }
  }
  return Status();
}

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
    const Argument row = call.argument(i, segment.model);
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
  return call.argument(i, operand)
      .RefuseShape(segment.views[operand], std::string("it must be ") + expected.axes + " of " +
                                               call.argument(i, segment.model).text() + ", " + ToString(wanted));
}

Status ValidateTables(const NormRopeCall& call, std::size_t i) {
  const SegmentCall& segment = call.segments[i];
  if (!segment.rotates) return Status();
  const Argument row = call.argument(i, segment.model), cos = call.argument(i, Operand::kCos);
  const ConstTensorView& view = segment.views[Operand::kCos];
  if (Status status = ValidateRowWidth(row, segment.views[segment.model], segment.options); !status.ok()) return status;
  if (view.shape.size() != 4) return cos.RefuseShape(view, "its rank must be 4");
  if (Status status = ValidateTableWidth(cos, view, segment.options, row, segment.head_dim); !status.ok()) {
    return status;
  }
  for (const auto& [axis, extent] : {std::pair<int, std::int64_t>{0, segment.batch}, {1, segment.heads}}) {
    if (view.shape[axis] == 1 || view.shape[axis] == extent) continue;
    return cos.RefuseShape(view, "its extent of axis " + std::to_string(axis) + " must be 1 or " + row.text() + "'s, " +
                                     std::to_string(extent));
  }
  if (segment.rope_first > segment.sequence - segment.rope_rows) {
    return cos.RefuseShape(view, "its " + std::to_string(segment.rope_rows) + " rows and " +
                                     call.named(i, segment.names->first).text() + ", " +
                                     std::to_string(segment.rope_first) + ", must sum to at most " + row.text() +
                                     "'s sequence extent, " + std::to_string(segment.sequence));
  }
  return ValidateSameShape(call.argument(i, Operand::kSin), segment.views[Operand::kSin], cos, view);
}

// ---- memory

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

// ---- calls

void SegmentCall::Give(bool forward, int operand, const ConstTensorView& view) {
  if (!Uses(forward, norm_type, operand)) return;
  views[operand] = view;
  given[operand] = true;
  if (IsDType(view.dtype) && view.strides.size() == view.shape.size()) {
    bytes[operand] = BytesOf(view).value_or(ByteRange{});
  }
}

bool SegmentCall::wants_outputs(bool forward) const {
  for (int operand = 0; operand < kNormRopeOperands; ++operand) {
    if (given[operand] && IsNormRopeOutput(forward, operand)) return true;
  }
  return false;
}

NormRopeCall NormRopeCall::From(const NormRopeBackwardArgs& args) { return CallOf(args, false, "norm_rope_backward"); }

NormRopeCall NormRopeCall::From(const NormRopeArgs& args) { return CallOf(args, true, "norm_rope"); }

void NormRopeCall::Detach() {
  std::size_t count = 0;
  for (const SegmentCall& segment : segments) {
    for (const ConstTensorView& view : segment.views) count += view.shape.size() + view.strides.size();
  }
  std::shared_ptr<std::int64_t[]> own(new std::int64_t[count]);
  std::int64_t* next = own.get();
  const auto keep = [&next](Extents& span) {
    std::copy(span.begin(), span.end(), next);
    span = Extents(next, span.size());
    next += span.size();
  };
  for (SegmentCall& segment : segments) {
    for (ConstTensorView& view : segment.views) {
      keep(view.shape);
      keep(view.strides);
      view.data = nullptr;
    }
  }
  extents = std::move(own);
}

NormRopeAddresses AddressesOf(const NormRopeCall& call) {
  return {&call, [](const void* source, std::size_t segment, int operand) {
            return static_cast<const NormRopeCall*>(source)->segments[segment].views[operand].data;
          }};
}

NormRopeAddresses AddressesOf(std::span<const NormRopeBackwardPointers> pointers) {
  return {pointers.data(), [](const void* source, std::size_t segment, int operand) -> const void* {
            const auto& p = static_cast<const NormRopeBackwardPointers*>(source)[segment];
            switch (operand) {
              case Operand::kIn: return p.dy;
              case Operand::kX: return p.x;
              case Operand::kWeight: return p.weight;
              case Operand::kMean: return p.mean;
              case Operand::kRstd: return p.rstd;
              case Operand::kCos: return p.cos;
              case Operand::kSin: return p.sin;
              case Operand::kOut: return p.dx;
              case Operand::kDweight: return p.dweight;
              case Operand::kDbias: return p.dbias;
              default: return nullptr;
            }
          }};
}

NormRopeAddresses AddressesOf(std::span<const NormRopePointers> pointers) {
  return {pointers.data(), [](const void* source, std::size_t segment, int operand) -> const void* {
            const auto& p = static_cast<const NormRopePointers*>(source)[segment];
            switch (operand) {
              case Operand::kIn: return p.x;
              case Operand::kWeight: return p.weight;
              case Operand::kBias: return p.bias;
              case Operand::kMean: return p.mean;
              case Operand::kRstd: return p.rstd;
              case Operand::kCos: return p.cos;
              case Operand::kSin: return p.sin;
              case Operand::kOut: return p.y;
              default: return nullptr;
            }
          }};
}

NormRopeAddresses AddressesOf(std::span<const NormRopePointerRow> pointers) {
  return {pointers.data(), [](const void* source, std::size_t segment, int operand) {
            return static_cast<const NormRopePointerRow*>(source)[segment][operand];
          }};
}

// ---- rules

Status ValidateNormType(const Argument& argument, NormType type) {
  if (type == NormType::kNone || IsNorm(type)) return Status();
  return argument.Refuse(StatusCode::kInvalidAttribute,
                         " is " + std::to_string(static_cast<int>(type)) +
                             "; it must be 0 (none), 1 (layer), 2 (layer_affine), 3 (rms) or 4 (rms_affine)");
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
